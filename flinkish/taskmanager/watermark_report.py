"""What a subtask says of its event time: how far each input, split and generator is, and since when.

Once a second, with its metrics.  *Since when* is noticed here and not where watermarks pass, so that it costs nothing
per record; it is at most one report late.  Of many channels or splits the `SHOWN_MAX` furthest behind are named; how many
there are of each state is counted.

The JobManager puts the reports of all subtasks together (``jobmanager.watermark_explanation``).
"""

from __future__ import annotations

from typing import Any, Callable, Hashable, Iterable, Sequence

from flinkish.messages.elements import MAX_WATERMARK_MS
from flinkish.taskmanager.input_gate import InputGate

SHOWN_MAX = 8

ACTIVE, IDLE, PAUSED, LAGGING, FINISHED = "ACTIVE", "IDLE", "PAUSED", "LAGGING", "FINISHED"

#: (what it is, its watermark, its state)
Part = tuple[dict[str, Any], int, str]


class WatermarkReporter:
    """Of one subtask.

    Args:
        gates: its inputs.
        source: its SourceOperator, or None.
        generators: gives (operator name, watermark, idle) of those in mid-stream.
    """

    def __init__(
        self, gates: Sequence[InputGate], source: Any, generators: Callable[[], Iterable[tuple[str, int, bool]]]
    ):
        self._gates, self._source, self._generators = gates, source, generators
        self._seen: dict[Hashable, tuple[int, int]] = {}  # -> (watermark, since ms)

    def report(self, now_ms: int) -> dict[str, Any]:
        """Plain data; times are ms since the epoch.

        ``inputs``, ``source`` (or None): each with ``watermark``, ``state``, ``since``, ``parts`` (how many by state)
        and ``slowest``, those of its channels or splits that have part in the watermark, furthest behind first;
        ``generators``."""
        seen: dict[Hashable, tuple[int, int]] = {}

        def since(key: Hashable, watermark: int) -> int:
            known = self._seen.get(key)
            seen[key] = known if known is not None and known[0] == watermark else (watermark, now_ms)
            return seen[key][1]

        def summed_up(key: Hashable, watermark: int, state: str, parts: list[Part]) -> dict[str, Any]:
            counts: dict[str, int] = {}
            named: list[dict[str, Any]] = []
            for number, (what, mark, part_state) in enumerate(parts):
                counts[part_state] = counts.get(part_state, 0) + 1
                # A channel is known by its place, a split by its name: the number of a split changes.
                began = since((key, what.get("split", number)), mark)
                if part_state in (ACTIVE, PAUSED):
                    named.append({**what, "watermark": mark, "state": part_state, "since": began})
            named.sort(key=lambda part: part["watermark"])
            return {
                "watermark": watermark,
                "state": state,
                "since": since(key, watermark),
                "parts": counts,
                "slowest": named[:SHOWN_MAX],
            }

        report: dict[str, Any] = {
            "inputs": [
                {"input": gate.input_index, **summed_up(gate.input_index, *_gate_parts(gate))} for gate in self._gates
            ],
            "source": None,
            "generators": [
                {
                    "operator": name,
                    "watermark": watermark,
                    "state": IDLE if idle else ACTIVE,
                    "since": since(("generator", number), watermark),
                }
                for number, (name, watermark, idle) in enumerate(self._generators())
            ],
        }
        if self._source is not None:
            source = self._source
            state = PAUSED if source.is_paused else IDLE if source.idle else ACTIVE
            parts = [({"split": name}, watermark, state) for name, watermark, state in source.watermark_parts()]
            found = summed_up("source", source.emitted, state, parts)
            limit = None if source.alignment is None else source.alignment.max_watermark
            report["source"] = {"operator": source.name, **found, "limit": limit, "assigned": len(source.assigned)}
        self._seen = seen
        return report


def _gate_parts(gate: InputGate) -> tuple[int, str, list[Part]]:
    valve = gate.valve
    parts: list[Part] = []
    for channel, (watermark, idle, aligned, finished) in zip(gate.channels, valve.channels()):
        what = {"vertex": channel.edge.source_vertex if channel.edge else "", "subtask": channel.peer_subtask}
        state = FINISHED if finished else IDLE if idle else ACTIVE if aligned else LAGGING
        parts.append((what, watermark, state))
    at_end = valve.output_watermark == MAX_WATERMARK_MS
    return valve.output_watermark, FINISHED if at_end else IDLE if valve.output_idle else ACTIVE, parts
