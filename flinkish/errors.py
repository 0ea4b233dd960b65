"""Every error that flinkish raises, as one tree.

    FlinkishError
    ├── UserError                    the job or its code is at fault
    │   ├── InvalidJobError          the graph, a type or an option cannot work (found before launch)
    │   │   ├── UnpicklableFunctionError   a function captures what cannot travel
    │   │   ├── ConfigurationError         an option has a value that cannot be used
    │   │   └── MissingCallError           a method that another call must come before
    │   ├── UnstableKeyError         a key has no encoding that is the same in each process
    │   ├── StateMigrationError      saved state does not fit what the program declares now
    │   └── UserFunctionError        user code raised; carries its traceback, operator and record
    ├── ExternalError                the machine, the cluster or a service is at fault
    │   ├── ResourceError            slots, Java, memory, ports
    │   │   ├── NotEnoughSlotsError
    │   │   ├── JavaNotFoundError
    │   │   └── UnsupportedSparkError
    │   ├── SlotLostError            a slot process or its host is gone
    │   ├── LeadershipLostError      another driver leads the job now
    │   ├── CheckpointFailedError    a checkpoint or savepoint did not complete
    │   ├── CheckpointStorageError   files of checkpoints cannot be written or read
    │   │   └── CorruptSnapshotError     a file is cut off or damaged
    │   └── ConnectionLostError      a peer went away or did not answer in time
    │       └── AuthenticationError  a peer did not prove the job's secret
    ├── InternalError                flinkish broke one of its own rules
    ├── JobCancelledError            the job was cancelled while somebody waited for it
    └── TaskCancelled                raised inside user code of a task that is being cancelled

An error is shown in four lines, what, where, why, do::

    could not place operator "dedupe"
      where: job 9f3c, slot sharing group "default"
      why: it needs 4 slots, the cluster has 2
      do: lower the parallelism, or start Spark with more cores

The parts are fields, so code can act on them; `domain` ("user", "external", "internal") and
`retryable` drive the restart strategy.  Every error survives pickle, because it crosses Spark.
"""

from __future__ import annotations

from typing import Any, ClassVar


class FlinkishError(Exception):
    """Base of the tree.

    Args:
        what: one lowercase sentence fragment, no full stop: what failed.
        where: job, operator, subtask, file: where it failed.
        why: the cause, with the numbers.
        do: what the user can do about it.
    """

    domain: ClassVar[str] = "internal"
    retryable: ClassVar[bool] = False

    def __init__(self, what: str, *, where: str = "", why: str = "", do: str = "", **fields: Any):
        super().__init__(what)
        self.what, self.where, self.why, self.do = what, where, why, do
        self.fields = fields

    def __str__(self) -> str:
        lines = [self.what]
        for label in ("where", "why", "do"):
            text = getattr(self, label)
            if text:
                lines.append(f"  {label}: {text}")
        return "\n".join(lines)

    def __reduce__(self):
        return _rebuild, (type(self), self.what, self.where, self.why, self.do, self.fields)


def _rebuild(cls: type[FlinkishError], what: str, where: str, why: str, do: str, fields: dict):
    return cls(what, where=where, why=why, do=do, **fields)


class UserError(FlinkishError):
    domain = "user"


class InvalidJobError(UserError):
    """The graph, a type or an option cannot work; raised before anything is launched."""


class UnpicklableFunctionError(InvalidJobError):
    """A function or one of the variables that it captures cannot be pickled, or not unpickled in a slot."""


class ConfigurationError(InvalidJobError):
    """An option has a value that cannot be used."""


class MissingCallError(InvalidJobError, AttributeError):
    """A stream does not have a method that it would have after another call.  ``hasattr`` says that it has none."""


class UnstableKeyError(UserError):
    """A key has no encoding that is the same in each process, or is not of its declared type, so it
    cannot choose a subtask."""


class StateMigrationError(UserError):
    """State was saved in a form that the classes and types of the program cannot take (Flink's
    StateMigrationException)."""


class UserFunctionError(UserError):
    """User code raised.

    ``str()`` shows the user's traceback first, then one line with operator, subtask and record.

    Fields:
        traceback_text: the formatted traceback, engine frames folded.
        operator, subtask, record: where; ``record`` is a bounded ``repr``.
        exception_type, exception_message: of the user's exception.
    """

    retryable = True

    def __str__(self) -> str:
        return f"{self.fields.get('traceback_text', '').rstrip()}\n{self.what}".lstrip("\n")


class ExternalError(FlinkishError):
    domain = "external"
    retryable = True


class ResourceError(ExternalError):
    retryable = False


class NotEnoughSlotsError(ResourceError):
    """The job needs more slots than the cluster has, or none became free in time."""


class JavaNotFoundError(ResourceError):
    """Spark needs a Java runtime and there is none, or it is too old."""


class UnsupportedSparkError(ResourceError):
    """This kind of Spark session cannot carry the slots."""


class SlotLostError(ExternalError):
    """A slot process, its supervisor or its host is gone."""


class LeadershipLostError(ExternalError):
    """This driver does not lead the job any more; another one may run it from its newest checkpoint."""

    retryable = False


class CheckpointStorageError(ExternalError):
    """The storage of checkpoints refused or failed to write, read or delete."""


class CorruptSnapshotError(CheckpointStorageError):
    """A file of a checkpoint is cut off, damaged, or of a newer version; reading it again will not help.

    Fields:
        completed: False where the folder has no `_metadata`, so that nothing of the checkpoint is published.
    """

    retryable = False


class CheckpointFailedError(ExternalError):
    """A checkpoint or savepoint did not complete.

    Fields:
        checkpoint_id: of the checkpoint, where it had begun.
        reason: name of a ``messages.checkpoints.CheckpointFailureReason``, where there is one.
        location: of a savepoint that is complete although what was asked for has failed.
    """


class ConnectionLostError(ExternalError):
    """A peer went away or did not answer in time."""


class AuthenticationError(ConnectionLostError):
    """A peer did not prove the secret; nothing it sent was unpickled."""

    retryable = False


class InternalError(FlinkishError):
    """flinkish broke one of its own rules."""


class JobCancelledError(FlinkishError):
    domain = "user"


class TaskCancelled(BaseException):
    """Raised inside user code of a task that is being cancelled; not an ``Exception`` on purpose."""
