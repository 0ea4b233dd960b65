"""What the facts that ``doctor`` has gathered mean: facts in, findings out.  Nothing is tried here.

Facts are those of the driver (``DriverFacts``) and a report of each task (see ``doctor_probe``).  A
finding is ``fail`` when jobs do not run, ``warn`` when they may run badly or some kinds of job do not.
"""

from __future__ import annotations

import json
import textwrap
from dataclasses import asdict, dataclass, field
from typing import Any, Literal, Mapping, Optional, Sequence

from flinkish.errors import FlinkishError

Status = Literal["ok", "warn", "fail"]

#: What pyarrow, Kafka's and RocksDB's libraries take in a slot (measured).
LIBRARIES_RESIDENT_BYTES = 76 << 20
LIBRARIES_VIRTUAL_BYTES = 1_400 << 20
#: Beside the libraries, Python itself and what a small job keeps.
_SLOT_VIRTUAL_BYTES = LIBRARIES_VIRTUAL_BYTES + (600 << 20)
_SLOT_RESIDENT_BYTES = LIBRARIES_RESIDENT_BYTES + (100 << 20)
_FREE_DISK_BYTES = 1 << 30
_CLOCK_WARN_MS = 1_000
_LABEL_WIDTH = 18


@dataclass(frozen=True)
class Finding:
    """One line of the examination.

    ``found``: what there is; ``do``: what the user can do about it, "" when it is ok.
    """

    check: str
    status: Status
    found: str
    do: str = ""


@dataclass(frozen=True)
class Findings:
    """All lines; its text is what ``flinkish doctor`` prints, also in a notebook."""

    lines: tuple[Finding, ...]

    @property
    def jobs_will_run(self) -> bool:
        return all(line.status != "fail" for line in self.lines)

    @classmethod
    def of_errors(cls, check: str, errors: Sequence[FlinkishError]) -> "Findings":
        """Each error as a failure of this check."""
        return cls(
            tuple(
                Finding(check, "fail", f"{error.what}: {error.why}" if error.why else error.what, error.do)
                for error in errors
            )
        )

    def of(self, check: str) -> Finding:
        """The line of this check.  Raises KeyError."""
        for line in self.lines:
            if line.check == check:
                return line
        raise KeyError(check)

    def to_json(self) -> str:
        lines = [asdict(line) for line in self.lines]
        return json.dumps({"jobs_will_run": self.jobs_will_run, "findings": lines}, indent=2)

    def __str__(self) -> str:
        text = []
        for line in self.lines:
            text += _wrapped(f"{line.status:<5}{line.check:<{_LABEL_WIDTH}}", line.found)
            if line.do:
                text += _wrapped(" " * (5 + _LABEL_WIDTH) + "do: ", line.do)
        text.append("")
        failed = dict.fromkeys(line.check for line in self.lines if line.status == "fail")
        warned = dict.fromkeys(line.check for line in self.lines if line.status == "warn")
        if failed:
            text.append(f"Jobs will not run here: {', '.join(failed)}.")
        elif warned:
            text.append(f"Jobs will run here; look at: {', '.join(warned)}.")
        else:
            text.append("Jobs will run here.")
        return "\n".join(text)

    __repr__ = __str__


def _wrapped(label: str, text: str) -> list[str]:
    return textwrap.wrap(
        text, 110, initial_indent=label, subsequent_indent=" " * (5 + _LABEL_WIDTH + (4 if "do: " in label else 0))
    ) or [label.rstrip()]


# ---- facts ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class DriverFacts:
    """What the driver knows.

    ``refusal``: what, why and do of the error with which a launch would end, None when it would not.
    ``settings``: how many have been set; ``settings_warnings``: what is odd about them.
    ``slots_total`` None: only the running cluster knows.  ``holders``: Spark stages that run now.
    ``asked``: tasks that the examination has started.
    ``job_failure``: how the examination's own Spark job failed.
    """

    spark_version: str
    master: str
    kind: str
    settings: int = 0
    settings_warnings: Sequence[str] = ()
    java: str = ""
    python: str = ""
    modules: Mapping[str, Optional[str]] = field(default_factory=dict)
    slots_total: Optional[int] = None
    slots_busy: int = 0
    slots_per_task: int = 1
    holders: Sequence[str] = ()
    refusal: Optional[tuple[str, str, str]] = None
    barrier: bool = True
    together_ms: Optional[int] = None
    asked: int = 0
    job_failure: str = ""
    addresses: Sequence[str] = ()
    storage_uri: Optional[str] = None
    storage_failure: str = ""
    memory_overhead_bytes: Optional[int] = None
    tasks_per_executor: int = 1
    budget_s: float = 10.0


