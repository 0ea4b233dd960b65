"""One run of one system: flinkish, the bare loops, bytewax, pathway, the echo."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from dataclasses import dataclass
from typing import Any, Iterator, Optional

from flinkish.errors import JobCancelledError
from tests.benchmarks.data import PARTS, DataSet
from tests.benchmarks.jobs import JobReport, build, build_latency
from tests.benchmarks.machine import tree_cpu_seconds

SLOTS = 2
_PEER_TIMEOUT_S = 1_800.0
_PEER_END_TIMEOUT_S = 60.0  # after it gave its result
_JOB_END_TIMEOUT_MS = 60_000


class WrongResultError(Exception):
    """The rows or the checksum of flinkish are not what the data set gives."""


class PeerFailedError(Exception):
    """A peer did not run to its end."""


@dataclass(frozen=True)
class Took:
    """What a system needed for all records of a data set."""

    seconds: float
    cpu_s: float
    rows: int
    checksum: int


@dataclass(frozen=True)
class Throughput:
    """The steady state between two sizes; None where the larger one was not slower.

    ``extra_s``, ``extra_cpu_s``: how much more the larger size took.
    """

    records_per_s: Optional[float]
    records_per_cpu_s: Optional[float]
    extra_s: float
    extra_cpu_s: float
    rows: int
    checksum: int
    checksum_ok: bool  # rows and checksum of both sizes are what the data sets give


def steady(first: Took, n1: int, second: Took, n2: int, checksum_ok: bool) -> Throughput:
    """(n2 - n1) / (t2 - t1), so that what does not depend on the size drops out."""

    def rate(small: float, large: float) -> Optional[float]:
        return (n2 - n1) / (large - small) if large > small else None

    return Throughput(
        rate(first.seconds, second.seconds),
        rate(first.cpu_s, second.cpu_s),
        second.seconds - first.seconds,
        second.cpu_s - first.cpu_s,
        second.rows,
        second.checksum,
        checksum_ok,
    )


@contextlib.contextmanager
def process(module: str, *arguments: Any, python: str = sys.executable) -> Iterator[subprocess.Popen]:
    """A module of this package as a process with pipes; it does not outlive the block."""
    child = subprocess.Popen(
        [python, "-m", f"tests.benchmarks.{module}", *map(str, arguments)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with child:
        try:
            yield child
            child.wait(_PEER_END_TIMEOUT_S)
        finally:
            child.kill()


# ---- throughput ---------------------------------------------------------------------------------


def run_bare(workload: str, data: DataSet) -> Throughput:
    """Two bare loops at the same time, their rates added: what two cores can do now.  Of columns one process, whose
    library has both cores."""
    if workload in ("W4", "W4-csv"):
        return _run_bare_columns(data)
    with contextlib.ExitStack() as stack:
        loops = [
            stack.enter_context(process("bare", workload, data, index)) for index in range(PARTS)
        ]
        for loop in loops:
            if loop.stdout.readline() != "ready\n":
                raise PeerFailedError(f"a bare loop of {workload} did not start")
        for loop in loops:
            loop.stdin.write("go\n")
            loop.stdin.flush()
        took = [json.loads(loop.stdout.readline()) for loop in loops]
    records = [len(range(index, data.records, PARTS)) for index in range(PARTS)]
    cpu_s = sum(cpu_s for _, cpu_s in took)
    return Throughput(
        sum(n / seconds for n, (seconds, _) in zip(records, took)),
        data.records / cpu_s,
        max(seconds for seconds, _ in took),
        cpu_s,
        *data.expected(workload),  # the loops throw their results away
        checksum_ok=True,
    )


def _run_bare_columns(data: DataSet) -> Throughput:
    with process("bare_columns", data, SLOTS) as bare:
        seconds, cpu_s, rows, checksum = json.loads(bare.stdout.readline())
    right = (rows, checksum) == data.expected("W4")
    return Throughput(data.records / seconds, data.records / cpu_s, seconds, cpu_s, rows, checksum, right)


def check_result(workload: str, report: JobReport, data: DataSet, passes: int = 1) -> None:
    """Raises:
    WrongResultError: rows or checksum are not what the data set gives."""
    rows, checksum = data.expected(workload)
    want = rows * passes, checksum * passes
    if (report.rows, report.checksum) != want:
        raise WrongResultError(
            f"{workload} over {data.records} records gave {report.rows} rows with checksum"
            f" {report.checksum}, want {want[0]} and {want[1]}"
        )


def run_flinkish(cluster: Any, workload: str, small: DataSet, large: DataSet) -> Throughput:
    took = []
    for data in (small, large):
        env = cluster.get_execution_environment()
        env.set_parallelism(SLOTS)
        sink = build(env, workload, data)
        cpu = tree_cpu_seconds(os.getpid())
        env.execute(f"{workload} over {data.records}")
        cpu = tree_cpu_seconds(os.getpid()) - cpu
        report = sink.result()
        check_result(workload, report, data)
        took.append(
            Took(report.seconds, cpu - report.preparing_cpu_s, report.rows, report.checksum)
        )
    return steady(took[0], small.records, took[1], large.records, checksum_ok=True)


def has_package(python: str, package: str) -> bool:
    return subprocess.run([python, "-c", f"import {package}"], capture_output=True).returncode == 0


def run_bytewax(python: str, workload: str, small: DataSet, large: DataSet) -> Throughput:
    with process("bytewax_peer", workload, small, small, large, python=python) as peer:
        lines = peer.communicate(timeout=_PEER_TIMEOUT_S)[0].splitlines()
    if peer.returncode or len(lines) != 3:
        raise PeerFailedError(f"bytewax ended with exit status {peer.returncode}")
    _, first, second = (Took(*json.loads(line)) for line in lines)  # the first run warms up
    # Its windows may differ: bytewax drops records as late when one reader gets ahead of the other.
    right = all(
        (took.rows, took.checksum) == data.expected(workload)
        for took, data in ((first, small), (second, large))
    )
    return steady(first, small.records, second, large.records, right)


def run_pathway(python: str, small: DataSet, large: DataSet) -> Throughput:
    """The interval join.  Nothing to warm up: each run is a process of its own."""
    took = []
    for data in (small, large):
        with process("pathway_peer", data, python=python) as peer:
            lines = peer.communicate(timeout=_PEER_TIMEOUT_S)[0].splitlines()
        if peer.returncode or not lines:
            raise PeerFailedError(f"pathway ended with exit status {peer.returncode}")
        took.append(Took(*json.loads(lines[-1])))
    right = all(
        (run.rows, run.checksum) == data.expected("interval-join") for run, data in zip(took, (small, large))
    )
    return steady(took[0], small.records, took[1], large.records, right)


# ---- latency ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Load:
    """What the feeder of W5 sends."""

    rate: int  # records a second
    warm_s: float
    seconds: float
    seed: int


def _check_latency(system: str, checksum: str, found: dict) -> dict:
    if "failed" in found:
        raise PeerFailedError(f"{system} under the feeder: {found['failed']}")
    if "p50_ms" not in found:
        raise PeerFailedError(f"{system} gave no line back")
    # Who is too slow for the rate may lack lines; that is a figure, and its sums are not final.
    if found["received"] == found["sent"] and found[checksum] != found["sent_values"]:
        raise WrongResultError(
            f"W5 of {system} adds up to {found[checksum]}, want {found['sent_values']}"
        )
    return found


@contextlib.contextmanager
def _feeder(load: Load) -> Iterator[tuple[int, int, subprocess.Popen]]:
    with process("feeder", load.rate, load.warm_s, load.seconds, load.seed) as feeder:
        in_port, out_port = map(int, feeder.stdout.readline().split())
        yield in_port, out_port, feeder


def latency_echo(load: Load) -> dict:
    with _feeder(load) as (in_port, out_port, feeder), process("echo", in_port, out_port):
        return _check_latency("echo", "values", json.loads(feeder.stdout.readline()))


def latency_flinkish(cluster: Any, load: Load) -> dict:
    with _feeder(load) as (in_port, out_port, feeder):
        env = cluster.get_execution_environment()
        env.set_parallelism(SLOTS)
        build_latency(env, in_port, out_port)
        job = env.execute_async(f"W5 at {load.rate} records/s")
        found = json.loads(feeder.stdout.readline())
        if found.get("received", 0) < found.get("sent", 0):
            job.cancel()  # it still works off what it could not keep up with
        with contextlib.suppress(JobCancelledError):
            job.wait(_JOB_END_TIMEOUT_MS)  # a job that failed says why
        return _check_latency("flinkish", "checksum", found)


def latency_bytewax(python: str, load: Load) -> dict:
    with _feeder(load) as (in_port, out_port, feeder):
        with process("bytewax_peer", "W5", in_port, out_port, python=python):
            found = json.loads(feeder.stdout.readline())
            return _check_latency("bytewax", "checksum", found)
