"""The benchmark tool itself: that it runs, compares checksums and says what it must."""

from __future__ import annotations

import json
import os

import pytest

from tests.benchmarks.data import BASE_TS_MS, KEYS, PARTS, DataSet
from tests.benchmarks.feeder import report
from tests.benchmarks.jobs import JobReport
from tests.benchmarks.report import remarks, throughput_row
from tests.benchmarks.rocksdb import measure_changelog, measure_checkpoints
from tests.benchmarks.systems import Throughput, Took, WrongResultError, check_result, steady

RECORDS, SEED = 4_000, 7
THROUGHPUT = ["W1", "W2", "W2-reduce", "W3", "W4", "W4-csv", "sliding", "session", "interval-join"]


def test_every_workload_gives_a_json_line_with_the_fields_and_the_checksum(run_python, tmp_path):
    ended = run_python(
        "-m", "tests.benchmarks", *THROUGHPUT, "W5-1000",
        "--records", RECORDS, "--seed", SEED, "--data", tmp_path / "data", "--json", "figures.jsonl",
        "--repeats", 1, "--retries", 0, "--wait", 0, "--seconds", 1, "--warm-seconds", 0.5,
    )  # fmt: skip
    assert ended.returncode == 0, ended.stderr
    lines = [json.loads(line) for line in (tmp_path / "figures.jsonl").read_text().splitlines()]
    mine = {line["workload"]: line for line in lines if line["system"] == "flinkish"}
    assert list(mine) == [*THROUGHPUT, "W5-1000"]
    assert len({(line["workload"], line["system"]) for line in lines}) == len(lines)
    data = DataSet(RECORDS, SEED, str(tmp_path / "data"))
    for workload in THROUGHPUT:
        line = mine[workload]
        assert (line["rows"], line["checksum"]) == data.expected(workload)
        assert line["checksum_ok"] and line["bare_records_per_s"] > 0
        assert {"records_per_s", "records_per_cpu_s", "ratio", "ratio_spread"} <= set(line)
        assert line["extra_s"] > 0.2 or f"{workload} flinkish: the larger size took" in ended.stdout
    latency = mine["W5-1000"]
    assert (latency["records"], latency["missing"]) == (1_500, 0)
    assert 0 < latency["p50_ms"] <= latency["p99_ms"]
    assert 0 < latency["echo_p50_ms"] <= latency["echo_p99_ms"]


def test_a_recovery_is_measured_from_the_failure_until_all_tasks_run(run_python, tmp_path):
    ended = run_python("-m", "tests.benchmarks", "recovery-user-exception", "--repeats", 2, "--json", "figures.jsonl")
    assert ended.returncode == 0, ended.stderr
    [line] = [json.loads(line) for line in (tmp_path / "figures.jsonl").read_text().splitlines()]
    assert (line["workload"], line["runs"]) == ("recovery-user-exception", 2)
    least, most = line["seconds_spread"]
    assert 0 < least <= line["seconds"] <= most < 30
    assert f"{line['seconds']:.3f} s" in ended.stdout


def test_checkpoints_and_a_restore_of_heap_state_are_measured(run_python, tmp_path):
    ended = run_python(
        "-m", "tests.benchmarks", "checkpoint-heap", "checkpoint-1s", "restore", "--records", RECORDS, "--repeats", 1,
        "--wait", 0, "--data", tmp_path / "data", "--json", "figures.jsonl",
    )  # fmt: skip
    assert ended.returncode == 0, ended.stderr
    lines = [json.loads(line) for line in (tmp_path / "figures.jsonl").read_text().splitlines()]
    assert [(line["workload"], line["system"]) for line in lines] == [
        (name, "flinkish") for name in ("checkpoint-heap-1M", "checkpoint-1s", "restore-1M")
    ]
    heap, each_second, restore = lines
    assert (heap["keys"], heap["checkpoints"]) == (restore["keys"], 1) == (RECORDS, 1)
    assert 0 < heap["pause_ms"] <= heap["async_s"] * 1_000
    assert heap["p99_ms"] > 0 and heap["p99_ms_without"] > 0
    for line, name in (heap, "pause_ms"), (heap, "p99_ms"), (each_second, "records_per_s"), (restore, "seconds"):
        least, most = line[f"{name}_spread"]
        assert 0 < least <= line[name] <= most
    assert each_second["records_per_s_without"] > 0
    assert restore["gc_objects"] < RECORDS  # the garbage collector does not walk what was restored
    assert f"pause_ms {heap['pause_ms']:,}" in ended.stdout


def test_a_name_that_no_workload_begins_with_is_refused(run_python):
    ended = run_python("-m", "tests.benchmarks", "restored")
    assert ended.returncode == 2 and "no workload restored; there are W1" in ended.stderr