def spark_kind(master: str, connect: bool, conf: Mapping[str, str], environ: Mapping[str, str]) -> str:
    """How Spark runs here, in words.

    Args:
        connect: the session is one of Spark Connect.
        conf: those keys of Spark's that are set.

    >>> spark_kind("local-cluster[2,1,1024]", False, {}, {})
    'local-cluster'
    >>> spark_kind("spark://host:7077", True, {}, {})
    'Spark Connect, standalone'
    """
    tags = "spark.databricks.clusterUsageTags."
    if "DATABRICKS_RUNTIME_VERSION" in environ or any(key.startswith("spark.databricks.") for key in conf):
        if f"{tags}clusterId" not in conf:
            return "Databricks, serverless"
        mode = conf.get(f"{tags}dataSecurityMode", "")
        if mode in ("USER_ISOLATION", "LEGACY_TABLE_ACL", "DATA_SECURITY_MODE_STANDARD"):
            return "Databricks, standard access mode"
        return "Databricks, dedicated access mode" if mode else "Databricks"
    for prefix, name in (
        ("local-cluster", "local-cluster"),
        ("local", "local"),
        ("spark:", "standalone"),
        ("yarn", "YARN"),
        ("k8s:", "Kubernetes"),
    ):
        if master.startswith(prefix):
            break
    else:
        name = "of an unknown kind"
    return f"Spark Connect, {name}" if connect else name


def judge(driver: DriverFacts, reports: Sequence[Mapping[str, Any]]) -> Findings:
    """All findings of a session that is up."""
    reports = _with_hosts_told_apart(reports)
    return Findings(
        (
            judge_settings(driver),
            Finding("Java", "ok", driver.java or "runs on the server of Spark Connect"),
            judge_spark(driver),
            judge_slots(driver, reports),
            judge_launch(driver),
            judge_python(driver, reports),
            judge_slot_to_driver(driver, reports),
            judge_slot_to_slot(driver, reports),
            judge_local_disk(driver, reports),
            judge_checkpoint_storage(driver, reports),
            judge_memory(driver, reports),
            judge_clock(driver, reports),
        )
    )


