"""What ``doctor`` runs where slots would live: in a task of an executor, and in child processes.

Its source text travels to the executors, so it needs nothing but Python's standard library there (a
child process that tries the checkpoint storage needs pyarrow).  It unpickles nothing: what comes over a
socket is a line of JSON of bounded length, and both sides say the token of this examination first.

One task::

    driver  <-- {token, index, address} --  task        the task listens on the address
    driver  --- {token, time_ms} ----------> task        at once: the difference of their clocks
    driver  --- {token, peers} ------------> task        when all are there, or those that will be
    driver  <-- {token, report} -----------  task        it has connected to each peer
    driver  --- {token} -------------------> task        all have: it stops listening
"""

from __future__ import annotations

import contextlib
import hmac
import importlib.machinery
import importlib.metadata
import json
import os
import platform
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Optional, Sequence

LINE_BYTES_MAX = 256 * 1024
_PEER_THREADS = 8


class ProtocolError(Exception):
    """The other side is no part of this examination."""


def send_line(sock: socket.socket, token: str, message: dict) -> None:
    sock.sendall(json.dumps({**message, "token": token}).encode() + b"\n")


def parse_line(line: bytes, token: str) -> dict:
    try:
        message = json.loads(line)
    except ValueError:
        message = None
    if not isinstance(message, dict) or not hmac.compare_digest(str(message.get("token")), token):
        raise ProtocolError("it does not know the token of this examination")
    return message


class LineReader:
    """The messages that come over a socket, one after the other."""

    def __init__(self, sock: socket.socket, token: str):
        self._sock, self._token = sock, token
        self._data = bytearray()

    def read(self, deadline_s: float) -> dict:
        """The next one; ``deadline_s``: of ``time.monotonic()``."""
        while b"\n" not in self._data:
            self._sock.settimeout(max(0.001, deadline_s - time.monotonic()))
            part = self._sock.recv(65536)
            if not part:
                raise ProtocolError("it closed the connection")
            self._data += part
            if len(self._data) > LINE_BYTES_MAX:
                raise ProtocolError("its message is too long")
        line, _, rest = bytes(self._data).partition(b"\n")
        self._data = bytearray(rest)
        return parse_line(line, self._token)


def failure_text(error: BaseException) -> str:
    if isinstance(error, TimeoutError):
        return "no answer in time"
    return str(getattr(error, "strerror", None) or error or type(error).__name__)


# ---- in a task of an executor ---------------------------------------------------------------------------


def probe(task: dict) -> dict:
    """One task of the examination.

    Args:
        task: index, token, driver_addresses, budget_s, connect_timeout_s, sys_path, modules,
            local_folders, storage (None or uri and folder), source (the text of this module).
    Returns:
        The report: JSON values only.
    """
    deadline_s = time.monotonic() + task["budget_s"]
    report = {"index": task["index"], **_facts(task)}
    with contextlib.ExitStack() as open_things:
        storage = _Storage(task, deadline_s) if task["storage"] is not None else None
        driver = _connect_to_driver(task, report)
        if driver is not None:
            open_things.enter_context(driver)
            answers = LineReader(driver, task["token"])
            report["address"] = driver.getsockname()[0]
            try:
                listener = open_things.enter_context(_PeerListener(report["address"], task["token"]))
                _meet(task, report, driver, answers, listener, deadline_s)
            except (OSError, ProtocolError) as error:
                report["meeting_failure"] = failure_text(error)
        report["local_disk"] = [_try_folder(folder) for folder in task["local_folders"]]
        if storage is not None:
            report["storage"] = storage.result()
        if driver is not None:
            with contextlib.suppress(OSError, ProtocolError):  # then the report goes by Spark alone
                send_line(driver, task["token"], {"report": report})
                answers.read(deadline_s)  # the peers of this task have connected
    return report


def _facts(task: dict) -> dict:
    paths = [*sys.path, *(path for path in task["sys_path"] if os.path.exists(path))]
    return {
        "host": socket.gethostname(),
        "pid": os.getpid(),
        "python": platform.python_version(),
        "modules": {name: version_of(name, paths) for name in task["modules"]},
        "address_space_bytes": _address_space_bytes(),
        "container_bytes": _container_bytes(),
        "available_bytes": _available_bytes(),
    }


def version_of(module: str, paths: Sequence[str]) -> Optional[str]:
    """Version of a module on these paths; "" where it has none, None where it is missing."""
    if importlib.machinery.PathFinder.find_spec(module, list(paths)) is None:
        return None
    for found in importlib.metadata.distributions(name=module, path=list(paths)):
        return found.version
    return ""


