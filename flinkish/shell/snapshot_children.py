"""Forked children that write state as it was when they were forked.

A child inherits none of the slot's duties (`SlotProcess._in_forked_child`), runs nobody's exit handlers, and
answers by a pipe.  One that dies has failed.  Children queue up in *lanes*, and one of each lane works at a time;
one that waits has the memory of its fork all the same.  Checkpoints and bases have a lane each, so that no checkpoint
waits for a base.
"""

from __future__ import annotations

import gc
import io
import os
import pickle
import signal
import tempfile
import warnings
from contextlib import suppress
from dataclasses import dataclass, field
from typing import IO, Any, BinaryIO, Callable, Collection, Hashable, Mapping, NoReturn, Optional, Union

from flinkish.errors import CheckpointFailedError, FlinkishError, ResourceError
from flinkish.messages.checkpoints import Bytes, InlineBytes
from flinkish.shell.event_loop import EventLoop
from flinkish.storage.checkpoint_storage import CheckpointStorage

CHECKPOINTS, BASES = "checkpoints", "bases"

_NICENESS = 10  # records go first
_READ_BYTES = 1 << 20

Contents = dict[str, Bytes]
Writers = Mapping[str, Callable[[BinaryIO], Any]]
Files = dict[str, IO[bytes]]


@dataclass
class _Child:
    lane: str
    done: Callable[[Union[Contents, FlinkishError], Files], None]
    files: Files
    pid: int
    answer_fd: int
    go_fd: int  # it works when something comes here
    working: bool = False
    answer: bytearray = field(default_factory=bytearray)


class SnapshotChildren:
    """Lives in the loop's thread; all methods are called there."""

    def __init__(self, loop: EventLoop):
        self._loop = loop
        self._children: dict[Hashable, _Child] = {}  # in the order of their forks

    def __len__(self) -> int:
        return len(self._children)

    def pids(self, working: Optional[bool] = None) -> list[int]:
        """Of all, or of those that do or do not work now, in the order of their forks."""
        return [child.pid for child in self._children.values() if working is None or child.working is working]

    def fork(
        self,
        key: Hashable,
        lane: str,
        writers: Writers,
        through_files: Collection[str],
        storage: Optional[CheckpointStorage],
        location: str,
        done: Callable[[Union[Contents, FlinkishError], Files], None],
    ) -> None:
        """Call each writer in a child.

        Args:
            key: nobody else's who has not ended yet.
            writers: by name.
            through_files: names of what the child writes to a file without a name; ``done`` gets those.
            storage: the child stores all else in ``location``; None: into its answer.
            done: (contents without those in files, files), or (error, nothing).  Not called when it is killed.
        Raises:
            ResourceError: there is no process for it.
        """
        files: Files = {name: tempfile.TemporaryFile() for name in through_files}
        answer_fd, answers_fd = os.pipe()
        goes_fd, go_fd = os.pipe()
        inherited = [answer_fd, go_fd, *(child.go_fd for child in self._children.values())]
        try:
            with warnings.catch_warnings():
                # Threads of pyarrow and C libraries; the child uses none of them.
                warnings.simplefilter("ignore", DeprecationWarning)
                pid = os.fork()
        except OSError as error:
            for fd in (answer_fd, answers_fd, goes_fd, go_fd):
                os.close(fd)
            close_files(files)
            raise ResourceError(
                "could not fork a process that writes a snapshot",
                why=f"{type(error).__name__}: {error}",
                do="give the machine more memory or processes (ulimit -u)",
            ) from error
        if pid == 0:
            _be_child(writers, files, storage, location, answers_fd, goes_fd, inherited)
        os.close(answers_fd)
        os.close(goes_fd)
        os.set_blocking(answer_fd, False)
        self._children[key] = _Child(lane, done, files, pid, answer_fd, go_fd)
        self._loop.register(answer_fd, "r", lambda readable, writable: self._on_answer(key))
        self._let_next_work(lane)

    def kill(self, key: Hashable) -> None:
        """If there is one.  To wait here for the end of its memory would take long: it goes when its pipe has ended."""
        child = self._children.get(key)
        if child is not None:
            self._kill(child)

    def close(self) -> None:
        while self._children:
            _, child = self._children.popitem()
            self._kill(child)
            self._end(child)

    def _let_next_work(self, lane: str) -> None:
        first = next((child for child in self._children.values() if child.lane == lane), None)
        if first is not None and not first.working:
            first.working = True
            with suppress(BrokenPipeError):  # it has died, as its answer is about to tell
                os.write(first.go_fd, b"g")

    def _on_answer(self, key: Hashable) -> None:
        child = self._children[key]
        try:
            part = os.read(child.answer_fd, _READ_BYTES)
        except BlockingIOError:
            return
        if part:
            child.answer += part
            return
        del self._children[key]
        status = self._end(child)
        self._let_next_work(child.lane)
        if child.done is _nobody:
            return
        try:
            answer: Any = pickle.loads(child.answer)
        except (pickle.UnpicklingError, EOFError):
            answer = _died(status)
        if isinstance(answer, FlinkishError):
            close_files(child.files)
            child.files = {}
        child.done(answer, child.files)

    @staticmethod
    def _kill(child: _Child) -> None:
        with suppress(ProcessLookupError):
            os.kill(child.pid, signal.SIGKILL)
        close_files(child.files)
        child.done = _nobody

    def _end(self, child: _Child) -> Optional[int]:
        """Release what the parent has of it; its wait status, None when somebody else has taken that."""
        self._loop.unregister(child.answer_fd)
        os.close(child.answer_fd)
        os.close(child.go_fd)
        try:
            return os.waitpid(child.pid, 0)[1]
        except ChildProcessError:  # user code waits for any child
            return None


