"""Runs flinkish, the bare loops or the echo, and bytewax or pathway (when installed) in turn; prints medians."""

from __future__ import annotations

import argparse
import json
import sys
from typing import Any, Callable, Sequence

from tests.benchmarks.checkpoints import CHECKPOINTS, measure_each_second, measure_heap, measure_restore
from tests.benchmarks.data import DataSet, default_folder
from tests.benchmarks.machine import ForeignLoad, wait_until_quiet
from tests.benchmarks.recovery import RECOVERY, measure_recovery
from tests.benchmarks.report import Row, latency_row, table, throughput_row
from tests.benchmarks.rocksdb import ROCKSDB, measure_changelog, measure_checkpoints, measure_skewed
from tests.benchmarks.systems import (
    SLOTS,
    Load,
    PeerFailedError,
    has_package,
    latency_bytewax,
    latency_echo,
    latency_flinkish,
    run_bare,
    run_bytewax,
    run_flinkish,
    run_pathway,
)

THROUGHPUT = ("W1", "W2", "W2-reduce", "W3", "W4", "W4-csv")
COLUMNS = ("W4", "W4-csv")
WINDOWS = ("sliding", "session")
JOINS = ("interval-join",)
LATENCY = {f"W5-{rate}": rate for rate in (1_000, 10_000, 100_000)}
NOISY_CORES = 0.5
_RECORDS = 1_000_000
_RECORDS_IN_COLUMNS = 12_000_000  # a million takes a tenth of a second, which says nothing
_SIZES = 5  # the larger size is so many times the smaller


class Rounds:
    """Runs systems in turn; a run beside foreign load is taken again, at most ``retries`` in all."""

    def __init__(self, workload: str, systems: dict[str, Callable[[], Any]], args: Any):
        self.workload, self.systems = workload, systems
        self.wait_s, self.retries = args.wait, args.retries
        self.results: dict[str, list] = {name: [] for name in systems}
        self.foreign_cores: dict[str, list[float]] = {name: [] for name in systems}

    def run(self, repeats: int) -> None:
        for _ in range(repeats):
            for name in list(self.systems):
                try:
                    result, cores = self._quiet_run(name)
                except PeerFailedError as error:
                    if name not in ("bytewax", "pathway"):
                        raise
                    print(f"{self.workload}: {error}; it is left out", flush=True)
                    for known in (self.systems, self.results, self.foreign_cores):
                        del known[name]
                    continue
                self.results[name].append(result)
                self.foreign_cores[name].append(cores)

    def _quiet_run(self, name: str) -> tuple[Any, float]:
        while True:
            wait_until_quiet(self.wait_s)
            with ForeignLoad() as load:
                result = self.systems[name]()
            if load.cores <= NOISY_CORES or not self.retries:
                return result, load.cores
            self.retries -= 1
            print(
                f"{self.workload} {name}: {load.cores:.2f} cores busy with other work, taken again",
                flush=True,
            )


def records_of(args: argparse.Namespace, workload: str) -> int:
    if args.records is not None:
        return args.records
    return _RECORDS_IN_COLUMNS if workload in COLUMNS else _RECORDS


