"""How a job comes back after a failure: its cause, whether it may restart, what its next attempt waits for.

The JobMaster says what has happened; this core keeps the books, and says what follows from them::

    failed ──may_restart──> plan_restart ──tasks ended, delay over, checkpoint known, slots there──> deployed ──> end
       ^                        │
       └──fails once more───────┘        (a job that begins from a checkpoint is in here from its start)

What fails may be all tasks or some of them, and more may fail while those are to restart: the next attempt replaces
all that have.  The first failure is the attempt's cause.  One exception: when a slot dies, its peers may report the broken
connection before the loss of the slot is known; such a *consequence* gives way to the first failure that is none.

From the end of the restart strategy's delay until all tasks run, recovery has ``timeout_ms``.  A recovery that
takes long says every ten seconds what it waits for.

Invariants, see ``check``: a recovery that waits for its next attempt, or for tasks to run, has a deadline.

Source: Flink's ``ExecutionFailureHandler``.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Optional

from flinkish.errors import FlinkishError
from flinkish.jobmanager.exception_history import ExceptionHistory, RootException
from flinkish.jobmanager.failover_regions import Subtask
from flinkish.jobmanager.restart_strategy import NoRestart, RestartStrategy
from flinkish.messages.checkpoints import CompletedCheckpoint

if TYPE_CHECKING:
    import random

FOR_EVER_MS = 10**15
PROGRESS_MS = 10_000  # how often a recovery that takes long says so


@dataclass
class NextAttempt:
    """What it waits for; all of it, then it is deployed."""

    subtasks: frozenset[Subtask]  # that it replaces
    due_ms: int = 0  # the end of the restart strategy's delay
    tasks_ended: bool = True
    restore_asked: bool = False
    restore_known: bool = False
    checkpoint: Optional[CompletedCheckpoint] = None

    def is_ready(self, now_ms: int) -> bool:
        """Whether it misses nothing but slots."""
        return self.tasks_ended and self.restore_known and now_ms >= self.due_ms

    def widen(self, subtasks: frozenset[Subtask]) -> None:
        """These have failed too, and are to end first."""
        self.subtasks |= subtasks
        self.tasks_ended = self.restore_asked = self.restore_known = False


@dataclass
class Recovery:
    """See the module.  ``rng``: for the jitter of the strategy; a job that may restart needs it."""

    strategy: RestartStrategy
    timeout_ms: int
    rng: "Optional[random.Random]" = None
    cause: Optional[FlinkishError] = None
    cause_is_consequence: bool = False
    failures: int = 0  # since all tasks ran
    exceptions: ExceptionHistory = field(default_factory=ExceptionHistory)
    next_attempt: Optional[NextAttempt] = None
    began_ms: Optional[int] = None  # when the attempt failed, or was stopped, that the job goes on from
    deadline_ms: int = FOR_EVER_MS
    progress_ms: int = FOR_EVER_MS  # when it is said next how far it is

    # ---- failures -------------------------------------------------------------------------------

    def failed(
        self,
        error: FlinkishError,
        now_ms: int,
        attempt: int,
        task: Optional[str] = None,
        consequence: bool = False,
    ) -> None:
        """``error`` is the cause from now on."""
        self.cause, self.cause_is_consequence = error, consequence
        self.failures += 1
        self.exceptions.add(RootException(now_ms, attempt, error, task))

    def another(self, error: FlinkishError, now_ms: int, attempt: int, task: Optional[str]) -> None:
        """It has failed while others were to restart, and restarts with them."""
        self.exceptions.add_beside(RootException(now_ms, attempt, error, task))

    def improve_cause(self, error: FlinkishError, consequence: bool, task: Optional[str]) -> bool:
        """Another failure of the same attempt.  Whether it is the cause now."""
        if not self.cause_is_consequence or consequence:
            return False
        self.cause, self.cause_is_consequence = error, False
        self.exceptions.replace_last(error, task)
        return True

    def forgiven(self) -> None:
        """The next attempt has begun, or needs not to."""
        self.cause = None

    # ---- restarts -------------------------------------------------------------------------------

    def may_restart(self, now_ms: int) -> bool:
        """Ask the restart strategy, once for each failure."""
        error = self.cause
        assert error is not None, "nothing has failed"
        if not error.retryable or isinstance(self.strategy, NoRestart):
            return False
        assert self.rng is not None, "a job that may restart needs a generator for the jitter"
        self.strategy.failed(now_ms, self.rng)
        if self.strategy.can_restart(now_ms):
            return True
        error.fields.setdefault("not_restarted", self.strategy.describe())
        return False

    def plan_restart(self, now_ms: int, subtasks: frozenset[Subtask]) -> int:
        """These tasks are to end, then the job goes on; returns the delay in ms."""
        delay_ms = self.strategy.delay_ms(now_ms)
        self._stop(now_ms, now_ms + delay_ms, subtasks)
        return delay_ms

    def plan_rescaling(self, now_ms: int, subtasks: frozenset[Subtask]) -> None:
        """The tasks are to end, then the job goes on otherwise, at once: nothing has failed."""
        self._stop(now_ms, now_ms, subtasks)

    def _stop(self, now_ms: int, due_ms: int, subtasks: frozenset[Subtask]) -> None:
        self.next_attempt = NextAttempt(subtasks, due_ms, tasks_ended=False)
        if self.began_ms is None:
            self.began_ms = now_ms
        self.begin(now_ms, due_ms)

    def plan_another_restart(self, now_ms: int) -> int:
        """It has failed once more since its tasks ended; returns the delay in ms."""
        waiting = self.next_attempt
        assert waiting is not None and waiting.tasks_ended
        delay_ms = self.strategy.delay_ms(now_ms)
        waiting.due_ms = now_ms + delay_ms
        waiting.restore_asked = waiting.restore_known = False
        self.begin(now_ms, waiting.due_ms)
        return delay_ms

    # ---- time -----------------------------------------------------------------------------------

    def begin(self, now_ms: int, due_ms: int) -> None:
        """The clock runs, from ``due_ms`` on."""
        self.deadline_ms = due_ms + self.timeout_ms
        self.progress_ms = max(now_ms, due_ms) + PROGRESS_MS

    def end(self) -> None:
        """All tasks run, or the job is given up."""
        self.failures = 0
        self.deadline_ms = self.progress_ms = FOR_EVER_MS

    def forgive(self, late_ms: int) -> None:
        """The JobManager itself was late: that counts against nobody."""
        self.deadline_ms += late_ms

    def is_too_late(self, now_ms: int) -> bool:
        return now_ms >= self.deadline_ms

    def take_progress(self, now_ms: int) -> bool:
        """Whether it is time to say how far it is."""
        if now_ms < self.progress_ms:
            return False
        self.progress_ms = now_ms + PROGRESS_MS
        return True

    def check(self) -> None:
        """Assert what holds between any two steps."""
        assert (self.deadline_ms >= FOR_EVER_MS) == (self.progress_ms >= FOR_EVER_MS)
        assert self.began_ms is None or self.next_attempt is None or self.deadline_ms < FOR_EVER_MS