def _nobody(answer: Any, files: Files) -> None:
    """Hears what a killed one would have said."""


def close_files(files: Files) -> None:
    for file in files.values():
        file.close()


def _died(status: Optional[int]) -> CheckpointFailedError:
    why = "it ended without an answer"
    if status is not None and os.WIFSIGNALED(status):
        why = f"it was killed by signal {os.WTERMSIG(status)}"
    return CheckpointFailedError(
        "could not write a snapshot",
        why=f"the process that writes it has died: {why}",
        do="look for an out-of-memory killer in the log of its machine, and give the executors more memory",
    )


# ---- in the child -------------------------------------------------------------------------------


def _be_child(
    writers: Writers,
    files: Files,
    storage: Optional[CheckpointStorage],
    location: str,
    answers_fd: int,
    goes_fd: int,
    inherited: list[int],
) -> NoReturn:
    """Write, answer, end without anybody's exit handlers."""
    try:
        for fd in inherited:
            os.close(fd)
        gc.disable()  # a pass would touch, and so copy, the memory of all objects
        os.nice(_NICENESS)
        if os.read(goes_fd, 1):  # else the parent is gone
            answer = memoryview(pickle.dumps(_written(writers, files, storage, location)))
            # The pipe stays open: the kernel closes it when it has given back our memory, which takes 100 ms a GB
            # or, as we are nice, much longer, and the parent waits for our end when it sees the pipe's.
            while answer:
                answer = answer[os.write(answers_fd, answer) :]
    finally:
        os._exit(0)


def _written(
    writers: Writers, files: Files, storage: Optional[CheckpointStorage], location: str
) -> Union[Contents, FlinkishError]:
    """Those that are written to ``files`` left out."""
    contents: Contents = {}
    try:
        for name, write in writers.items():
            if name in files:
                write(files[name])  # type: ignore[arg-type]
                files[name].flush()
            elif storage is None:
                buffer = io.BytesIO()
                write(buffer)
                contents[name] = InlineBytes(buffer.getvalue())
            else:
                with storage.create_file(location) as stream:
                    write(stream)  # type: ignore[arg-type]
                contents[name] = stream.close()
    except FlinkishError as error:
        return error
    except BaseException as error:  # whatever it is, the parent must hear of it
        return CheckpointFailedError(
            "could not write a snapshot", where=location, why=f"{type(error).__name__}: {error}"
        )
    return contents
