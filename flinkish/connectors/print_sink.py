"""Prints each record in the driver, where the user looks, not in a slot's log.

Lines have Flink's form: ``value`` at parallelism 1, ``2> value`` from the second of several subtasks,
``name> value`` and ``name:2> value`` with an identifier.  Values are shown by ``str``, those of a
declared type as Flink shows them (``flinkish.common.flink_text``).
"""

from __future__ import annotations

import logging
import queue
import sys
import threading
from typing import Any, Optional

from flinkish.common.arguments import check_argument
from flinkish.common.flink_text import printed_text
from flinkish.connectors.driver_writer import DriverWriter
from flinkish.connectors.spi import (
    Sink,
    SinkCoordinator,
    SinkCoordinatorContext,
    SinkWriter,
    WriterInitContext,
    each_encoded,
)

log = logging.getLogger(__name__)

_BATCH_LINES = 512
_WINDOW_BATCHES = 8
_CLOSE_TIMEOUT_S = 10.0


class PrintSink(Sink[Any]):
    """Prints records on the driver's standard output (or error output).

    >>> stream.sink_to(PrintSink("rides", to_stderr=True))
    """

    def __init__(self, identifier: str = "", to_stderr: bool = False):
        self.identifier = check_argument(identifier, str, "PrintSink()", "identifier")
        self.to_stderr = to_stderr
        self.record_type: Any = None

    def with_record_type(self, record_type: Any) -> "PrintSink":
        typed = PrintSink(self.identifier, self.to_stderr)
        typed.record_type = record_type
        return typed

    def create_writer(self, context: WriterInitContext) -> SinkWriter[Any]:
        return _PrintWriter(self.identifier, context, self.record_type)

    def create_coordinator(self, context: SinkCoordinatorContext) -> SinkCoordinator:
        return _PrintCoordinator(context, self.to_stderr)


def line_prefix(identifier: str, subtask: int, parallelism: int) -> str:
    """What stands before a value.

    >>> line_prefix("", 1, 4), line_prefix("rides", 1, 4), line_prefix("rides", 0, 1)
    ('2> ', 'rides:2> ', 'rides> ')
    """
    number = str(subtask + 1) if parallelism > 1 else ""
    prefix = ":".join(part for part in (identifier, number) if part)
    return f"{prefix}> " if prefix else ""


class _PrintWriter(DriverWriter[Any]):
    """Makes lines of the records."""

    def __init__(self, identifier: str, context: WriterInitContext, record_type: Any):
        super().__init__(context, _WINDOW_BATCHES, _BATCH_LINES)
        self._text = printed_text(record_type)
        self._prefix = line_prefix(
            identifier, context.index_of_subtask(), context.current_parallelism()
        )

    def encode(self, values: list[Any]) -> list[str]:
        prefix = self._prefix
        return [prefix + text for text in each_encoded(self._text, values)]


class _PrintCoordinator(SinkCoordinator):
    """Prints on a thread of its own: a terminal that is held must not hold the JobManager."""

    def __init__(self, context: SinkCoordinatorContext, to_stderr: bool):
        self._context = context
        self._to_stderr = to_stderr
        # Bounded by the writers' windows.
        self._batches: queue.SimpleQueue[Optional[tuple[int, int, list[str]]]] = queue.SimpleQueue()
        self._thread: Optional[threading.Thread] = None
        self._warned = False

    def handle(self, subtask: int, attempt: int, payload: Any) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._print, name="print-sink", daemon=True)
            self._thread.start()
        self._batches.put((subtask, attempt, payload))

    def _print(self) -> None:
        while (entry := self._batches.get()) is not None:
            subtask, attempt, lines = entry
            # Looked up each time: a notebook or a test may have replaced it.
            stream = sys.stderr if self._to_stderr else sys.stdout
            try:
                stream.write("\n".join(lines) + "\n")
                stream.flush()
            except (OSError, ValueError) as error:  # ``job.py | head``: the job goes on, as in Flink
                if not self._warned:
                    log.warning("could not print, lines are dropped error=%r", error)
                    self._warned = True
            self._context.send_to_writer(subtask, attempt)

    def close(self, error: Optional[BaseException]) -> None:
        """What has arrived is printed before the job counts as ended."""
        if self._thread is not None:
            self._batches.put(None)
            self._thread.join(_CLOSE_TIMEOUT_S)