def _address_space_bytes() -> Optional[int]:
    try:
        import resource
    except ImportError:  # not on Windows
        return None
    soft = resource.getrlimit(resource.RLIMIT_AS)[0]
    return None if soft == resource.RLIM_INFINITY else soft


def _container_bytes() -> Optional[int]:
    """The limit of this process's control group, versions 2 and 1; None: none."""
    try:
        with open("/proc/self/cgroup") as file:
            groups = [line.rstrip("\n").split(":", 2) for line in file]
    except OSError:
        return None
    limits = []
    for _, controllers, group in groups:
        root, name = "/sys/fs/cgroup", "memory.max"
        if "memory" in controllers.split(","):
            root, name = "/sys/fs/cgroup/memory", "memory.limit_in_bytes"
        elif controllers:
            continue
        # Inside a container the path may be the host's; the limit then stands at the root.
        for folder in (root + group, root):
            with contextlib.suppress(OSError):
                with open(os.path.join(folder, name)) as file:
                    text = file.read().strip()
                if text.isdigit() and int(text) < 1 << 60:  # version 1 has a huge number for none
                    limits.append(int(text))
                break
    return min(limits, default=None)


def _available_bytes() -> Optional[int]:
    try:
        with open("/proc/meminfo") as file:
            for line in file:
                if line.startswith("MemAvailable:"):
                    return int(line.split()[1]) * 1024
    except OSError:
        pass  # another system, which has no such file
    return None


def _connect_to_driver(task: dict, report: dict) -> Optional[socket.socket]:
    """Tries the addresses in order; each failure goes into the report."""
    report["driver"] = tried = []
    for host, port in task["driver_addresses"]:
        began = time.monotonic()
        try:
            sock = socket.create_connection((host, port), task["connect_timeout_s"])
        except OSError as error:
            tried.append({"address": f"{host}:{port}", "failure": failure_text(error)})
            continue
        took_ms = (time.monotonic() - began) * 1000
        tried.append({"address": f"{host}:{port}", "failure": "", "ms": round(took_ms, 2)})
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return sock
    return None


def _meet(
    task: dict,
    report: dict,
    driver: socket.socket,
    answers: LineReader,
    listener: "_PeerListener",
    deadline_s: float,
) -> None:
    """Say that this task is there, hear of the others, connect to each."""
    token = task["token"]
    sent_ms = time.time() * 1000
    send_line(driver, token, {"index": task["index"], "address": listener.address})
    answer = answers.read(deadline_s)
    came_ms = time.time() * 1000
    report["clock_ahead_ms"] = round((sent_ms + came_ms) / 2 - answer["time_ms"], 1)
    report["clock_error_ms"] = round((came_ms - sent_ms) / 2, 1)
    peers = answers.read(deadline_s)["peers"]
    others = [peer for peer in peers if peer["index"] != task["index"]]

    def try_peer(peer: dict) -> dict:
        host, port = peer["address"]
        result = {"index": peer["index"], "address": f"{host}:{port}", "failure": ""}
        try:
            with socket.create_connection((host, port), task["connect_timeout_s"]) as sock:
                send_line(sock, token, {})
                LineReader(sock, token).read(time.monotonic() + task["connect_timeout_s"])
        except (OSError, ProtocolError) as error:
            result["failure"] = failure_text(error)
        return result

    with ThreadPoolExecutor(_PEER_THREADS) as pool:
        report["peers"] = list(pool.map(try_peer, others))


class _PeerListener:
    """Listens as a slot does, on the address by which the driver is reached, and answers who has the
    token."""

    def __init__(self, host: str, token: str):
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._token = token
        self._socket = socket.socket(family)
        self._socket.bind((host, 0))
        self._socket.listen(64)
        self.address = self._socket.getsockname()[:2]
        self._thread = threading.Thread(target=self._accept, name="flinkish doctor", daemon=True)

    def __enter__(self) -> "_PeerListener":
        self._thread.start()
        return self

    def __exit__(self, *_: Any) -> None:
        # On Linux this ends accept() in the thread; elsewhere close() does.
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        self._thread.join(1)

    def _accept(self) -> None:
        while True:
            try:
                peer, _ = self._socket.accept()
            except OSError:
                return  # closed
            with peer, contextlib.suppress(OSError, ProtocolError):
                LineReader(peer, self._token).read(time.monotonic() + 1)
                send_line(peer, self._token, {})


