"""What setup.cfg cannot say: jobs/ stands beside the packages and is installed as flinkish.jobs."""

from setuptools import find_packages, setup

setup(
    packages=[*find_packages(include=["flinkish*", "spark_plugin*"]), "flinkish.jobs"],
    package_dir={"flinkish.jobs": "jobs"},
)
