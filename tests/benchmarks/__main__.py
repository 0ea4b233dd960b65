"""Runs flinkish, the bare loops or the echo, and bytewax (when installed) in turn; prints medians."""

from __future__ import annotations

import argparse
import json
import sys
from typing import Any, Callable

from tests.benchmarks.data import DataSet, default_folder
from tests.benchmarks.machine import ForeignLoad, wait_until_quiet
from tests.benchmarks.report import Row, latency_row, table, throughput_row
from tests.benchmarks.systems import (
    SLOTS,
    Load,
    PeerFailedError,
    has_bytewax,
    latency_bytewax,
    latency_echo,
    latency_flinkish,
    run_bare,
    run_bytewax,
    run_flinkish,
)

THROUGHPUT = ("W1", "W2", "W2-reduce", "W3")
LATENCY = {f"W5-{rate}": rate for rate in (1_000, 10_000, 100_000)}
LEFT_OUT = {
    "W4": "it sums and counts columns in event-time windows by SQL, which this engine has not got yet"
}
NOISY_CORES = 0.5
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
                    if name != "bytewax":
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


def measure_throughput(cluster: Any, workload: str, args: Any, bytewax: bool) -> list[Row]:
    small = DataSet(args.records // _SIZES, args.seed, args.data).make()
    large = DataSet(args.records, args.seed, args.data).make()
    run_flinkish(cluster, workload, small, large)  # warm: code loaded, files in the page cache
    systems: dict[str, Callable[[], Any]] = {
        "flinkish": lambda: run_flinkish(cluster, workload, small, large),
        "bare": lambda: run_bare(workload, large),
    }
    if bytewax:
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
    names = [*THROUGHPUT, *LATENCY]
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks", description=__doc__)
    add = parser.add_argument
    add("names", nargs="*", metavar="NAME", help=f"of {', '.join(names)}; default: all")
    add("--json", metavar="FILE", help="write one JSON object a line")
    add("--target", choices=["mini-cluster", "spark"], default="mini-cluster")
    add("--repeats", type=int, help="rounds; default: 5, for W5 3")
    add("--records", type=int, default=1_000_000, help="the larger size, W1 to W3")
    add("--seed", type=int, default=0, help="of the data set")
    add("--data", default=default_folder(), metavar="FOLDER", help="where data sets lie or are made")
    add("--seconds", type=float, default=20.0, help="W5: measured")
    add("--warm-seconds", type=float, default=8.0, help="W5: before them")
    add("--retries", type=int, default=3, help="of runs beside foreign load, a workload")
    add("--wait", type=float, default=20.0, metavar="SECONDS", help="at most, for a quiet machine")
    add("--bytewax-python", default=sys.executable, metavar="PYTHON", help="that has bytewax")
    args = parser.parse_args()
    unknown = set(args.names) - set(names) - set(LEFT_OUT)
    if unknown:
        parser.error(f"no workload {', '.join(sorted(unknown))}; there are {', '.join(names)}")
    if args.records < 2 * _SIZES:
        parser.error(f"--records must be at least {2 * _SIZES}")
    args.names = args.names or names
    return args


def main() -> None:
    args = parse_arguments()
    for name in args.names:
        if name in LEFT_OUT:
            print(f"{name} is left out: {LEFT_OUT[name]}")
    workloads = [name for name in args.names if name not in LEFT_OUT]
    if args.json:
        open(args.json, "w").close()
    if not workloads:
        return
    bytewax = has_bytewax(args.bytewax_python)
    if not bytewax:
        print("bytewax is not installed (pip install bytewax, or --bytewax-python): left out")
    rows: list[Row] = []
    with open_cluster(args.target) as cluster:
        for name in workloads:
            measure = measure_latency if name in LATENCY else measure_throughput
            found = measure(cluster, name, args, bytewax)
            rows += found
            if args.json:  # at once, so that an interrupted run keeps what it has
                with open(args.json, "a") as out:
                    out.writelines(json.dumps(row) + "\n" for row in found)
    print(table(rows))


if __name__ == "__main__":
    main()
