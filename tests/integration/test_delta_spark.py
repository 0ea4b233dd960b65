"""Delta tables that flinkish wrote, as a Spark session with Delta's jars reads them.

Delta's newest jars fit one Spark version only.  Where the tests run on another one, the fixture makes
an environment of its own for the reading side and keeps it (``FLINKISH_TEST_CACHE``, or the user's
cache folder) for the next run.
"""

import importlib
import json
import os
import pathlib
import shutil
import subprocess
import sys
import venv

import pyarrow as pa
import pytest

from flinkish.connectors.delta.delta_sink import DeltaSink
from flinkish.testing.spi_fakes import SinkRun

JOBS = pathlib.Path(__file__).resolve().parents[2] / "jobs"
DELTA_VERSION = "4.4.0"  # the jar of 4.4.1 is not served
SPARK_VERSION = "4.2"
JARS = (f"io.delta:delta-spark_{SPARK_VERSION}_2.13", "io.delta:delta-storage")

READ_TABLES = """
import json, sys
from pyspark.sql import SparkSession
jars, *tables = sys.argv[1:]
spark = (
    SparkSession.builder.master("local[1]")
    .config("spark.jars", jars)
    .config("spark.sql.extensions", "io.delta.sql.DeltaSparkSessionExtension")
    .config("spark.sql.catalog.spark_catalog", "org.apache.spark.sql.delta.catalog.DeltaCatalog")
    .config("spark.databricks.delta.snapshotPartitions", "1")
    .config("spark.sql.shuffle.partitions", "1")
    .config("spark.sql.session.timeZone", "UTC")
    .config("spark.ui.enabled", "false")
    .getOrCreate()
)
result = {}
for table in tables:
    frame = spark.read.format("delta").load(table)
    result[table] = {
        "schema": frame.dtypes,
        "rows": [json.loads(row) for row in frame.toJSON().collect()],
        "history": spark.sql(f"describe history delta.`{table}`").count(),
    }
print("RESULT " + json.dumps(result))
"""


def cache_folder():
    configured = os.environ.get("FLINKISH_TEST_CACHE")
    base = pathlib.Path(os.environ.get("XDG_CACHE_HOME", pathlib.Path.home() / ".cache"))
    folder = pathlib.Path(configured) if configured else base / "flinkish-tests"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def make_once(folder, make):
    """Make ``folder`` by ``make(temporary folder)``, all or nothing."""
    if not folder.exists():
        unfinished = folder.with_name(f"{folder.name}.{os.getpid()}")
        shutil.rmtree(unfinished, ignore_errors=True)
        make(unfinished)
        unfinished.rename(folder)
    return folder


def fetch_jars(folder):
    folder.mkdir()
    dependencies = "".join(
        "<dependency><groupId>{}</groupId><artifactId>{}</artifactId><version>{}</version>"
        "<exclusions><exclusion><groupId>*</groupId><artifactId>*</artifactId></exclusion>"
        "</exclusions></dependency>".format(*jar.split(":"), DELTA_VERSION)
        for jar in JARS
    )
    pom = folder / "pom.xml"
    pom.write_text(
        "<project><modelVersion>4.0.0</modelVersion><groupId>x</groupId><artifactId>x</artifactId>"
        f"<version>1</version><dependencies>{dependencies}</dependencies></project>"
    )
    subprocess.run(
        ["mvn", "-B", "-q", "-f", str(pom), "dependency:copy-dependencies",
         f"-DoutputDirectory={folder}"],
        check=True, timeout=300,
    )  # fmt: skip


@pytest.fixture(scope="session")
def spark_python():
    """An interpreter whose pyspark fits Delta's jars."""
    import pyspark

    if pyspark.__version__.startswith(f"{SPARK_VERSION}."):
        return sys.executable

    def make(folder):
        venv.create(folder, with_pip=True)
        # A venv may be moved as long as its scripts are not used.
        subprocess.run(
            [str(folder / "bin" / "python"), "-m", "pip", "install", "-q",
             f"pyspark=={SPARK_VERSION}.*"],
            check=True, timeout=900,
        )  # fmt: skip

    name = f"pyspark-{SPARK_VERSION}-python{sys.version_info[0]}.{sys.version_info[1]}"
    return str(make_once(cache_folder() / name, make) / "bin" / "python")


def read_by_spark(spark_python, tables):
    jars = make_once(cache_folder() / f"delta-{DELTA_VERSION}-jars", fetch_jars)
    environment = {**os.environ, "PYSPARK_PYTHON": spark_python}
    for name in ("SPARK_HOME", "PYTHONPATH"):
        environment.pop(name, None)
    done = subprocess.run(
        [spark_python, "-c", READ_TABLES, ",".join(map(str, sorted(jars.glob("*.jar")))), *tables],
        env=environment, capture_output=True, text=True, timeout=400,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-6_000:]
    line = next(line for line in done.stdout.splitlines() if line.startswith("RESULT "))
    return json.loads(line.removeprefix("RESULT "))


@pytest.fixture(scope="module")
def job():
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(JOBS))
        yield importlib.import_module("flight_delays")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("delta")


@pytest.fixture(scope="module")
def seen_by_spark(job, folder, spark_python):
    """Tables of all tests, written by flinkish and read by one Spark session: name -> what it saw."""
    arguments = ["--target", "mini-cluster", "--parallelism", "2", "--format", "delta"]
    job.main([*arguments, "--output", str(folder)])
    schema = {"name": pa.string(), "at": pa.timestamp("ms", tz="UTC")}
    for number, job_id in enumerate(("a" * 32, "b" * 32)):
        run = SinkRun(DeltaSink(folder / "appended", schema, mode="append"), job_id=job_id)
        run.write([(f"job {number}", 1_000 * number)])
        run.finish()
    SinkRun(DeltaSink(folder / "empty", schema)).finish()
    names = ("windows", "alerts", "appended", "empty")
    seen = read_by_spark(spark_python, [str(folder / name) for name in names])
    return {name: seen[str(folder / name)] for name in names}


def test_flight_delays_as_delta_tables_are_read_by_spark(job, folder, seen_by_spark):
    windows, alerts = seen_by_spark["windows"], seen_by_spark["alerts"]
    assert dict(windows["schema"])["window_start"] == "timestamp"
    assert sum(row["flights"] for row in windows["rows"]) == 328_521
    assert sum(row["cancelled"] for row in windows["rows"]) == 8_255
    assert len(windows["rows"]) == job.read_result(f"{folder}/windows", "delta").num_rows
    tails = job.read_result(f"{folder}/alerts", "delta").column("tailnum").to_pylist()
    assert sorted(row["tailnum"] for row in alerts["rows"]) == sorted(tails)
    assert windows["history"] == alerts["history"] == 1


def test_spark_reads_a_table_to_which_two_jobs_appended(seen_by_spark):
    table = seen_by_spark["appended"]
    assert sorted(row["name"] for row in table["rows"]) == ["job 0", "job 1"]
    times = ["1970-01-01T00:00:00.000Z", "1970-01-01T00:00:01.000Z"]
    assert sorted(row["at"] for row in table["rows"]) == times
    assert table["history"] == 2


def test_spark_reads_an_empty_table(seen_by_spark):
    assert seen_by_spark["empty"] == {
        "schema": [["name", "string"], ["at", "timestamp"]],
        "rows": [],
        "history": 1,
    }
