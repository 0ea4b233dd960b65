"""The console command ``flinkish``.

    flinkish run [--master MASTER] [-D KEY=VALUE]... SCRIPT [ARGUMENTS]...
    flinkish demo [--parallelism N] [--output DIR] [--overwrite]
    flinkish doctor [--master MASTER] [-D KEY=VALUE]... [--json] [--timeout SECONDS]
    flinkish list [-r | -a]
    flinkish rescale JOB -p N | UID=N...
    flinkish savepoint JOB [FOLDER]
    flinkish stop JOB [--drain] [--savepointPath FOLDER]
    flinkish cancel JOB
    flinkish checkpoint JOB
    flinkish savepoint list DIR | dispose [--force] PATH | check [-D KEY=VALUE]... PATH SCRIPT [ARGUMENTS]...
    flinkish version

``run`` runs a script in this Python, with Spark in this process: no spark-submit is needed.
``doctor`` starts Spark as ``run`` would, and tries what jobs need of it.  ``savepoint check`` runs the
script up to its first execute(), and says what the job would get of the savepoint.  JOB is the id of a job that runs,
the beginning of its id, or its name; see ``cli.jobs``.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import logging
import os
import platform
import sys
import tempfile
from typing import Any, Callable, Optional, Sequence

from flinkish.cli.jobs import add_job_commands
from flinkish.cli.scripts import find_job, run_script
from flinkish.common.configuration import CONF_DIR_VARIABLE, Configuration
from flinkish.common.configuration_check import MINI_CLUSTER, check_configuration, check_master
from flinkish.common.execution_config import check_parallelism
from flinkish.common.notices import listen
from flinkish.common.uncaught_errors import uncaught_error_lines
from flinkish.errors import FlinkishError, InvalidJobError, JavaNotFoundError

INTERRUPTED = 130  # the exit code of a shell for Ctrl-C

_SAVEPOINT_ACTIONS = ("take", "list", "dispose", "check")


def main(argv: Optional[Sequence[str]] = None) -> int:
    """Entry point; returns the exit code."""
    arguments = _parser().parse_args(_with_action(sys.argv[1:] if argv is None else list(argv)))
    _configure_logging(getattr(arguments, "verbose", False))
    try:
        return arguments.command(arguments)
    except FlinkishError as error:
        # Where in the script it was matters when the job is at fault and the user's, not when the machine is.
        own_words = error.domain == "external" or error.domain == "user" and arguments.command is not _run
        lines = [str(error)] if own_words else uncaught_error_lines(error)
        print("\n".join(lines), file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return INTERRUPTED


def _with_action(argv: list[str]) -> list[str]:
    """``savepoint JOB`` means ``savepoint take JOB``."""
    if argv[:1] == ["savepoint"] and argv[1:2] and argv[1] not in (*_SAVEPOINT_ACTIONS, "-h", "--help"):
        return [argv[0], "take", *argv[1:]]
    return argv


def _configure_logging(verbose: bool) -> None:
    logging.basicConfig(
        level=logging.INFO if verbose else logging.WARNING,
        format="%(asctime)s %(levelname)s %(name)s: %(message)s",
    )
    logging.getLogger("py4j").setLevel(logging.WARNING)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="flinkish", description="Stream jobs with Flink's semantics inside Spark."
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    run = commands.add_parser("run", help="run a job script in this Python")
    run.add_argument(
        "--master",
        help=f'Spark master, sc://HOST:PORT for Spark Connect, or "{MINI_CLUSTER}" for local processes without Spark '
        "(default: local Spark with a core more than the job needs)",
    )
    _add_settings(run)
    run.add_argument("-v", "--verbose", action="store_true", help="log what happens")
    run.add_argument("script", help="a Python file that calls env.execute()")
    run.add_argument("arguments", nargs=argparse.REMAINDER, help="of the script")
    run.set_defaults(command=_run)

    demo = commands.add_parser("demo", help="run the main job on a year of real flights")
    demo.add_argument("--parallelism", type=int, default=2, help="slots (default: 2)")
    demo.add_argument("--output", help="folder for the result (default: a temporary folder)")
    demo.add_argument("--overwrite", action="store_true", help="replace an earlier result in that folder")
    demo.add_argument("-v", "--verbose", action="store_true", help="log what happens")
    demo.set_defaults(command=_demo)

    doctor = commands.add_parser("doctor", help="try what jobs need of Spark, and say what will not work")
    doctor.add_argument("--master", help="Spark master, or sc://HOST:PORT for Spark Connect (default: local Spark)")
    _add_settings(doctor)
    doctor.add_argument(
        "--timeout", type=float, default=10.0, metavar="SECONDS",
        help="time that checks have when Spark is up; give a busy machine more (default: 10)",
    )
    doctor.add_argument("--json", action="store_true", help="print the findings as JSON")
    doctor.add_argument("-v", "--verbose", action="store_true", help="log what happens")
    doctor.set_defaults(command=_doctor)

    savepoint = commands.add_parser("savepoint", help="take, list, delete and check savepoints")
    actions = savepoint.add_subparsers(required=True, metavar="ACTION")
    listing = actions.add_parser("list", help="show the savepoints below a folder")
    listing.add_argument("path", metavar="DIR", help="folder or URL")
    listing.set_defaults(command=_list_savepoints)
    dispose = actions.add_parser("dispose", help="delete a savepoint")
    dispose.add_argument("path", metavar="PATH", help="folder of the savepoint, or its _metadata")
    dispose.add_argument("--force", action="store_true", help="also one that is not whole: delete its folder")
    dispose.set_defaults(command=_dispose_savepoint)
    check = actions.add_parser("check", help="say what a job would get of a savepoint, without running it")
    check.add_argument("path", metavar="PATH", help="folder of the savepoint, or its _metadata")
    check.add_argument("script", help="a Python file that calls env.execute()")
    check.add_argument("arguments", nargs=argparse.REMAINDER, help="of the script")
    check.set_defaults(command=_check_savepoint)
    for action in (listing, dispose, check):
        _add_settings(action)
    add_job_commands(commands, actions)

    version = commands.add_parser("version", help="show versions")
    version.set_defaults(command=_version)
    return parser


def _add_settings(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "-D",
        "--conf",
        dest="settings",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="set a key of flinkish, or of Spark (spark.*)",
    )


# ---- commands -----------------------------------------------------------------------------------------


def _run(arguments: argparse.Namespace) -> int:
    if arguments.master == MINI_CLUSTER:
        arguments.master = None
        arguments.settings.append(f"execution.target={MINI_CLUSTER}")
    settings = _settings(arguments)
    listen(_show_notice)
    try:
        return _with_settings(settings, lambda: run_script(arguments.script, arguments.arguments))
    finally:
        listen(None)


def _demo(arguments: argparse.Namespace) -> int:
    from spark_plugin.java import find_java
    from spark_plugin.session import QUICK_START

    check_parallelism(arguments.parallelism, what="the demo")
    output = arguments.output or tempfile.mkdtemp(prefix="flinkish-demo-")
    job = ["--parallelism", str(arguments.parallelism), "--output", output]
    if arguments.overwrite:
        job.append("--overwrite")
    print("The 336,776 flights that left New York in 2013, as a stream of events out of order.")
    settings = {}
    try:
        java = find_java()
        settings["spark.driver.extraJavaOptions"] = QUICK_START  # it only carries slots
        spark = importlib.metadata.version("pyspark")
        print(f"Starting Spark {spark} on Java {java.version}: {arguments.parallelism} slots ...", flush=True)
    except JavaNotFoundError as error:
        job += ["--target", MINI_CLUSTER]
        print(f"\n{error.why}.\nSo this runs on the MiniCluster: {arguments.parallelism} local", end=" ")
        print(f"processes, without Spark.\nFor Spark: {error.do}\n", flush=True)
    return _with_settings(settings, lambda: run_script(find_job("flight_delays.py"), job))


def _doctor(arguments: argparse.Namespace) -> int:
    from spark_plugin.doctor import examine_master
    from spark_plugin.doctor_findings import Findings

    try:
        findings = examine_master(_settings_to_examine(arguments), arguments.timeout)
    except FlinkishError as error:
        if not arguments.json:
            raise
        findings = Findings.of_errors("settings", [error])
    print(findings.to_json() if arguments.json else findings)
    return 0 if findings.jobs_will_run else 1


def _settings_to_examine(arguments: argparse.Namespace) -> dict[str, str]:
    if arguments.master == MINI_CLUSTER:
        raise InvalidJobError(
            "could not examine the MiniCluster",
            where="--master",
            why="its slots are processes of this machine: it needs neither Java nor Spark",
            do=f"run the job: flinkish run --master {MINI_CLUSTER} SCRIPT",
        )
    return _settings(arguments)


def _list_savepoints(arguments: argparse.Namespace) -> int:
    from flinkish.shell.savepoints import describe_savepoint, list_savepoints

    found = list_savepoints(arguments.path, _file_settings(arguments))
    for savepoint in found:
        print(describe_savepoint(savepoint))
    if not found:
        print(f"there are no savepoints or checkpoints in {arguments.path}", file=sys.stderr)
    return 0


def _dispose_savepoint(arguments: argparse.Namespace) -> int:
    from flinkish.shell.savepoints import dispose_savepoint

    print(f"deleted {dispose_savepoint(arguments.path, _file_settings(arguments), arguments.force)}")
    return 0


def _check_savepoint(arguments: argparse.Namespace) -> int:
    from flinkish.shell.savepoints import RestoreCheck

    check = RestoreCheck(arguments.path, _file_settings(arguments), print)
    settings = _settings_of(arguments.settings)
    return _with_settings(settings, lambda: run_script(arguments.script, arguments.arguments), cluster=check)


def _file_settings(arguments: argparse.Namespace) -> Configuration:
    """How files are reached: by the configuration file, which the command line goes before."""
    return Configuration.load_global().add_all(_settings_of(arguments.settings))


def _version(arguments: argparse.Namespace) -> int:
    from spark_plugin.java import find_java

    def installed(package: str) -> str:
        try:
            return importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            return "not installed"

    print(f"flinkish {installed('flinkish')}")
    print(f"python   {platform.python_version()}")
    print(f"pyspark  {installed('pyspark')}")
    print(f"pyarrow  {installed('pyarrow')}")
    try:
        java = find_java()
        print(f"java     {java.version} ({java.path})")
    except JavaNotFoundError as error:
        print(f"java     none for Spark: {error.why}; {error.do}")
    return 0


# ---- helpers ------------------------------------------------------------------------------------------


def _with_settings(settings: dict[str, str], body: Callable[[], int], cluster: Any = None) -> int:
    """Run ``body``; environments that it makes have these settings unless they set others, and run their jobs on
    ``cluster``, None: as the settings say.

    Raises:
        InvalidJobError: these settings, with those of the configuration file, cannot work."""
    from flinkish.datastream import StreamExecutionEnvironment

    folder = os.environ.get(CONF_DIR_VARIABLE)
    places = ["the command line (-D or --conf)", *([f"the configuration file in {folder}"] if folder else [])]
    check_configuration(Configuration.load_global().add_all(settings), where=" or ".join(places))
    StreamExecutionEnvironment.set_context(settings, cluster=cluster)
    try:
        return body()
    finally:
        StreamExecutionEnvironment.reset_context()


def _show_notice(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _settings(arguments: argparse.Namespace) -> dict[str, str]:
    """Those of the command line."""
    settings = _settings_of(arguments.settings)
    if arguments.master:
        check_master(arguments.master, "--master")
        settings["flinkish.spark.master"] = arguments.master
    return settings


def _settings_of(texts: Sequence[str]) -> dict[str, str]:
    return dict(_split_setting(text) for text in texts)


def _split_setting(text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not equals or not key.strip():
        raise InvalidJobError(
            f'could not use the setting "{text}"', where="the command line (-D or --conf)", why="it is no KEY=VALUE",
            do="write for example -D parallelism.default=2",
        )
    return key.strip(), value.strip()
