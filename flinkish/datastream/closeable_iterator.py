"""CloseableIterator: the records of a running job, in the driver."""

from __future__ import annotations

from typing import Any, Generic, Iterator, Optional, TypeVar

from flinkish.common.job_client import JobClient
from flinkish.errors import UserError

T = TypeVar("T")

__all__ = ["CloseableIterator"]


class CloseableIterator(Generic[T]):
    """Iterate, then close (or use ``with``); closing cancels a job that still runs.

    Args:
        records: has ``__next__`` and ``close()``; raises the job's error after the last record.
        job_client: the job; None: it is told by `attach`, before the first record is asked for.
    """

    def __init__(self, records: Any, job_client: Optional[JobClient] = None):
        self._records = records
        self._job_client = job_client
        self._over = False
        self._closed = False

    @property
    def job_client(self) -> Optional[JobClient]:
        return self._job_client

    def attach(self, job_client: JobClient) -> None:
        """The job has been submitted."""
        self._job_client = job_client

    def __iter__(self) -> Iterator[T]:
        return self

    def __next__(self) -> T:
        if self._job_client is None:
            raise UserError(
                "could not read the records of a stream",
                why="its job has not been started",
                do="call env.execute_async() first",
            )
        try:
            return next(self._records)
        except StopIteration:
            self._finish()
            raise

    def next(self) -> T:
        return self.__next__()

    def _finish(self) -> None:
        """All records are read: wait for the end of the job, so that its errors are not lost."""
        if not self._over and not self._closed:
            self._over = True
            assert self._job_client is not None
            self._job_client.wait()

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        self._records.close()
        client = self._job_client
        if client is not None and not self._over and not client.status.is_terminal_state():
            client.cancel().result(_CANCEL_TIMEOUT_MS)

    def __enter__(self) -> "CloseableIterator[T]":
        return self

    def __exit__(self, exc_type: Any, exc_val: Any, exc_tb: Any) -> None:
        self.close()


_CANCEL_TIMEOUT_MS = 60_000