def measure_throughput(cluster: Any, workload: str, args: Any, peer: bool) -> list[Row]:
    records = records_of(args, workload)
    small = DataSet(records // _SIZES, args.seed, args.data).make()
    large = DataSet(records, args.seed, args.data).make()
    run_flinkish(cluster, workload, small, large)  # warm: code loaded, files in the page cache
    systems: dict[str, Callable[[], Any]] = {
        "flinkish": lambda: run_flinkish(cluster, workload, small, large),
        "bare": lambda: run_bare(workload, large),
    }
    if peer and workload in JOINS:
        systems["pathway"] = lambda: run_pathway(args.pathway_python, small, large)
    elif peer and workload not in COLUMNS:  # bytewax has no columns
        systems["bytewax"] = lambda: run_bytewax(args.bytewax_python, workload, small, large)
    rounds = Rounds(workload, systems, args)
    rounds.run(args.repeats or 5)
    bare = rounds.results.pop("bare")
    return [
        throughput_row(workload, name, runs, bare, rounds.foreign_cores[name])
        for name, runs in rounds.results.items()
    ]


def measure_latency(cluster: Any, workload: str, args: Any, bytewax: bool) -> list[Row]:
    load = Load(LATENCY[workload], args.warm_seconds, args.seconds, args.seed)
    systems: dict[str, Callable[[], Any]] = {
        "flinkish": lambda: latency_flinkish(cluster, load),
        "echo": lambda: latency_echo(load),
    }
    if bytewax:
        systems["bytewax"] = lambda: latency_bytewax(args.bytewax_python, load)
    rounds = Rounds(workload, systems, args)
    rounds.run(args.repeats or 3)
    echo = rounds.results.pop("echo")
    return [
        latency_row(workload, name, runs, echo, rounds.foreign_cores[name])
        for name, runs in rounds.results.items()
    ]


def open_cluster(target: str) -> Any:
    if target == "mini-cluster":
        from flinkish.testing import MiniCluster

        return MiniCluster(slots=SLOTS)
    from pyspark.sql import SparkSession

    from spark_plugin.session_cluster import SessionCluster

    builder = SparkSession.builder.master(f"local[{SLOTS + 1}]")
    spark = builder.config("spark.ui.showConsoleProgress", "false").getOrCreate()
    return SessionCluster(spark, slots=SLOTS)


def parse_arguments() -> argparse.Namespace:
    names = [*THROUGHPUT, *LATENCY, *WINDOWS, *JOINS, *CHECKPOINTS, *RECOVERY, *ROCKSDB]
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks", description=__doc__)
    add = parser.add_argument
    add(
        "names", nargs="*", metavar="NAME",
        help=f"of {', '.join(names)}, or what several of them begin with; default: all of W...",
    )  # fmt: skip
    add("--json", metavar="FILE", help="write one JSON object a line")
    add("--target", choices=["mini-cluster", "spark"], default="mini-cluster")
    add("--repeats", type=int, help="rounds, checkpoints, restores or failures; default: 5, for W5 3")
    add(
        "--records",
        type=int,
        help=f"the larger size of a throughput; keys of ...-1M; default: {_RECORDS:,}, of columns {_RECORDS_IN_COLUMNS:,}",
    )
    add("--seed", type=int, default=0, help="of the data set")
    add("--data", default=default_folder(), metavar="FOLDER", help="where data sets lie or are made")
    add("--seconds", type=float, default=20.0, help="W5: measured")
    add("--warm-seconds", type=float, default=8.0, help="W5: before them")
    add("--retries", type=int, default=3, help="of runs beside foreign load, a workload")
    add("--wait", type=float, default=20.0, metavar="SECONDS", help="at most, for a quiet machine")
    add("--bytewax-python", default=sys.executable, metavar="PYTHON", help="that has bytewax")
    add("--pathway-python", default=sys.executable, metavar="PYTHON", help="that has pathway, for interval-join")
    args = parser.parse_args()
    meant = {name: _named(names, name) for name in args.names}
    unknown = [name for name, found in meant.items() if not found]
    if unknown:
        parser.error(f"no workload {', '.join(unknown)}; there are {', '.join(names)}")
    args.names = list(dict.fromkeys(name for found in meant.values() for name in found))
    if args.records is not None and args.records < 2 * _SIZES:
        parser.error(f"--records must be at least {2 * _SIZES}")
    args.names = args.names or [*THROUGHPUT, *LATENCY]
    return args


def _named(names: Sequence[str], wanted: str) -> list[str]:
    """The one of this name, else all that begin with it."""
    return [wanted] if wanted in names else [name for name in names if name.startswith(wanted)]


def main() -> None:
    args = parse_arguments()
    workloads = args.names
    if args.json:
        open(args.json, "w").close()
    rows: list[Row] = []
    for name in [name for name in workloads if name in RECOVERY]:  # each in a cluster of its own
        keep(args, rows, [measure_recovery(name, args.repeats or 5)])
    for name in [name for name in workloads if name in ROCKSDB]:
        keep(args, rows, [measure_rocksdb(name, args)])
    for name in [name for name in workloads if name in CHECKPOINTS]:
        keep(args, rows, [measure_heap_checkpoints(name, args)])
    workloads = [name for name in workloads if name not in {*RECOVERY, *ROCKSDB, *CHECKPOINTS}]
    if workloads:
        compare(args, workloads, rows)
    print(table(rows))


def measure_rocksdb(name: str, args: argparse.Namespace) -> Row:
    wait_until_quiet(args.wait)
    with ForeignLoad() as load:
        if name == "rocksdb-skewed":
            with open_cluster(args.target) as cluster:
                row = measure_skewed(cluster, records_of(args, name), args.seed, args.repeats or 3)
        else:
            measure = measure_changelog if name == "checkpoint-changelog-1M" else measure_checkpoints
            row = measure(seed=args.seed)
    return {"workload": name, "system": "flinkish", **row, "foreign_cores": round(load.cores, 2)}


def measure_heap_checkpoints(name: str, args: argparse.Namespace) -> Row:
    wait_until_quiet(args.wait)
    repeats, records = args.repeats or 5, records_of(args, name)
    with open_cluster(args.target) as cluster, ForeignLoad() as load:  # slots of its own, which hold nothing else
        if name == "checkpoint-1s":
            row = measure_each_second(cluster, DataSet(records, args.seed, args.data), repeats)
        else:
            row = (measure_heap if name == "checkpoint-heap-1M" else measure_restore)(cluster, records, repeats)
    return {**row, "foreign_cores": round(load.cores, 2)}


def compare(args: argparse.Namespace, workloads: list[str], rows: list[Row]) -> None:
    """Ours beside the floor and a peer: pathway joins by nearness in time, which bytewax does not."""
    peers = {}
    for package, python, some in (
        ("bytewax", args.bytewax_python, set(workloads) - set(JOINS)),
        ("pathway", args.pathway_python, set(workloads) & set(JOINS)),
    ):
        found = bool(some) and has_package(python, package)
        if some and not found:
            print(f"{package} is not installed (pip install {package}, or --{package}-python): left out")
        peers.update(dict.fromkeys(some, found))
    with open_cluster(args.target) as cluster:
        for name in workloads:
            measure = measure_latency if name in LATENCY else measure_throughput
            keep(args, rows, measure(cluster, name, args, peers[name]))


def keep(args: argparse.Namespace, rows: list[Row], found: list[Row]) -> None:
    rows += found
    if args.json:  # at once, so that an interrupted run keeps what it has
        with open(args.json, "a") as out:
            out.writelines(json.dumps(row) + "\n" for row in found)


if __name__ == "__main__":
    main()
