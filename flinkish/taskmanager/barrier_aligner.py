"""When a subtask takes its snapshot: pure, one for the channels of all its gates.

A channel whose barrier has been taken is *held* by its gate (it keeps frames and credits: that is the
backpressure) until an effect resumes it.  One checkpoint, exactly once::

    unknown ──first barrier, or an order──> ALIGNING ──every open channel has it──> snapshot, all resumed
                                               │
                                               ├──marker, newer barrier, abort──> given up, all resumed
                                               └──unaligned and its time is over──> OVERTAKING
    OVERTAKING (the snapshot is taken, what has not come yet is in flight) ──last barrier──> complete

A barrier that may overtake is *announced* when it arrives in the queue of its channel, so that the time counts
from there; the end of a channel too, because no barrier comes behind it.  When the time is over, a barrier
that was announced is taken out of turn, and what stood before it is in flight.  While OVERTAKING, an announcement is
the barrier.  The time begins when the JobManager began the checkpoint (or with the first barrier, should the
clock here be behind).

At least once: a barrier resumes its channel at once, several checkpoints may align at a time.

Moves of a channel: ``announced``, ``barrier``, ``cancelled`` (a marker), ``end_announced``, ``ended`` (counts as
the barrier of whatever is pending, FLIP-147).  Moves of the JobManager: ``ordered`` (to a subtask whose senders have
all finished, or that has none: what still comes from channels belongs before the barrier), ``aborted``.

Ids on a channel rise.  So what a channel has skipped never comes there, and is given up.  (Barriers that an
overtaking one finds before it in a queue are dropped there: they are of checkpoints that are no more.)

Invariants, see ``check``: pending ids are higher than that of the last snapshot; none has been given up or
skipped by an open channel; held are exactly the open channels that have the barrier of the one that aligns.

Source: Flink's ``SingleCheckpointBarrierHandler``, ``CheckpointBarrierTracker``.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Iterable, Optional, Union

from flinkish.messages.checkpoints import CheckpointFailureReason
from flinkish.messages.elements import CheckpointBarrier

#: Ids that were given up and are still remembered, so that their barriers do not begin anew (Flink's number).
GIVEN_UP_MAX = 128


@dataclass(frozen=True)
class TakeSnapshot:
    """Of the operators, now; the barrier goes on.  ``persist``: channels whose records until their barrier, or
    their end, are in flight, empty when it is aligned."""

    barrier: CheckpointBarrier
    alignment_ms: int = 0
    unaligned: bool = False
    persist: frozenset[int] = frozenset()


@dataclass(frozen=True)
class Resume:
    """Channels may be read again."""

    channels: tuple[int, ...]


@dataclass(frozen=True)
class GiveUp:
    """Decline the checkpoint, and tell those behind by a marker, if they have not got its barrier."""

    checkpoint_id: int
    reason: CheckpointFailureReason


@dataclass(frozen=True)
class StopPersisting:
    """The barrier of an unaligned checkpoint is there on this channel too (or its end)."""

    checkpoint_id: int
    channel: int


@dataclass(frozen=True)
class InFlightComplete:
    """It has come on all channels."""

    checkpoint_id: int


AlignerEffect = Union[TakeSnapshot, Resume, GiveUp, StopPersisting, InFlightComplete]


@dataclass
class _Pending:
    barrier: CheckpointBarrier
    since_ms: int
    arrived: set[int] = field(default_factory=set)
    announced: set[int] = field(default_factory=set)  # and not arrived
    overtaking: bool = False

    @property
    def holds(self) -> bool:
        """Whether channels that have its barrier wait for the others."""
        return self.barrier.options.exactly_once and not self.overtaking

    @property
    def overtakes_at_ms(self) -> Optional[int]:
        options = self.barrier.options
        if self.overtaking or not options.may_overtake:
            return None
        return min(self.since_ms, self.barrier.timestamp_ms) + (options.aligned_timeout_ms or 0)

    def hurry(self, barrier: CheckpointBarrier) -> None:
        """Somebody before has lost patience already."""
        if barrier.options.may_overtake and not barrier.options.aligned_timeout_ms:
            self.barrier = barrier


class BarrierAligner:
    """``channels``: numbers of all input channels, none for a source."""

    def __init__(self, channels: Iterable[int]):
        self.open = set(channels)
        self.held: set[int] = set()
        self.pending: dict[int, _Pending] = {}  # by id, rising
        self.latest = 0  # id of the last checkpoint that needs nothing more here
        self.given_up: set[int] = set()
        self.ending: set[int] = set()  # open channels whose end has been announced
        self._last: dict[int, int] = {}  # channel -> id of its last barrier or marker

    # ---- moves ----------------------------------------------------------------------------------

    def announced(self, channel: int, barrier: CheckpointBarrier, now_ms: int) -> list[AlignerEffect]:
        """``barrier``, which may overtake, has arrived in the queue of ``channel``."""
        assert channel in self.open, f"a barrier on channel {channel}, which has ended"
        effects: list[AlignerEffect] = []
        pending = self._pending(barrier, now_ms, effects)
        if pending is None:
            return effects
        pending.hurry(barrier)
        pending.announced.add(channel)
        return effects + self._advance(pending, now_ms)

    def barrier(self, channel: int, barrier: CheckpointBarrier, now_ms: int) -> list[AlignerEffect]:
        """``barrier`` was taken from ``channel``, which is held until Resume."""
        assert channel in self.open, f"a barrier on channel {channel}, which has ended"
        self.held.add(channel)
        checkpoint_id = barrier.checkpoint_id
        effects = self._skip(channel, checkpoint_id)
        pending = self._pending(barrier, now_ms, effects, channel)
        if pending is None:
            return effects + self._resume([channel])
        pending.hurry(barrier)
        pending.arrived.add(channel)
        pending.announced.discard(channel)
        if not pending.holds:
            effects += self._resume([channel])
        return effects + self._advance(pending, now_ms)

    def ordered(self, barrier: CheckpointBarrier, now_ms: int) -> list[AlignerEffect]:
        """The JobManager wants a checkpoint, and no barrier comes from a channel: only its end."""
        effects: list[AlignerEffect] = []
        pending = self._pending(barrier, now_ms, effects)
        return effects if pending is None else effects + self._advance(pending, now_ms)

    def cancelled(self, channel: int, checkpoint_id: int) -> list[AlignerEffect]:
        """A CancelCheckpointMarker was taken from ``channel``."""
        effects = self._skip(channel, checkpoint_id)
        if checkpoint_id > self.latest and checkpoint_id not in self.given_up:
            # The marker goes on, and behind it no barrier of an older one may come.
            for older in [known for known in self.pending if known < checkpoint_id]:
                effects += self._give_up(older, CheckpointFailureReason.SUBSUMED)
            effects += self._give_up(checkpoint_id, CheckpointFailureReason.ON_CANCELLATION_BARRIER)
        return effects

    def aborted(self, checkpoint_id: int) -> list[AlignerEffect]:
        """The JobManager has given it up; all subtasks hear of it from there."""
        if checkpoint_id <= self.latest:
            return []
        return self._forget(checkpoint_id)

    def end_announced(self, channel: int, now_ms: int) -> list[AlignerEffect]:
        """EndOfInput has arrived in the queue of ``channel``."""
        self.ending.add(channel)
        return self.tick(now_ms)

    def ended(self, channel: int, now_ms: int) -> list[AlignerEffect]:
        """EndOfInput was taken from ``channel``."""
        self.open.discard(channel)
        self.held.discard(channel)
        self.ending.discard(channel)
        self._last.pop(channel, None)
        effects: list[AlignerEffect] = []
        for checkpoint_id, pending in list(self.pending.items()):
            if checkpoint_id in self.pending:
                effects += self._advance(pending, now_ms)
        return effects

    def tick(self, now_ms: int) -> list[AlignerEffect]:
        """Time has passed: what aligns for too long overtakes."""
        effects: list[AlignerEffect] = []
        for pending in list(self.pending.values()):
            if pending.barrier.checkpoint_id in self.pending:
                effects += self._advance(pending, now_ms)
        return effects

    @property
    def deadline_ms(self) -> Optional[int]:
        """When ``tick`` has something to do."""
        times = [pending.overtakes_at_ms for pending in self.pending.values()]
        return min([time for time in times if time is not None], default=None)

    # ---- inside ---------------------------------------------------------------------------------

    def _skip(self, channel: int, checkpoint_id: int) -> list[AlignerEffect]:
        """What has not come on ``channel`` by now and is older, never will."""
        assert checkpoint_id > self._last.get(channel, 0), f"ids go back on channel {channel}"
        self._last[channel] = checkpoint_id
        effects: list[AlignerEffect] = []
        for older, pending in list(self.pending.items()):
            if older < checkpoint_id and channel not in pending.arrived:
                effects += self._give_up(older, CheckpointFailureReason.SUBSUMED)
        return effects

    def _pending(
        self, barrier: CheckpointBarrier, now_ms: int, effects: list[AlignerEffect], taken_from: Optional[int] = None
    ) -> Optional[_Pending]:
        """The checkpoint of a barrier; None when it is over, given up, or cannot be complete."""
        checkpoint_id = barrier.checkpoint_id
        known = self.pending.get(checkpoint_id)
        if known is not None:
            return known
        if checkpoint_id <= self.latest or checkpoint_id in self.given_up:
            return None
        others = self.open - {taken_from}
        if any(self._last.get(channel, 0) == checkpoint_id for channel in others):
            return None  # it came before and was given up, so long ago that it is forgotten here
        if any(self._last.get(channel, 0) > checkpoint_id for channel in others):
            effects += self._give_up(checkpoint_id, CheckpointFailureReason.SUBSUMED)
            return None
        if barrier.options.exactly_once:
            for older in list(self.pending):
                if older < checkpoint_id:
                    effects += self._give_up(older, CheckpointFailureReason.SUBSUMED)
            if self.pending:  # an order of a younger one has come first
                effects += self._give_up(checkpoint_id, CheckpointFailureReason.SUBSUMED)
                return None
        pending = self.pending[checkpoint_id] = _Pending(barrier, now_ms)
        self.pending = dict(sorted(self.pending.items()))
        return pending

    def _advance(self, pending: _Pending, now_ms: int) -> list[AlignerEffect]:
        barrier = pending.barrier
        checkpoint_id = barrier.checkpoint_id
        missing = self.open - pending.arrived
        waiting = self._waiting_for(pending)
        effects: list[AlignerEffect] = []
        if missing and not pending.overtaking:
            due = pending.overtakes_at_ms
            if due is None or now_ms < due:
                return []
            pending.overtaking = True
            barrier = replace(barrier, options=replace(barrier.options, aligned_timeout_ms=None))
            alignment_ms = now_ms - pending.since_ms
            effects.append(TakeSnapshot(barrier, alignment_ms, True, frozenset(missing)))
        if pending.overtaking:
            for channel in sorted(missing & (pending.announced | self.ending)):
                pending.arrived.add(channel)
                if channel in pending.announced:
                    self._last[channel] = checkpoint_id
                effects.append(StopPersisting(checkpoint_id, channel))
            pending.announced.clear()
            if self.open - pending.arrived:
                return effects + self._resume(waiting)
        for older in [known for known in self.pending if known < checkpoint_id]:
            effects += self._give_up(older, CheckpointFailureReason.SUBSUMED)
        if pending.overtaking:
            effects.append(InFlightComplete(checkpoint_id))
        else:
            effects.append(TakeSnapshot(barrier, now_ms - pending.since_ms))
        del self.pending[checkpoint_id]
        self.latest = checkpoint_id
        self.given_up = {known for known in self.given_up if known > checkpoint_id}
        return effects + self._resume(waiting)

    def _waiting_for(self, pending: _Pending) -> set[int]:
        return pending.arrived & self.held if pending.holds else set()

    def _give_up(self, checkpoint_id: int, reason: CheckpointFailureReason) -> list[AlignerEffect]:
        return [GiveUp(checkpoint_id, reason), *self._forget(checkpoint_id)]

    def _forget(self, checkpoint_id: int) -> list[AlignerEffect]:
        self.given_up.add(checkpoint_id)
        if len(self.given_up) > GIVEN_UP_MAX:
            self.given_up.remove(min(self.given_up))
        pending = self.pending.pop(checkpoint_id, None)
        return [] if pending is None else self._resume(self._waiting_for(pending))

    def _resume(self, channels: Iterable[int]) -> list[AlignerEffect]:
        resumed = tuple(sorted(self.held.intersection(channels)))
        self.held.difference_update(resumed)
        return [Resume(resumed)] if resumed else []

    def check(self) -> None:
        """Assert what holds between any two moves."""
        assert list(self.pending) == sorted(self.pending)
        holding = [pending for pending in self.pending.values() if pending.holds]
        assert len(holding) <= 1
        expected = {channel for pending in holding for channel in pending.arrived}
        assert self.held == expected & self.open, (self.held, expected, self.open)
        for checkpoint_id, pending in self.pending.items():
            assert checkpoint_id > self.latest and checkpoint_id not in self.given_up
            missing = self.open - pending.arrived
            assert missing, f"checkpoint {checkpoint_id} has all its barriers"
            assert all(self._last.get(channel, 0) < checkpoint_id for channel in missing)
        assert len(self.given_up) <= GIVEN_UP_MAX
