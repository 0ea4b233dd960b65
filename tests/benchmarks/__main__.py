"""Runs flinkish, the bare loops and (when installed) bytewax in turn, and prints medians as ratios."""

from __future__ import annotations

import argparse
import importlib.util
import json
import statistics
import subprocess
import sys

from tests.benchmarks.data import PARTS, expected, json_parts
from tests.benchmarks.jobs import build
from tests.benchmarks.machine import ForeignLoad

WORKLOADS = ("W1", "W2", "W2-reduce")
SLOTS = 2
NOISY_CORES = 0.5


def bare_rate(workload: str, n: int) -> float:
    """Records/s of two bare loops at the same time, their rates added."""
    name = "W1" if workload == "W1" else "W2"
    loops = [
        subprocess.Popen(
            [sys.executable, "-m", "tests.benchmarks.bare", name, str(n), str(index)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for index in range(PARTS)
    ]
    for loop in loops:
        assert loop.stdout.readline() == "ready\n"
    for loop in loops:
        loop.stdin.write("go\n")
        loop.stdin.flush()
    seconds = [float(loop.stdout.readline()) for loop in loops]
    for loop in loops:
        loop.wait()
    return sum(n / PARTS / s for s in seconds)


def flinkish_rate(cluster, workload: str, n1: int, n2: int) -> float:
    """Records/s of the job between two sizes; the results are checked against the data's own."""
    seconds = []
    for n in (n1, n2):
        env = cluster.get_execution_environment()
        env.set_parallelism(SLOTS)
        sink = build(env, workload, n)
        env.execute(f"{workload} over {n}")
        rows, checksum, took = sink.result()
        if (rows, checksum) != expected(workload, n):
            raise SystemExit(f"{workload}: got {(rows, checksum)}, want {expected(workload, n)}")
        seconds.append(took)
    return (n2 - n1) / (seconds[1] - seconds[0])


def bytewax_rate(workload: str, n1: int, n2: int) -> float:
    line = subprocess.run(
        [sys.executable, "-m", "tests.benchmarks.bytewax_peer", workload, str(n1), str(n2)],
        capture_output=True,
        text=True,
        check=True,
    ).stdout.splitlines()[-1]
    return float(line)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(WORKLOADS)}")
    parser.add_argument("--json", metavar="FILE", help="append one JSON object a line")
    parser.add_argument("--records", type=int, default=1_000_000, help="the larger size")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--retries", type=int, default=3, help="of runs on a busy machine")
    parser.add_argument("--target", choices=["mini-cluster", "spark"], default="mini-cluster")
    args = parser.parse_args()
    unknown = set(args.names) - set(WORKLOADS)
    if unknown:
        parser.error(f"no workload {', '.join(sorted(unknown))}")
    peers = ["bytewax"] if importlib.util.find_spec("bytewax") else []
    if not peers:
        print("bytewax is not installed: only flinkish and the bare loops run")
    if args.target == "spark":
        from pyspark.sql import SparkSession

        from spark_plugin.session_cluster import SessionCluster

        spark = SparkSession.builder.master(f"local[{SLOTS + 1}]").getOrCreate()
        cluster = SessionCluster(spark, slots=SLOTS)
    else:
        from flinkish.testing import MiniCluster

        cluster = MiniCluster(slots=SLOTS)
    results = []
    with cluster:
        for workload in args.names or WORKLOADS:
            results += measure(cluster, workload, args, peers)
    print(f"{'workload':12}{'system':12}{'records/s':>12}{'bare':>12}{'ratio':>8}   spread of the ratio")
    for row in results:
        low, high = row["ratio_spread"]
        print(
            f"{row['workload']:12}{row['system']:12}{row['records_per_s']:12,.0f}"
            f"{row['bare_records_per_s']:12,.0f}{row['ratio']:8.3f}   {low:.3f}..{high:.3f}"
        )
    if args.json:
        with open(args.json, "a") as out:
            for row in results:
                out.write(json.dumps(row) + "\n")


def measure(cluster, workload: str, args, peers: list[str]) -> list[dict]:
    n1, n2 = args.records // 5, args.records
    if workload == "W1":
        for n in (n1 // 10, n1 // 5, n1, n2):
            json_parts(n)  # made here, so that two readers do not make them at once
    flinkish_rate(cluster, workload, n1 // 10, n1 // 5)  # warm: code loaded
    rates: dict[str, list[tuple[float, float]]] = {name: [] for name in ["flinkish", *peers]}
    runs = retries = 0
    while runs < args.repeats:
        with ForeignLoad() as load:
            bare = bare_rate(workload, n2)
            mine = {"flinkish": flinkish_rate(cluster, workload, n1, n2)}
            if "bytewax" in peers:
                mine["bytewax"] = bytewax_rate(workload, n1, n2)
        if load.cores > NOISY_CORES and retries < args.retries:
            retries += 1
            print(f"{workload}: {load.cores:.2f} cores busy with other work, run taken again")
            continue
        runs += 1
        for name, rate in mine.items():
            rates[name].append((rate, bare))
    rows = []
    for name, pairs in rates.items():
        ratios = [rate / bare for rate, bare in pairs]
        rows.append(
            {
                "workload": workload,
                "system": name,
                "records_per_s": round(statistics.median(rate for rate, _ in pairs)),
                "bare_records_per_s": round(statistics.median(bare for _, bare in pairs)),
                "ratio": statistics.median(ratios),
                "ratio_spread": (min(ratios), max(ratios)),
            }
        )
    return rows


if __name__ == "__main__":
    main()
