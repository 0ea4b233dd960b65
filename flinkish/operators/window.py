"""Tumbling and sliding event-time windows of a keyed stream that fire by the watermark alone: reduce, aggregate, apply,
process.  All others are run by `windowing.window_operator`.

State is kept by window, not by key: ``window start -> key -> accumulator``.  A million keys that share a
window share one entry in the heap of ends, and a window fires by one walk over its dict.

A window is *open* until the watermark reaches its last instant, then it has *fired*; with allowed
lateness it is kept, fires again for each late record's key, and is *dropped* when the watermark
reaches its last instant plus the lateness.  A record is late when its window has been dropped
(Flink's rule); it goes to the late side output if there is one, else it is counted in
``numLateRecordsDropped``.  Windows fire in order of time, keys in order of their first record.

Where event time has begun anew at a restore (decision 0015), a window that has fired and is kept is open again, but its
keys have fired: only those that get another record do so again, as in Flink, where the record registers the timer
that had gone.  So for *refilled* windows, up to the watermark of before, such keys have event timers.

A window sum by ``reduce`` in a fused loop costs 1.05 of a bare loop that does the same
(``tests/benchmarks/chains.py``).
"""

from __future__ import annotations

import math
from dataclasses import replace
from heapq import heappop, heappush
from typing import Any, Iterator, Optional

from flinkish.common.constants import WINDOW_STATE_NAME
from flinkish.datastream.window import SlidingEventTimeWindows, TimeWindow
from flinkish.messages.elements import MAX_WATERMARK_MS, MIN_WATERMARK_MS
from flinkish.operators.copying import freeze
from flinkish.operators.operator import WATERMARK, Item
from flinkish.operators.timers import EVENT_TIMERS
from flinkish.operators.windowing.base import WindowOperatorBase
from flinkish.operators.windowing.contexts import FiredWindow

#: Property of the saved event timers: the watermark by which windows have fired, where that is above the watermark.
FIRED = "fired"

_MISSING = object()