def _with_hosts_told_apart(reports: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Hosts of one name that have different addresses, as containers may, get these into their names."""
    addresses: dict[str, set[str]] = {}
    for report in reports:
        if "address" in report:
            addresses.setdefault(report["host"], set()).add(report["address"])
    return [
        {**report, "host": f"{report['host']} ({report['address']})"}
        if "address" in report and len(addresses[report["host"]]) > 1
        else report
        for report in reports
    ]


def judge_settings(driver: DriverFacts) -> Finding:
    check = "settings"
    if driver.settings_warnings:
        text = "; ".join(" ".join(warning.split()) for warning in driver.settings_warnings)
        return Finding(check, "warn", text, "correct or remove what has no effect")
    return Finding(check, "ok", f"{driver.settings} set, each has a value that it can have" if driver.settings else
                   "none set")  # fmt: skip


def judge_spark(driver: DriverFacts) -> Finding:
    found = f"{driver.spark_version}, {driver.kind}, master {driver.master or 'unknown'}"
    if driver.kind == "Databricks, serverless":
        return Finding("Spark", "fail", f"{found}; it has no place for processes that run long",
                       "use a cluster with dedicated access mode")  # fmt: skip
    if driver.kind == "Databricks, standard access mode":
        return Finding("Spark", "warn", f"{found}; it keeps users apart and may forbid connections",
                       "use dedicated access mode where a check below fails")  # fmt: skip
    return Finding("Spark", "ok", found)


def judge_slots(driver: DriverFacts, reports: Sequence[Mapping[str, Any]]) -> Finding:
    total, check = driver.slots_total, "task slots"
    if total is None:
        if reports:
            return Finding(check, "ok", f"at least {len(reports)} tasks run at once; how many in all is not known")
        if not driver.asked:
            return Finding(check, "warn", "not tried: executors come with the tasks that wait for them",
                           "examine again when the launch is allowed")  # fmt: skip
        return Finding(check, "fail", f"none of {driver.asked} tasks began within {driver.budget_s:.0f} s",
                       "look at Spark's log, and whether its executors have started")  # fmt: skip
    free = max(0, total - driver.slots_busy)
    found = f"{free} free of {total}"
    if driver.slots_per_task > 1:
        found += f", {driver.slots_per_task} slots of flinkish in each"
    if driver.holders:
        found += f"; {', '.join(driver.holders)}"
    if total == 0:
        return Finding(check, "fail", "no executor has registered, so there is none",
                       "look at the cluster manager: has it free cores and memory for this application?")  # fmt: skip
    if free == 0:
        return Finding(check, "warn", found, "a job waits for slot.request.timeout; end what holds them")
    if not reports and driver.asked and not driver.job_failure:
        return Finding(check, "fail", f"{found}, but none of {driver.asked} tasks began within "
                       f"{driver.budget_s:.0f} s", "look at Spark's log, and whether its executors have started")  # fmt: skip
    if driver.asked == 1 and free > 1:
        return Finding(check, "warn", f"{found}, but executors for them have not all registered; one task was tried",
                       "examine again when they have")  # fmt: skip
    if total == 1:
        return Finding(check, "warn", f"{found}; DataFrame jobs wait while a stream runs",
                       "start Spark with more cores")  # fmt: skip
    return Finding(check, "ok", found)


def judge_launch(driver: DriverFacts) -> Finding:
    check = "launch"
    if driver.refusal is not None:
        what, why, do = driver.refusal
        return Finding(check, "fail", f"{what}: {why}", do)
    if driver.job_failure:
        return Finding(check, "fail", f"the job of this examination failed: {driver.job_failure}",
                       "look at Spark's log")  # fmt: skip
    kind = "a barrier stage" if driver.barrier else "ordinary tasks"
    if driver.together_ms is None:
        return Finding(check, "warn", f"{kind} of {driver.asked} tasks did not come together in the time of "
                       "this examination" if driver.asked else "not tried: no task slot is free",
                       "" if driver.asked else "examine again when slots are free")  # fmt: skip
    return Finding(check, "ok", f"{kind}: {driver.asked} tasks began within {driver.together_ms} ms")


def judge_python(driver: DriverFacts, reports: Sequence[Mapping[str, Any]]) -> Finding:
    check = "Python"
    own = f"Python {driver.python}, pyarrow {driver.modules.get('pyarrow') or '(none)'}"
    if not reports:
        return _not_tried(check, own)
    if missing := [(r["host"], name) for r in reports for name, version in r["modules"].items() if version is None]:
        names = sorted({name for _, name in missing})
        return Finding(check, "fail", f"executors ({_hosts(missing)}) have no {' and no '.join(names)}",
                       "install it there, or ship it with spark-submit --py-files or --archives")  # fmt: skip
    minor = driver.python.rsplit(".", 1)[0]
    if other := [(r["host"], r["python"]) for r in reports if r["python"].rsplit(".", 1)[0] != minor]:
        return Finding(check, "fail", f"executors ({_hosts(other)}) run Python {other[0][1]}, the driver {driver.python}",
                       "set PYSPARK_PYTHON to the same Python on all machines")  # fmt: skip
    for name, version in driver.modules.items():
        if other := [(r["host"], r["modules"][name]) for r in reports if r["modules"][name] != version]:
            return Finding(check, "warn", f"executors ({_hosts(other)}) have {name} {other[0][1] or '(no version)'}, "
                           f"the driver {version or '(no version)'}", "install the same version everywhere")  # fmt: skip
    return Finding(check, "ok", f"{own} on driver and executors, with flinkish")


def judge_slot_to_driver(driver: DriverFacts, reports: Sequence[Mapping[str, Any]]) -> Finding:
    check = "slot to driver"
    addresses = ", ".join(driver.addresses)
    if not reports:
        return _not_tried(check, f"the driver would be at {addresses}" if addresses else "")
    failed = [(r["host"], r) for r in reports if all(one["failure"] for one in r["driver"])]
    if failed:
        tried = ", ".join(f"{one['address']} ({one['failure']})" for one in failed[0][1]["driver"])
        return Finding(check, "fail", f"{len(failed)} of {len(reports)} tasks ({_hosts(failed)}) do not reach the "
                       f"driver; tried {tried}", "set spark.driver.host, or jobmanager.rpc.address, which goes before it, to an address of the driver "
                       "that executors reach, and open the firewall or container network")  # fmt: skip
    if silent := [(r["host"], r["meeting_failure"]) for r in reports if "meeting_failure" in r]:
        return Finding(check, "fail", f"tasks on {_hosts(silent)} reached {addresses} and then failed: {silent[0][1]}",
                       "look for what answers on that address instead of the driver")  # fmt: skip
    slow_ms = max(one["ms"] for r in reports for one in r["driver"] if not one["failure"])
    return Finding(check, "ok", f"{len(reports)} tasks reach {addresses} in {slow_ms:.1f} ms")


def judge_slot_to_slot(driver: DriverFacts, reports: Sequence[Mapping[str, Any]]) -> Finding:
    check = "slot to slot"
    met = [r for r in reports if "peers" in r]
    tried = [(r["host"], peer) for r in met for peer in r["peers"]]
    if not tried:
        if len(reports) == 1:
            return Finding(check, "ok", "one task only, nothing to connect")
        return _not_tried(check)
    if failed := [(host, peer) for host, peer in tried if peer["failure"]]:
        host, peer = failed[0]
        return Finding(check, "fail", f"{len(failed)} of {len(tried)} connections failed; {host} to "
                       f"{peer['address']}: {peer['failure']}", "let executors reach each other on any port (firewall, "
                       "container network)")  # fmt: skip
    hosts = len({r["host"] for r in met})
    return Finding(check, "ok", f"{len(tried)} connections between {len(met)} tasks on {hosts} host(s)")


def judge_local_disk(driver: DriverFacts, reports: Sequence[Mapping[str, Any]]) -> Finding:
    check = "local disk"
    disks = [(r["host"], disk) for r in reports for disk in r["local_disk"]]
    if not disks:
        return _not_tried(check)
    if failed := [(host, disk) for host, disk in disks if disk["failure"]]:
        disk = failed[0][1]
        return Finding(check, "fail", f"{disk['folder']} on {_hosts(failed)}: {disk['failure']}",
                       "set TMPDIR of the executors to a folder that they can write to")  # fmt: skip
    host, least = min(disks, key=lambda pair: pair[1]["free_bytes"])
    found = f"{_bytes(least['free_bytes'])} free in {least['folder']} on {host}"
    if least["free_bytes"] < _FREE_DISK_BYTES:
        return Finding(check, "warn", found, "free some space, or set TMPDIR of the executors to another disk")
    return Finding(check, "ok", found)


def judge_checkpoint_storage(driver: DriverFacts, reports: Sequence[Mapping[str, Any]]) -> Finding:
    check, uri = "checkpoints", driver.storage_uri
    if uri is None:
        return Finding(check, "ok", "no folder is configured (execution.checkpointing.dir)")
    advice = "name a folder or URI that the driver and all executors can write to"
    if driver.storage_failure:
        return Finding(check, "fail", f"{uri} from the driver: {driver.storage_failure}", advice)
    failed = [(r["host"], r["storage"]["failure"]) for r in reports if r.get("storage", {}).get("failure")]
    if failed:
        return Finding(check, "fail", f"{uri} from executors ({_hosts(failed)}): {failed[0][1]}", advice)
    if not reports:
        return Finding(check, "warn", f"{uri}: the driver can write, rename, read and delete; executors were not tried",
                       "examine again when the checks above are ok")  # fmt: skip
    return Finding(check, "ok", f"{uri}: driver and executors write, rename, read and delete")


def judge_memory(driver: DriverFacts, reports: Sequence[Mapping[str, Any]]) -> Finding:
    check = "memory"
    if not reports:
        return _not_tried(check)
    limits = [r["address_space_bytes"] for r in reports if r["address_space_bytes"] is not None]
    need = _bytes(_SLOT_VIRTUAL_BYTES)
    if limits and min(limits) < _SLOT_VIRTUAL_BYTES:
        status: Status = "fail" if min(limits) < LIBRARIES_VIRTUAL_BYTES else "warn"
        return Finding(check, status, f"Python on executors may use {_bytes(min(limits))} of address space; a slot with "
                       f"pyarrow, Kafka and RocksDB needs {need}", "raise or remove spark.executor.pyspark.memory (or "
                       "ulimit -v)")  # fmt: skip
    slots = driver.tasks_per_executor * driver.slots_per_task
    resident = slots * _SLOT_RESIDENT_BYTES
    overhead = driver.memory_overhead_bytes
    if overhead is not None and overhead < resident:
        return Finding(check, "warn", f"an executor has {_bytes(overhead)} beside its heap for {slots} slot(s), each of "
                       f"which takes {_bytes(_SLOT_RESIDENT_BYTES)} and its state",
                       "raise spark.executor.memoryOverhead")  # fmt: skip
    free = [value for r in reports for value in (r["available_bytes"], r["container_bytes"]) if value is not None]
    found = f"{_bytes(min(free))} available" if free else "not limited"
    if free and min(free) < resident:
        return Finding(check, "warn", f"{found} for {slots} slot(s), each of which takes "
                       f"{_bytes(_SLOT_RESIDENT_BYTES)} and its state", "use machines or containers with more memory")  # fmt: skip
    address_space = f"address space {_bytes(min(limits))}" if limits else "address space not limited"
    return Finding(check, "ok", f"{found}, {address_space}")


def judge_clock(driver: DriverFacts, reports: Sequence[Mapping[str, Any]]) -> Finding:
    check = "clock"
    clocks = [(r["host"], r["clock_ahead_ms"], r["clock_error_ms"]) for r in reports if "clock_ahead_ms" in r]
    if not clocks:
        return _not_tried(check)
    # What the measurement itself may be off says nothing.
    host, ahead_ms, error_ms = max(clocks, key=lambda clock: abs(clock[1]) - clock[2])
    found = f"{host} is {abs(ahead_ms):.0f} ms {'ahead of' if ahead_ms > 0 else 'behind'} the driver"
    if abs(ahead_ms) - error_ms > _CLOCK_WARN_MS:
        return Finding(check, "warn", f"{found}: times of logs, metrics and processing time do not agree",
                       "run an NTP client on all machines")  # fmt: skip
    return Finding(check, "ok", f"{found} (measured to {error_ms:.0f} ms)")


def _not_tried(check: str, found: str = "") -> Finding:
    text = f"not tried{': ' if found else ''}{found}"
    return Finding(check, "warn", text, "examine again when the checks above are ok")


def _hosts(pairs: Sequence[tuple[str, Any]], shown: int = 3) -> str:
    hosts = list(dict.fromkeys(pair[0] for pair in pairs))
    return ", ".join(hosts[:shown]) + (f" and {len(hosts) - shown} more" if len(hosts) > shown else "")


def _bytes(count: float) -> str:
    """
    >>> _bytes(1_400 << 20), _bytes(76 << 20), _bytes(10 << 40)
    ('1.4 GiB', '76 MiB', '10.0 TiB')
    """
    value, units = count / (1 << 20), ["MiB", "GiB", "TiB"]
    while value >= 1024 and len(units) > 1:
        value, units = value / 1024, units[1:]
    return f"{value:.0f} MiB" if units[0] == "MiB" else f"{value:.1f} {units[0]}"
