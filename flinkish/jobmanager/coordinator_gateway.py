"""Events of coordinators on their way to the readers, while a checkpoint begins.

A coordinator's *gateway* is open, or closed from its snapshot until the readers have been told of the
checkpoint (or it has been given up)::

    open ──its snapshot is taken──> closed ──TriggerCheckpoint is on its way, or given up──> open

What a coordinator sends before its snapshot is in the readers' snapshots; what it sends afterwards (a split, say) is
still in its own, so it must not reach a reader before the barrier.  Both go to the slot over one
connection, in order.

Invariant, see ``check``: only closed gateways hold events.

Source: Flink's ``SubtaskGatewayImpl`` and ``OperatorCoordinatorHolder``.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from flinkish.jobmanager.events import CoordinatorSaid


@dataclass
class CoordinatorGateways:
    closed: set[str] = field(default_factory=set)  # operator ids
    held: list[CoordinatorSaid] = field(default_factory=list)

    def close(self, operator_id: str) -> None:
        """The coordinator has taken its snapshot."""
        self.closed.add(operator_id)

    def pass_on(self, event: CoordinatorSaid) -> bool:
        """Whether it goes out now; else it is kept."""
        if event.operator_id in self.closed:
            self.held.append(event)
            return False
        return True

    def open(self) -> list[CoordinatorSaid]:
        """Open all of them (one checkpoint at a time takes snapshots); returns what goes out now."""
        self.closed.clear()
        held, self.held = self.held, []
        return held

    def check(self) -> None:
        """Assert what holds between any two steps."""
        assert all(event.operator_id in self.closed for event in self.held)