def test_a_result_that_is_not_the_datas_stops_the_run(tmp_path):
    data = DataSet(10, SEED, str(tmp_path)).make()
    rows, checksum = data.expected("W2")
    check_result("W2", JobReport(rows, checksum, 0.1, 0.0), data)
    with pytest.raises(WrongResultError, match=f"checksum {checksum + 1}, want 10 and {checksum}"):
        check_result("W2", JobReport(rows, checksum + 1, 0.1, 0.0), data)


def test_what_lies_in_the_data_folder_is_what_is_measured(tmp_path):
    data = DataSet(6, folder=str(tmp_path))
    for index in range(PARTS):
        path = data.path("csv", index)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "w") as out:
            out.writelines(f"other,{1_000 + index},{BASE_TS_MS + 20_000 * i}\n" for i in range(3))
    assert data.make().tuples(1) == [("other", 1_001, BASE_TS_MS + 20_000 * i) for i in range(3)]
    assert data.expected("W2") == (6, 6_003)
    assert data.expected("W3") == (3, 6_009)  # three windows that both parts share
    assert data.expected("sliding") == (15, 5 * 6_009)
    assert data.expected("session") == (3, 6_009)


def test_seeds_give_different_events_of_the_same_shape(tmp_path):
    first, second = (DataSet(1_000, seed, str(tmp_path)).make().tuples(0) for seed in (0, 1))
    assert first != second
    for key, value, timestamp_ms in first + second:
        assert key in KEYS and 0 <= value < 1_000
        assert BASE_TS_MS - 2_000 < timestamp_ms < BASE_TS_MS + 100


def test_constant_costs_drop_out_between_two_sizes():
    found = steady(Took(5.1, 7.1, 1, 1), 100, Took(6.1, 7.6, 1, 1), 1_100, checksum_ok=True)
    assert found.records_per_s == pytest.approx(1_000)
    assert found.records_per_cpu_s == pytest.approx(2_000)


def test_sizes_that_are_too_small_to_measure_are_said_to_be():
    took = steady(Took(1.0, 1.0, 1, 1), 100, Took(0.9, 1.3, 1, 1), 200, checksum_ok=True)
    bare = Throughput(1_000.0, 500.0, 0.2, 0.4, 1, 1, True)
    row = throughput_row("W2", "flinkish", [took], [bare], [0.0])
    assert row["records_per_s"] is None and row["ratio"] is None
    assert row["cpu_ratio"] == pytest.approx(100 / 0.3 / 500, abs=1e-4)
    assert remarks(row) == [
        "the larger size took -0.100 s more: too short to measure, give more --records"
    ]


def test_a_row_has_the_medians_and_the_spread_of_the_ratios_of_each_round():
    runs = [Throughput(rate, rate, 1.0, 1.0, 1, 1, True) for rate in (10.0, 40.0, 20.0)]
    bare = [Throughput(rate, rate, 1.0, 1.0, 1, 1, True) for rate in (100.0, 100.0, 400.0)]
    row = throughput_row("W2", "bytewax", runs, bare, [0.0, 0.1, 0.2])
    assert (row["records_per_s"], row["bare_records_per_s"]) == (20, 100)
    assert (row["ratio"], row["ratio_spread"]) == (0.1, [0.05, 0.4])


def test_latency_counts_from_the_schedule_and_leaves_the_warm_seconds_out():
    blocks = [(5_000_000, b"a,1,1000000\nb,2,2000000\n"), (9_000_000, b"a,4,3000000\n")]
    found = report(blocks, cut_ns=2_000_000)
    assert (found["p50_ms"], found["max_ms"]) == (6.0, 6.0)
    assert found["checksum"] == 4 + 2  # the last sum of each key
    assert found["values"] == 7


def test_checkpoints_of_rocksdb_are_measured_with_what_they_store():
    row = measure_checkpoints(state_bytes=8 << 20, checkpoints=3, interval_s=0.1)
    assert (row["workload"], row["checkpoints"]) == ("checkpoint-rocksdb-1GB", 3)
    assert row["state_bytes"] > 8 << 20 > row["uploaded_bytes"] > 0
    assert 0 < row["p50_delay_ms"] <= row["p99_delay_ms"] <= row["max_delay_ms"]


def test_checkpoints_of_a_changelog_are_measured_with_what_they_store():
    row = measure_changelog(keys=20_000, checkpoints=3, interval_s=0.1)
    assert (row["workload"], row["checkpoints"]) == ("checkpoint-changelog-1M", 3)
    assert row["state_bytes"] > 2_000_000 and 0 < row["uploaded_bytes"] < 0.02 * row["state_bytes"]
