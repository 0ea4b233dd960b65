"""The JobManager's end of one source: its enumerator, and the readers that have registered.

The enumerator is user code that may wait for a service, so the shell gives each coordinator a
worker thread of its own, on which all methods here run, one after the other in the order of what
the readers sent.  Nothing here starts a thread or sends a byte by itself.

Its snapshot is the enumerator's state behind a header with a format version.  What it sends after the snapshot
is held by the JobMaster until the readers know of the checkpoint (``coordinator_gateway``).

When readers restart and the enumerator goes on, ``reset_subtask`` gives it back what they have got since their
checkpoint (``split_assignment_tracker``).  Each message carries the attempt of the reader that it comes from or is for,
so that nothing which was meant for the reader before reaches the new one.
"""

from __future__ import annotations

import pickle
from typing import Any, Callable, Optional

import cloudpickle

from flinkish.common.user_traceback import format_user_traceback, message_of
from flinkish.connectors.spi import ReaderInfo, Source, SplitEnumerator, SplitEnumeratorContext
from flinkish.errors import FlinkishError, InvalidJobError, StateMigrationError, UserFunctionError
from flinkish.jobmanager.split_assignment_tracker import SplitAssignmentTracker
from flinkish.messages.control import (
    SourceAddSplits,
    SourceCustomEvent,
    SourceNoMoreSplits,
    SourceRegister,
    SourceRequestSplit,
)

_HEADER = b"FLKC\x01"  # the last byte is the version of the format

AsyncCall = Callable[[Callable[[], Any], Callable[[Any, Optional[BaseException]], None], Optional[int]], None]


