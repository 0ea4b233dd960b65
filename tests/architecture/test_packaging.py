"""What setup.cfg installs."""

import configparser
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_setup_cfg_lists_every_package_and_the_jobs():
    setup = configparser.ConfigParser()
    setup.read(ROOT / "setup.cfg")
    listed = setup["options"]["packages"].split()
    found = [
        ".".join(path.parent.relative_to(ROOT).parts)
        for top in ("flinkish", "spark_plugin")
        for path in (ROOT / top).rglob("__init__.py")
    ]
    assert sorted(listed) == sorted([*found, "flinkish.jobs"])