def _try_folder(folder: Optional[str]) -> dict:
    """Write and read in a local folder (None: the temporary one), and count its free bytes."""
    folder = folder or tempfile.gettempdir()
    result: dict[str, Any] = {"folder": folder, "failure": ""}
    data = os.urandom(1 << 16)
    try:
        with tempfile.TemporaryFile(dir=folder) as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
            file.seek(0)
            if file.read() != data:
                result["failure"] = "it does not give back what was written"
        result["free_bytes"] = shutil.disk_usage(folder).free
    except OSError as error:
        result["failure"] = failure_text(error)
    return result


# ---- checkpoint storage, in a process that can be killed -----------------------------------------------


class _Storage:
    """The check of the storage from this task, beside its other checks."""

    def __init__(self, task: dict, deadline_s: float):
        self._pool = ThreadPoolExecutor(1)
        arguments = {"action": "use", "index": task["index"], **task["storage"]}
        budget_s = max(0.1, deadline_s - time.monotonic() - 0.5)
        self._done = self._pool.submit(run_storage_process, task["source"], arguments, budget_s)

    def result(self) -> dict:
        self._pool.shutdown()
        return self._done.result()


def run_storage_process(source: str, arguments: dict, timeout_s: float) -> dict:
    """Run ``use_storage`` of the module with this text in a fresh interpreter.

    Returns:
        What it returned; after ``timeout_s``, or when it ended in another way, only a failure.
    """
    command = [sys.executable, "-c", source, json.dumps(arguments)]
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=timeout_s
        )
    except subprocess.TimeoutExpired:
        return {"failure": f"no answer within {timeout_s:.1f} s"}
    except OSError as error:
        return {"failure": f"could not start {sys.executable}: {failure_text(error)}"}
    if done.returncode:
        lines = done.stderr.strip().splitlines()
        return {"failure": lines[-1] if lines else f"exit code {done.returncode}"}
    return json.loads(done.stdout)


def use_storage(action: str, uri: str, folder: str, index: int = 0, made: str = "") -> dict:
    """One step of the check of checkpoint storage.

    Args:
        action: "prepare" (driver: make the folder and a file in it), "use" (task: read that file, then
            write, rename, read and delete one of its own), "remove" (driver: what "prepare" has made).
        uri: of the storage.
        folder: name of the folder for this examination, below it.
        made: what "prepare" returned: the uppermost folder that it had to make.
    Returns:
        ``failure``, "" where there was none.
    """
    from pyarrow import fs

    if uri.startswith("/"):
        system, base = fs.LocalFileSystem(), uri
    else:
        system, base = fs.FileSystem.from_uri(uri)
    base = base.rstrip("/")
    own, marker = f"{base}/{folder}", f"{base}/{folder}/driver"
    try:
        if action == "prepare":
            made = _first_missing(system, base, fs)
            system.create_dir(own, recursive=True)
            try:
                _write_rename_read(system, f"{marker}.new", marker)
            except OSError:
                _remove(system, own, made, fs)
                raise
            return {"failure": "", "made": made}
        if action == "use":
            if system.get_file_info(marker).type != fs.FileType.File:
                return {"failure": "what the driver has written there is not seen here: it is another disk"}
            name = f"{own}/slot-{index}"
            _write_rename_read(system, f"{name}.new", name)
            system.delete_file(name)
            return {"failure": ""}
        _remove(system, own, made, fs)
        return {"failure": ""}
    except OSError as error:
        return {"failure": failure_text(error)}


def _remove(system: Any, own: str, made: str, fs: Any) -> None:
    system.delete_dir(own)
    if made:
        left = system.get_file_info(fs.FileSelector(made, recursive=True, allow_not_found=True))
        if all(info.type == fs.FileType.Directory for info in left):  # no job has come meanwhile
            system.delete_dir(made)


def _first_missing(system: Any, path: str, fs: Any) -> str:
    """The uppermost folder on the way to ``path`` that is not there; "" when all are."""
    missing = ""
    while path.strip("/") and system.get_file_info(path).type == fs.FileType.NotFound:
        missing, path = path, path.rsplit("/", 1)[0]
    return missing


def _write_rename_read(system: Any, name: str, final_name: str) -> None:
    data = os.urandom(1024)
    with system.open_output_stream(name) as stream:
        stream.write(data)
    system.move(name, final_name)
    with system.open_input_stream(final_name) as stream:
        if stream.read() != data:
            raise OSError("it does not give back what was written")


if __name__ == "__main__":
    print(json.dumps(use_storage(**json.loads(sys.argv[1]))))
