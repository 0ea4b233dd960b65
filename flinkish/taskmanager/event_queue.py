"""Control events that wait in a queue, kept few.

Events need no credit, so a queue whose reader does not come (a receiver under backpressure, a
sender without credit) could grow by one watermark every 200 ms for hours.  Between two batches only
what a reader would still notice is kept:

- a watermark replaces the one before it;
- a status that undoes the one before it takes it away, unless a watermark came between;
- of the latency markers of one source the first stays, which has waited longest.

A barrier, the marker of a checkpoint that was given up and the ends are kept as they came, and nothing is
merged across them: what stands before a barrier belongs to the checkpoint, what stands behind does not.
(Their number is bounded by the checkpoints under way.)
"""

from __future__ import annotations

from collections import deque
from typing import Any

from flinkish.messages.elements import LatencyMarker, Watermark, WatermarkStatus

_EVENTS = (Watermark, WatermarkStatus, LatencyMarker)


def append_event(queue: deque[Any], event: Any) -> None:
    """Put ``event`` behind what is in ``queue``, and drop what it makes needless.

    >>> queue = deque([Watermark(1)])
    >>> append_event(queue, Watermark(2)); queue
    deque([Watermark(timestamp=2)])
    """
    kind = type(event)
    if kind in _EVENTS:
        for back in range(len(queue) - 1, -1, -1):
            waiting = queue[back]
            waiting_kind = type(waiting)
            if waiting_kind is LatencyMarker:
                if kind is LatencyMarker and _same_source(waiting, event):
                    return
                continue
            if waiting_kind not in _EVENTS:
                break
            if kind is Watermark and waiting_kind is Watermark:
                if event.timestamp > waiting.timestamp:
                    queue[back] = event
                return
            if kind is WatermarkStatus:
                if waiting_kind is WatermarkStatus:
                    if waiting.idle != event.idle:
                        del queue[back]
                    return
                break
            if kind is Watermark:
                break
    queue.append(event)


def _same_source(one: LatencyMarker, other: LatencyMarker) -> bool:
    return (one.operator_id, one.subtask_index) == (other.operator_id, other.subtask_index)
