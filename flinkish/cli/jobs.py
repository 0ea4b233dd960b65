"""Commands for jobs that run: which there are, rescaling, savepoints, checkpoints, their end.

A job is named by its id, the beginning of it, or its name, where that is enough to tell it from the others.  Drivers of
this user on this machine are found by their files (``rest.registration``); ``-m HOST:PORT`` names any other.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import time
from typing import Any, Callable, Optional

from flinkish.common.job_status import JobStatus
from flinkish.errors import ConnectionLostError, ExternalError, InvalidJobError
from flinkish.rest.client import RestClient
from flinkish.rest.registration import DriverAddress, find_drivers, run_folder

TOKEN_VARIABLE = "FLINKISH_REST_TOKEN"

_DEFAULT_PORT = 8081  # Flink's
_POLL_S = 0.1
_NAMED_JOBS = 5  # in an error


def add_job_commands(commands: Any, savepoint_actions: Any) -> None:
    """``commands``, ``savepoint_actions``: where argparse takes sub-commands."""
    listing = commands.add_parser("list", help="show jobs that run")
    states = listing.add_mutually_exclusive_group()
    states.add_argument("-r", "--running", action="store_true", help="only those that run or restart")
    states.add_argument("-a", "--all", action="store_true", help="also those that have ended, while their driver lives")
    listing.set_defaults(command=_list)

    rescale = commands.add_parser(
        "rescale", help="have a job that runs go on with another parallelism",
        description="Takes a checkpoint and goes on from it with another parallelism: no record is lost or counted "
        "twice. -p concerns all operators whose parallelism the program leaves open, UID=N single ones.",
    )  # fmt: skip
    rescale.add_argument("job", metavar="JOB", help="id, beginning of an id, or name")
    rescale.add_argument("-p", "--parallelism", type=_parallelism, metavar="N", help="of the job")
    rescale.add_argument("vertices", nargs="*", metavar="UID=N", type=_vertex, help="of the task with this operator")
    rescale.set_defaults(command=_rescale)

    take = savepoint_actions.add_parser("take", help='take one of a job that runs; the word "take" may be left out')
    take.add_argument("job", metavar="JOB", help="id, beginning of an id, or name")
    take.add_argument("folder", metavar="FOLDER", nargs="?", help="default: execution.checkpointing.savepoint-dir")
    take.set_defaults(command=_take_savepoint)

    stop = commands.add_parser("stop", help="take a savepoint of a job, and end it")
    stop.add_argument("job", metavar="JOB", help="id, beginning of an id, or name")
    stop.add_argument(
        "-d", "--drain", action="store_true",
        help="let event time come to its end before: all windows and timers fire, for a job that will not go on",
    )  # fmt: skip
    stop.add_argument(
        "-p", "--savepointPath", dest="folder", metavar="FOLDER", help="default: execution.checkpointing.savepoint-dir"
    )
    stop.set_defaults(command=_stop)

    cancel = commands.add_parser("cancel", help="end a job without a savepoint")
    cancel.add_argument("job", metavar="JOB", help="id, beginning of an id, or name")
    cancel.set_defaults(command=_cancel)

    checkpoint = commands.add_parser("checkpoint", help="take a checkpoint of a job now")
    checkpoint.add_argument("job", metavar="JOB", help="id, beginning of an id, or name")
    checkpoint.set_defaults(command=_take_checkpoint)

    for command in (listing, rescale, take, stop, cancel, checkpoint):
        command.add_argument("-m", "--jobmanager", metavar="HOST:PORT", help="of a driver (default: all found)")
        command.add_argument(
            "--token-file", metavar="FILE",
            help=f"its first line is the token of the driver (default: {TOKEN_VARIABLE}, or what is found)",
        )  # fmt: skip
        command.add_argument("--json", action="store_true", help="print the result as JSON")


def _parallelism(text: str) -> int:
    if not re.fullmatch("[0-9]{1,9}", text) or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number of at least 1")
    return int(text)


def _vertex(text: str) -> tuple[str, int]:
    uid, equals, number = text.rpartition("=")
    if not equals or not uid:
        raise argparse.ArgumentTypeError(f"{text!r} is no UID=N")
    return uid, _parallelism(number)


# ---- commands -----------------------------------------------------------------------------------


def _list(arguments: argparse.Namespace) -> int:
    found = _jobs(arguments, must_find=arguments.jobmanager is not None)
    shown = [(client, job) for client, job in found if arguments.all or _lives(job)]
    if arguments.running:
        shown = [(client, job) for client, job in shown if job["state"] in ("RUNNING", "RESTARTING")]
    shown.sort(key=lambda pair: (pair[1]["start-time"], pair[1]["jid"]))
    if arguments.json:
        print(json.dumps({"jobs": [{**job, "jobmanager": str(client.driver)} for client, job in shown]}, indent=2))
        return 0
    for _, job in shown:
        started = time.strftime("%d.%m.%Y %H:%M:%S", time.localtime(job["start-time"] / 1_000))
        print(f"{started} : {job['jid']} : {job['name']} ({job['state']})")
    if not shown:
        print("No running jobs.")
    return 0


def _rescale(arguments: argparse.Namespace) -> int:
    if (arguments.parallelism is None) == (not arguments.vertices):
        raise InvalidJobError(
            "could not rescale", where="the command line", why="either -p N or UID=N is needed, and not both",
            do="write for example: flinkish rescale JOB -p 3",
        )  # fmt: skip
    client, job = _find(arguments)
    vertices = dict(arguments.vertices) or None
    client.rescale(job["jid"], arguments.parallelism, vertices)
    tasks = {vertex["name"]: vertex["parallelism"] for vertex in client.job(job["jid"])["vertices"]}
    text = ", ".join(f'"{name}" with {number}' for name, number in tasks.items())
    return _done(arguments, {"jid": job["jid"], "parallelism": tasks}, f"Rescaled job {job['jid']}: it runs {text}.")


def _take_savepoint(arguments: argparse.Namespace) -> int:
    client, job = _find(arguments)
    location = client.take_savepoint(job["jid"], _folder(arguments))
    return _done(arguments, {"jid": job["jid"], "location": location}, f"Savepoint completed. Path: {location}")


def _stop(arguments: argparse.Namespace) -> int:
    client, job = _find(arguments)
    location = client.stop(job["jid"], arguments.drain, _folder(arguments))
    return _done(arguments, {"jid": job["jid"], "location": location}, f"Savepoint completed. Path: {location}")


def _cancel(arguments: argparse.Namespace) -> int:
    client, job = _find(arguments)
    client.cancel(job["jid"])
    _wait_over(client, job["jid"])
    return _done(arguments, {"jid": job["jid"]}, f"Cancelled job {job['jid']}.")


def _take_checkpoint(arguments: argparse.Namespace) -> int:
    client, job = _find(arguments)
    number = client.take_checkpoint(job["jid"])
    text = f"Checkpoint {number} for job {job['jid']} completed."
    return _done(arguments, {"jid": job["jid"], "checkpointId": number}, text)


def _done(arguments: argparse.Namespace, result: dict[str, Any], text: str) -> int:
    print(json.dumps(result) if arguments.json else text)
    return 0


# ---- which job, which driver --------------------------------------------------------------------


def _find(arguments: argparse.Namespace) -> tuple[RestClient, dict[str, Any]]:
    """The job that the command line names.

    Raises:
        InvalidJobError: none is like that, or several are.
    """
    where = arguments.jobmanager or f"drivers of this user, in {run_folder()}"
    return choose_job(_jobs(arguments), arguments.job, where)


def choose_job(
    jobs: list[tuple[RestClient, dict[str, Any]]], wanted: str, where: str
) -> tuple[RestClient, dict[str, Any]]:
    """The one that ``wanted`` (id, beginning of an id, or name) means.

    Raises:
        InvalidJobError: none is like that, or several are.
    """
    kinds: list[Callable[[dict[str, Any]], bool]] = [
        lambda job: job["jid"] == wanted.lower(),
        lambda job: job["name"] == wanted and _lives(job),
        lambda job: job["jid"].startswith(wanted.lower()),
        lambda job: job["name"] == wanted,
    ]
    found = next((those for kind in kinds if (those := [pair for pair in jobs if kind(pair[1])])), [])
    if len(found) == 1:
        return found[0]
    if not jobs:
        raise InvalidJobError(
            f'could not find the job "{wanted}"', where=where, why="no job runs there",
            do="see whether its driver runs; for one of another user or machine: -m HOST:PORT",
        )  # fmt: skip
    if found:
        why = f"{len(found)} jobs are meant: {_named(found)}"
    else:
        running = [pair for pair in jobs if _lives(pair[1])]
        why = f"it is none of {_named(running)}" if running else f"no job runs there any more, {len(jobs)} have ended"
    raise InvalidJobError(
        f'could not find the job "{wanted}"', where=where, why=why,
        do="give the id of one of them; flinkish list --all shows all",
    )  # fmt: skip


def _named(jobs: list[tuple[RestClient, dict[str, Any]]]) -> str:
    shown = [f'{job["jid"]} "{job["name"]}" ({job["state"]}, {client.driver})' for client, job in jobs[:_NAMED_JOBS]]
    return ", ".join(shown) + (f" and {len(jobs) - _NAMED_JOBS} more" if len(jobs) > _NAMED_JOBS else "")


def _jobs(arguments: argparse.Namespace, must_find: bool = True) -> list[tuple[RestClient, dict[str, Any]]]:
    """Of all drivers that are meant."""
    token = _token(arguments)
    if arguments.jobmanager is not None:
        client = RestClient(_driver(arguments.jobmanager, token))
        return [(client, job) for job in client.jobs()]
    drivers = find_drivers()
    found: list[tuple[RestClient, dict[str, Any]]] = []
    failure: Optional[ConnectionLostError] = None
    for driver in drivers:
        client = RestClient(driver)
        try:
            found += [(client, job) for job in client.jobs()]
        except ConnectionLostError as error:  # it ends just now, or hangs: the others are there all the same
            failure = error
    if failure is not None and not found and must_find:
        raise failure
    return found


def _driver(address: str, token: Optional[str]) -> DriverAddress:
    host, colon, port = address.rpartition(":")
    if not colon or not port.isdigit():
        host, port = address, str(_DEFAULT_PORT)
    if not host or not 0 < int(port) < 2**16:
        raise InvalidJobError(
            f'could not use "{address}" as the address of a driver', where="-m, --jobmanager", do="give HOST:PORT"
        )
    host = "127.0.0.1" if host == "localhost" else host.strip("[]")
    if token is None:
        token = next((known.token for known in _own_drivers() if (known.host, known.port) == (host, int(port))), "")
    return DriverAddress(host, int(port), token)


def _own_drivers() -> list[DriverAddress]:
    try:
        return find_drivers()
    except ExternalError:  # somebody else has that folder; whoever names a driver needs none
        return []


def _token(arguments: argparse.Namespace) -> Optional[str]:
    if arguments.token_file is None:
        return os.environ.get(TOKEN_VARIABLE)
    try:
        with open(arguments.token_file, encoding="ascii") as file:
            return file.readline().strip()
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidJobError(
            "could not read the token",
            where=f"--token-file {arguments.token_file}",
            why=f"{type(error).__name__}: {error}",
        ) from error


def _folder(arguments: argparse.Namespace) -> Optional[str]:
    """Relative to where the command is given, not to where the driver was started."""
    from flinkish.common.file_system import absolute_uri  # late: pyarrow takes 0.3 s

    return None if arguments.folder is None else absolute_uri(arguments.folder)


def _lives(job: dict[str, Any]) -> bool:
    return not JobStatus[job["state"]].is_globally_terminal_state()


def _wait_over(client: RestClient, job_id: str) -> None:
    """Until the job is over; a driver that has ended with it is asked in vain."""
    while True:
        try:
            if not _lives(client.job(job_id)):
                return
        except (ConnectionLostError, InvalidJobError):
            return
        time.sleep(_POLL_S)
