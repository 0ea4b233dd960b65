"""Runs a job script in this process, as Python would."""

from __future__ import annotations

import os
import sys
import traceback
import types
from pathlib import Path
from typing import Callable, Sequence

from flinkish.errors import FlinkishError, InvalidJobError


def find_job(name: str) -> str:
    """A job that comes with flinkish: installed as ``flinkish.jobs``, in a checkout ``jobs/``."""
    package = Path(__file__).resolve().parents[1]
    for folder in (package / "jobs", package.parent / "jobs"):
        if (folder / name).is_file():
            return str(folder / name)
    raise InvalidJobError(
        f"could not find the job {name}", where=str(package / "jobs"), do="install flinkish again"
    )


def run_script(script: str, arguments: Sequence[str]) -> int:
    """Run a Python file as ``__main__``, then end the Spark that it has started.

    Returns:
        The exit code: of ``sys.exit``, 1 after an exception (its traceback is printed without the
        frames of this command), 0 otherwise.
    Raises:
        FlinkishError: the script ended with it.
    """
    path = Path(script)
    if not path.is_file():
        raise InvalidJobError(
            f"could not run {script}", where=os.getcwd(), why="there is no such file",
            do="give the path of a Python file that calls env.execute()",
        )
    module = types.ModuleType("__main__")
    module.__file__ = str(path.resolve())
    previous = sys.modules["__main__"], sys.argv, sys.path[:]
    sys.modules["__main__"] = module
    sys.argv = [script, *arguments]
    sys.path.insert(0, str(path.resolve().parent))
    exit_code = 1
    try:
        exit_code = _exit_code(
            lambda: exec(
                compile(path.read_bytes(), str(module.__file__), "exec", dont_inherit=True), module.__dict__
            )
        )
        return exit_code
    finally:
        _report_forgotten_sinks(exit_code)
        sys.modules["__main__"], sys.argv, sys.path[:] = previous
        if "flinkish.shell.job_manager" in sys.modules:
            from flinkish.shell.job_manager import close_all

            close_all()  # jobs that the script did not wait for
        if "pyspark" in sys.modules:
            from spark_plugin.session import shut_down

            shut_down()


def _report_forgotten_sinks(exit_code: int) -> None:
    if "flinkish.datastream.forgotten_sinks" in sys.modules:
        from flinkish.datastream.forgotten_sinks import forget_waiting_sinks, report_forgotten_sinks

        if exit_code == 0:
            report_forgotten_sinks()
        forget_waiting_sinks()  # a script that failed has said why


def _exit_code(body: Callable[[], None]) -> int:
    try:
        body()
    except SystemExit as end:
        if end.code is None or isinstance(end.code, int):
            return end.code or 0
        print(end.code, file=sys.stderr)
        return 1
    except FlinkishError:
        raise
    except Exception as error:
        own = error.__traceback__
        while own is not None and own.tb_frame.f_code.co_filename == __file__:
            own = own.tb_next
        traceback.print_exception(type(error), error, own)
        return 1
    return 0