class SourceCoordinator(SplitEnumeratorContext):
    """Runs the enumerator of ``source`` and is its context.

    Args:
        source: as the user made it, in the driver.
        name: of the operator, for errors.
        parallelism: of the source.
        send: gives ``(subtask, attempt, payload)`` to the JobManager; any thread may call it.
        state: what ``snapshot`` returned, of the checkpoint to go on from; None: there is none.
        tracks_splits: readers may restart while the enumerator goes on.
        call_async: runs a call beside this thread and its handler on it, see the SPI.
    """

    def __init__(
        self,
        source: Source,
        name: str,
        parallelism: int,
        send: Callable[[int, int, Any], None],
        call_async: AsyncCall,
        state: Optional[bytes] = None,
        tracks_splits: bool = False,
    ):
        self.name = name
        self._source = source
        self._parallelism = parallelism
        self._send = send
        self._call_async = call_async
        self._state = state
        self._enumerator: Optional[SplitEnumerator] = None
        self._readers: dict[int, ReaderInfo] = {}
        self._attempts: dict[int, int] = {}  # of those readers
        self._tracker = SplitAssignmentTracker() if tracks_splits else None

    # ---- called by the shell, on the coordinator's thread ---------------------------------------

    def start(self) -> None:
        state, self._state = self._state, None
        if state is None:
            self._enumerator = self._source.create_enumerator(self)
        else:
            self._enumerator = self._source.restore_enumerator(self, self._decode(state))
        self._enumerator.start()

    def handle(self, subtask: int, attempt: int, payload: Any) -> None:
        """What a reader of that attempt has sent."""
        enumerator = self._enumerator
        if enumerator is None:
            return  # it failed to start; the job is failing
        match payload:
            case SourceRegister(host):
                self._readers[subtask], self._attempts[subtask] = ReaderInfo(subtask, host), attempt
                enumerator.add_reader(subtask)
            case SourceRequestSplit(host):
                enumerator.handle_split_request(subtask, host)
            case SourceCustomEvent(event):
                enumerator.handle_source_event(subtask, cloudpickle.loads(event))
            case _:
                raise InvalidJobError(
                    f'source "{self.name}" got a {type(payload).__name__}',
                    why="its coordinator knows register, request split and custom event",
                    do="send events by SourceReaderContext.send_source_event",
                )

    def snapshot(self, checkpoint_id: int) -> bytes:
        """The enumerator's state.

        Raises:
            InvalidJobError: it has not started.
        """
        enumerator = self._enumerator
        if enumerator is None:
            raise InvalidJobError(f'enumerator of source "{self.name}" has not started')
        state = _HEADER + cloudpickle.dumps(enumerator.snapshot_state(checkpoint_id), protocol=5)
        if self._tracker is not None:
            self._tracker.snapshot(checkpoint_id)
        return state

    def reset_subtask(self, subtask: int, checkpoint_id: int) -> None:
        """The reader has ended, and another one will go on from this checkpoint, 0: from its beginning."""
        enumerator = self._enumerator
        if enumerator is None:
            return  # it failed to start; the job is failing
        assert self._tracker is not None, "its splits are not tracked"
        self._readers.pop(subtask, None)
        splits = [split for blob in self._tracker.take(subtask, checkpoint_id) for split in cloudpickle.loads(blob)]
        if splits:
            enumerator.add_splits_back(splits, subtask)

    def _decode(self, state: bytes) -> Any:
        if not state.startswith(_HEADER):
            raise StateMigrationError(
                f'could not restore the enumerator of source "{self.name}"',
                why=f"its state begins with {state[: len(_HEADER)]!r}, this flinkish reads {_HEADER!r}",
                do="restore with the flinkish that has written it",
            )
        try:
            return pickle.loads(state[len(_HEADER) :])
        except Exception as error:  # unpickling imports modules and runs code of the user's classes
            raise StateMigrationError(
                f'could not restore the enumerator of source "{self.name}"',
                why=f"its state cannot be unpickled: {type(error).__name__}: {error}",
                do="keep the classes of its state where they were, and able to read what they wrote",
            ) from error

    def notify_checkpoint_complete(self, checkpoint_id: int) -> None:
        if self._tracker is not None:
            self._tracker.complete(checkpoint_id)
        if self._enumerator is not None:
            self._enumerator.notify_checkpoint_complete(checkpoint_id)

    def close(self) -> None:
        enumerator, self._enumerator = self._enumerator, None
        if enumerator is not None:
            enumerator.close()

    # ---- SplitEnumeratorContext -----------------------------------------------------------------

    def current_parallelism(self) -> int:
        return self._parallelism

    def registered_readers(self) -> dict[int, ReaderInfo]:
        return dict(self._readers)

    def assign_split(self, split: Any, subtask_id: int) -> None:
        self._must_be_registered(subtask_id, "a split")
        splits = cloudpickle.dumps([split], protocol=5)
        if self._tracker is not None:
            self._tracker.assigned(subtask_id, splits)
        self._say(subtask_id, SourceAddSplits(splits))

    def signal_no_more_splits(self, subtask_id: int) -> None:
        self._must_be_registered(subtask_id, "the end of splits")
        self._say(subtask_id, SourceNoMoreSplits())

    def send_event_to_source_reader(self, subtask_id: int, event: Any) -> None:
        self._must_be_registered(subtask_id, "an event")
        self._say(subtask_id, SourceCustomEvent(cloudpickle.dumps(event, protocol=5)))

    def _say(self, subtask_id: int, payload: Any) -> None:
        self._send(subtask_id, self._attempts[subtask_id], payload)

    def call_async(
        self,
        call: Callable[[], Any],
        handler: Callable[[Any, Optional[BaseException]], None],
        period_ms: Optional[int] = None,
    ) -> None:
        self._call_async(call, handler, period_ms)

    def _must_be_registered(self, subtask_id: int, what: str) -> None:
        if subtask_id not in self._readers:
            raise InvalidJobError(
                f'could not give {what} to reader {subtask_id} of source "{self.name}"',
                why=f"only these have registered: {sorted(self._readers)}",
                do="assign splits in add_reader or handle_split_request, or to registered_readers()",
            )


def enumerator_error(name: str, error: BaseException) -> FlinkishError:
    """What the job fails with when the enumerator of source ``name`` raises ``error``."""
    return user_error(f'enumerator of source "{name}" failed in the driver', error)


def user_error(what: str, error: BaseException) -> FlinkishError:
    """``error`` of user code in the driver as an error that shows the user's traceback first."""
    if isinstance(error, FlinkishError):
        return error
    return UserFunctionError(
        what,
        traceback_text=format_user_traceback(error),
        exception_type=type(error).__name__,
        exception_message=message_of(error),
    )
