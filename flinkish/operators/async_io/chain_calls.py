"""ChainCalls: the asynchronous operators of a chain, as one question and one answer each for the task."""

from __future__ import annotations

import functools
from typing import Any, Callable, Iterable, Iterator, Optional

from flinkish.messages.elements import Watermark
from flinkish.operators.async_io.async_wait import AsyncWaitOperator
from flinkish.operators.node import Node
from flinkish.operators.operator import Item

_MANY = 1 << 30


class ChainCalls:
    """See the module.

    Where the chain is suspended in one of these operators, which waits for an answer, operators behind it are between two
    of their records, so what they have may leave meanwhile; those before it are in the middle of one.

    Args:
        nodes: of the chain, in its order.
        drain, advance_after, send_status_after: of the chain: what follows a node, for items, a watermark, a status.
    """

    def __init__(
        self,
        nodes: Iterable[Node],
        drain: Callable[[Node, Iterable[Item]], Iterator[None]],
        advance_after: Callable[[Node, int], Iterator[None]],
        send_status_after: Callable[[Node, bool], Iterator[None]],
    ):
        self._drain, self._advance_after, self._send_status_after = drain, advance_after, send_status_after
        self._nodes = [node for node in nodes if isinstance(node.operator, AsyncWaitOperator)]
        self._operators: list[Any] = [node.operator for node in self._nodes]
        for position, operator in enumerate(self._operators):
            operator.pump = functools.partial(self._pump, self._nodes[position:])

    def send(self, node: Node, now_ms: int) -> Iterator[None]:
        """Take the answers of an operator, do what is due, and send on what may leave."""
        operator: Any = node.operator
        operator.advance(now_ms)
        while operator.calls.head is not None:
            yield from self._drain(node, operator.take_results())
            control = operator.take_control()
            if isinstance(control, Watermark):
                yield from self._advance_after(node, control.timestamp)
            elif control is not None:
                yield from self._send_status_after(node, control.idle)

    def _pump(self, nodes: list[Node]) -> Iterator[None]:
        for node in reversed(nodes):  # the last first: it makes room for the others
            yield from self.send(node, node.operator.environment.now_ms())

    # ---- what the task asks -----------------------------------------------------------------------

    @property
    def hold_suspended(self) -> bool:
        """Whether the chain stands in one of them, and would find no answer there."""
        for operator in reversed(self._operators):
            if operator.is_due:
                return False
            if operator.waiting:
                return True
        return False

    @property
    def are_due(self) -> bool:
        """Whether one has something to do, or to send on, now."""
        return any([operator.is_due for operator in self._operators])

    @property
    def room(self) -> int:
        """Records that all of them can take before one must wait; large when there is none."""
        room = _MANY
        for operator in self._operators:
            if operator.calls.room < room:
                room = operator.calls.room
        return room

    @property
    def next_time_ms(self) -> Optional[int]:
        """When one of them, that may do it now, has something to do by the clock; None: not before a call answers."""
        first: Optional[int] = None
        for operator in reversed(self._operators):
            time = operator.next_processing_time
            if time is not None and (first is None or time < first):
                first = time
            if operator.waiting:
                break
        return first