class AlignedWindowOperator(WindowOperatorBase):
    def __init__(self, spec, environment):
        super().__init__(spec, environment)
        self.size_ms: int = self.assigner.size_ms
        self.offset_ms: int = self.assigner.offset_ms
        self.slides = isinstance(self.assigner, SlidingEventTimeWindows)
        self.slide_ms: int = self.assigner.slide_ms if self.slides else self.size_ms
        #: A reduce may change what it is given, and several windows are given the same record.
        self.copies = self.slides and self.kind == "reduce" and not environment.object_reuse
        self.windows = self.backend.window_table(WINDOW_STATE_NAME)
        self._to_fire: list[int] = []  # starts; a window stands in each heap at most once
        self._to_drop: list[int] = []  # only with lateness
        self.late_limit = self.fired_limit = 0  # windows that start at or before it have been dropped, fired
        self._fired_watermark: Optional[int] = None  # that of before the restore
        self.refilled_limit = MIN_WATERMARK_MS - self.size_ms  # windows that start at or before it fire by timers
        self._set_limits(MIN_WATERMARK_MS)
        self.expanding = self.lateness_ms > 0
        self.keeps_emitted = self.lateness_ms > 0 or self.slides  # other windows have the same records

    # ---- checkpoints ----------------------------------------------------------------------------

    @classmethod
    def form(cls, operator):
        return {"kept": "for all keys together", "size": f"{operator.assigner.size_ms} ms", **super().form(operator)}

    def states_beside_backend(self):
        for entries in super().states_beside_backend():
            if entries.meta.name == EVENT_TIMERS and self.refills:
                properties = {**entries.meta.properties, FIRED: self._fired_watermark}
                entries.meta = replace(entries.meta, properties=properties)
            yield entries

    def restore_keyed(self, reader, key_groups):
        super().restore_keyed(reader, key_groups)
        meta = reader.states.get(EVENT_TIMERS)
        if meta is None:
            return
        watermark = int(meta.properties.get(FIRED, meta.properties[WATERMARK]))
        known = self._fired_watermark
        self._fired_watermark = watermark if known is None else min(known, watermark)
        # After a drain, at the end of time, nothing is kept.
        if watermark < MAX_WATERMARK_MS and (self.saved_lateness_ms or FIRED in meta.properties):
            self.refilled_limit = self._fired_watermark - self.size_ms + 1

    def initialize_state(self):
        """The watermark of before says which of the restored windows have fired."""
        super().initialize_state()
        self._set_limits(self.current_watermark)
        for time, key in list(self.timers.event_time.timers()):
            if not self.refills or time - self.size_ms + 1 > self.refilled_limit:  # all keys of the window fire
                self.timers.event_time.delete(time, key)
        self._to_fire = sorted(start for start in self.windows if start > self.fired_limit)
        self._to_drop = sorted(start for start in self.windows if self._is_kept(start) or start <= self.fired_limit)

    @property
    def refills(self) -> bool:
        """Some windows fire by timers."""
        return self.refilled_limit > self.fired_limit

    def _is_kept(self, start: int) -> bool:
        """When it has fired; without a lateness those that were kept for one of before."""
        return self.lateness_ms > 0 or start <= self.refilled_limit

    # ---- records --------------------------------------------------------------------------------

    def process_element(self, value, timestamp, input_index=0):
        if timestamp is None:
            raise self.no_timestamp()
        tables = self.open_windows(timestamp)
        if not tables:
            if not self.is_late(timestamp):  # between windows
                return
            if self.late_tag is None:
                self.num_late_records_dropped += 1
            else:
                yield from self.output.emit(value, timestamp, tag=self.late_tag)
            return
        key = self.select_key(value)
        fixed = not self.copies or freeze(value) is value
        for start, table in tables:
            self._put(table, key, value if fixed else freeze(value), value)
            if self.fired_limit < start <= self.refilled_limit:
                self.timers.event_time.register(start + self.size_ms - 1, key)
            if start <= self.fired_limit:
                for result in self.fire_again(start, key):
                    yield from self.output.expand()
                    if self.tagged_results:
                        yield from self.output.result(result, start + self.size_ms - 1)
                    else:
                        yield from self.output.emit(result, start + self.size_ms - 1)

    def _put(self, table: dict, key: Any, value: Any, record: Any) -> None:
        if self.kind == "reduce":
            current = table.get(key, _MISSING)
            if current is not _MISSING:
                value = self.call(self.reduce, current, value, record=record)
            elif self.check_first is not None:
                self.call(self.check_first, value, record=record)
            table[key] = value
        elif self.kind == "aggregate":
            current = table.get(key, _MISSING)
            if current is _MISSING:
                current = self.call(self.create_accumulator, record=record)
            table[key] = self.call(self.add, value, current, record=record)
        else:
            values = table.get(key)
            if values is None:
                values = []
            values.append(value)
            table[key] = values

    def open_windows(self, timestamp: int) -> list[tuple[int, dict]]:
        """Start and contents of each window of a time that has not been dropped, latest first as in Flink."""
        last = timestamp - (timestamp - self.offset_ms) % self.slide_ms
        found = []
        for start in range(last, max(timestamp - self.size_ms, self.late_limit), -self.slide_ms):
            table = self.windows.get(start)
            found.append((start, self.open_window(start) if table is None else table))
        return found

    def generate(self, code, value, timestamp, emit, input_index=0):
        if timestamp is None:
            code.line(f"raise {code.bind('no_timestamp', self.no_timestamp)}()")
            return
        operator = code.bind("window", self)
        if self.slides:
            self._generate_sliding(code, operator, value, timestamp, emit)
            return
        low, high, table, limit = (code.local(self, hint) for hint in ("start", "end", "table", "late_limit"))
        code.before(f"{limit} = {operator}.late_limit")
        code.before(f"{low} = {high} = 0")
        code.before(f"{table} = None")
        with code.block(f"if {timestamp} is None:"):
            code.line(f"raise {code.bind('no_timestamp', self.no_timestamp)}()")
        # The window of the record before is most often this record's too, and comparing is cheaper than dividing.
        with code.block(f"if not {low} <= {timestamp} < {high}:"):
            shifted = f"({timestamp} - {self.offset_ms})" if self.offset_ms else timestamp
            code.line(f"{low} = {timestamp} - {shifted} % {self.size_ms}")
            code.line(f"{high} = {low} + {self.size_ms}")
            with code.block(f"if {low} <= {limit}:"):
                code.line(f"{table} = None")
            with code.block(
                f"elif ({table} := {code.bind('windows', self.windows)}.get({low})) is None:"
            ):
                code.line(f"{table} = {code.bind('open_window', self.open_window)}({low})")
        with code.block(f"if {table} is None:"):
            if self.late_tag is None:
                code.line(f"{operator}.num_late_records_dropped += 1")
            else:
                emit(value, timestamp, owned=emit.input_owned, tag=self.late_tag)
        with code.block("else:"):
            key = self.generate_key(code, value)
            self._generate_add(code, value, key, table)
            self._generate_register(code, low, key)
            if self.lateness_ms:
                self._generate_fire_again(code, operator, low, key, emit)

    def _generate_sliding(self, code, operator, value, timestamp, emit):
        """Times between two neighbouring starts or ends of windows have the same windows: a pane."""
        pane, start, table = (code.variable(hint) for hint in ("pane", "start", "table"))
        last, tables = code.local(self, "last"), code.local(self, "tables")
        code.before(f"{last} = {tables} = None")
        with code.block(f"if {timestamp} is None:"):
            code.line(f"raise {code.bind('no_timestamp', self.no_timestamp)}()")
        code.line(f"{pane} = ({timestamp} - {self.offset_ms}) // {math.gcd(self.size_ms, self.slide_ms)}")
        with code.block(f"if {pane} != {last}:"):
            code.line(f"{last} = {pane}")
            code.line(f"{tables} = {code.bind('open_windows', self.open_windows)}({timestamp})")
        with code.block(f"if not {tables}:"):
            with code.block(f"if {operator}.is_late({timestamp}):"):
                if self.late_tag is None:
                    code.line(f"{operator}.num_late_records_dropped += 1")
                else:
                    emit(value, timestamp, owned=emit.input_owned, tag=self.late_tag)
        with code.block("else:"):
            key = self.generate_key(code, value)
            item = value
            if self.copies:
                frozen, item = code.variable("frozen"), code.variable("v")
                with code.blame(self, record=value):
                    code.line(f"{frozen} = {value}")
                    code.freeze(frozen)
            with code.block(f"for {start}, {table} in {tables}:"):
                if self.copies:
                    with code.blame(self, record=value):
                        again = f"{code.bind('freeze', freeze)}({value})"
                        code.line(f"{item} = {value} if {frozen} is {value} else {again}")
                self._generate_add(code, item, key, table)
                self._generate_register(code, start, key)
                if self.lateness_ms:
                    self._generate_fire_again(code, operator, start, key, emit)

    def _generate_add(self, code, value, key, table):
        accumulator, missing = code.variable("acc"), code.bind("missing", _MISSING)
        if self.kind == "reduce":
            with code.block(f"if ({accumulator} := {table}.get({key}, {missing})) is {missing}:"):
                if self.check_first is not None:
                    with code.blame(self, record=value):
                        code.line(f"{code.bind('check_first', self.check_first)}({value})")
                code.line(f"{table}[{key}] = {value}")
            with code.block("else:"):
                code.assign(f"{table}[{key}]", self, self.reduce, accumulator, value, record=value)
        elif self.kind == "aggregate":
            with code.blame(self, record=value):
                with code.block(f"if ({accumulator} := {table}.get({key}, {missing})) is {missing}:"):
                    create = code.bind("create_accumulator", self.create_accumulator)
                    code.line(f"{accumulator} = {create}()")
                code.assign(f"{table}[{key}]", self, self.add, value, accumulator, record=value)
        else:
            with code.block(f"if ({accumulator} := {table}.get({key})) is None:"):
                code.line(f"{table}[{key}] = [{value}]")
            with code.block("else:"):
                code.line(f"{accumulator}.append({value})")
                code.line(f"{table}[{key}] = {accumulator}")

    def _generate_register(self, code, start, key):
        """The timer of a key of a refilled window."""
        if self.refills:
            register = code.bind("register", self.timers.event_time.register)
            with code.block(f"if {code.bind('window', self)}.fired_limit < {start} <= {self.refilled_limit}:"):
                code.line(f"{register}({start} + {self.size_ms - 1}, {key})")

    def _generate_fire_again(self, code, operator, start, key, emit):
        limit = code.local(self, "fired_limit")
        code.before(f"{limit} = {operator}.fired_limit")
        result, time = code.variable("v"), code.variable("ts")
        with code.block(f"if {start} <= {limit}:"):
            code.line(f"{time} = {start} + {self.size_ms - 1}")
            with code.expanding_block(f"for {result} in {operator}.fire_again({start}, {key}):"):
                if self.tagged_results:
                    emit.result(result, time)
                else:
                    emit(result, time)

    def open_window(self, start: int) -> dict:
        """The dict of a window that has none yet."""
        table = self.windows.open(start)
        if start > self.fired_limit:
            heappush(self._to_fire, start)
        if self._is_kept(start):
            heappush(self._to_drop, start)
        return table

    # ---- firing ---------------------------------------------------------------------------------

    def fire(self, watermark: int) -> Optional[Iterator[Item]]:
        self.current_watermark = self.timers.watermark = watermark
        self._set_limits(watermark)
        due = self._to_fire and self._to_fire[0] <= self.fired_limit
        if not due and not (self._to_drop and self._to_drop[0] <= self.late_limit):
            return None
        return self._fire_windows()

    def _set_limits(self, watermark: int) -> None:
        if watermark >= MAX_WATERMARK_MS:  # event time has ended, also for windows that reach beyond it
            self.fired_limit = self.late_limit = MAX_WATERMARK_MS
        else:
            self.fired_limit = watermark - self.size_ms + 1
            self.late_limit = self.fired_limit - self.lateness_ms

    def _fire_windows(self) -> Iterator[Item]:
        """In order of event time, as timers would: a window is dropped before a later one fires."""
        to_fire, to_drop = self._to_fire, self._to_drop
        while True:
            fires = to_fire and to_fire[0] <= self.fired_limit
            if to_drop and to_drop[0] <= self.late_limit:
                if not fires or (to_drop[0] + self.lateness_ms, to_drop[0]) < (to_fire[0], to_fire[0]):
                    start = heappop(to_drop)
                    yield from self._drop_keys(start, self.windows.pop(start))
                    continue
            if not fires:
                return
            start = heappop(to_fire)
            if start <= self.refilled_limit:
                table, timers = self.windows[start], self.timers.event_time.fire(start + self.size_ms - 1)
                yield from self._fire_keys(start, {key: table[key] for _, key in timers})
            elif self.lateness_ms:
                yield from self._fire_keys(start, self.windows[start])
            else:
                yield from self._fire_keys(start, self.windows.pop(start))

    def _fire_keys(self, start: int, table: dict) -> Iterator[Item]:
        time = min(start + self.size_ms - 1, MAX_WATERMARK_MS)
        about = self._about(start)
        if self.window_function is None:
            if self.kind == "reduce":
                for value in table.values():
                    yield value, time
            else:
                get_result = self.get_result
                for key, accumulator in table.items():
                    about.key = key
                    yield self.call(get_result, accumulator, record=about), time
            return
        for key, content in table.items():
            yield None
            for result in self._results(about, key, content):
                yield result, time
            if self.clear is not None and not self._is_kept(start):
                self.call(self.clear, self.context, record=about)

    def _drop_keys(self, start: int, table: dict) -> Iterator[Item]:
        if self.clear is None:
            return
        about = self._about(start)
        for key in table:
            yield None
            self._enter(about, key)
            self.call(self.clear, self.context, record=about)

    def fire_again(self, start: int, key: Any) -> Iterator[Any]:
        """A record came for a window that has fired and is kept: results of its key once more."""
        content, about = self.windows[start][key], self._about(start)
        if self.window_function is not None:
            yield from self._results(about, key, content)
        elif self.kind == "reduce":
            yield content
        else:
            about.key = key
            yield self.call(self.get_result, content, record=about)

    def _results(self, about: FiredWindow, key: Any, content: Any) -> Iterator[Any]:
        self._enter(about, key)
        if self.kind == "reduce":
            elements = [content]
        elif self.kind == "aggregate":
            elements = [self.call(self.get_result, content, record=about)]
        else:
            elements = list(content) if self._is_kept(about.window.start) else content
        return self.results_of(key, about.window, elements, about)

    def _enter(self, about: FiredWindow, key: Any) -> None:
        about.key = self.backend.current_key = key
        self.scope.enter(key, about.window, about.window.start)

    def _about(self, start: int) -> FiredWindow:
        """One for all keys that fire in turn."""
        return FiredWindow(None, TimeWindow(start, start + self.size_ms))

    # ---- figures --------------------------------------------------------------------------------

    @property
    def num_event_time_timers(self) -> int:  # type: ignore[override]
        """As Flink counts: one timer per key and window that will fire or be dropped."""
        return self.windows.num_entries
