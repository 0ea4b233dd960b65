"""Interval join: each record of a keyed stream with those of another whose event time lies near its own.

Left l joins with right r when ``lower <= time(r) - time(l) <= upper`` (bounds are inclusive here; the API has moved
an exclusive one by 1 ms).  A record joins at once with what the other side has kept, so each pair is made once, by
the later to arrive.  Then it is kept for as long as a record that is not late could still join with it: until the
watermark reaches its time plus the bound on its side.  What no record to come could join with is not kept at all.

A record is late when its time is not above the watermark; so the time of a result, the later one of its pair,
always is.

Kept records lie in buckets of event time, ``time // width -> key -> [(time, record)]``, sorted by time.  A bucket is
at least as wide as the interval, so the matches of a record lie in two of them at most, and are found by bisection.
There are no timers: a bucket goes as a whole, when the watermark reaches the end of the last record in it.

Source: Flink's ``IntervalJoinOperator``, which calls a record at the watermark not late (decision 0033).
"""

from __future__ import annotations

from bisect import bisect_left
from heapq import heappop, heappush
from typing import Any, Optional

from flinkish.datastream.join_functions import ProcessJoinFunction
from flinkish.errors import UserError
from flinkish.messages.elements import MAX_WATERMARK_MS
from flinkish.operators.flat_map import results_block
from flinkish.operators.operator import KeyedOperator
from flinkish.state.heap import WindowTable

#: Of buckets: with narrower ones there are more of them than their dicts are worth.
WIDTH_MIN_MS = 500

#: What `JoinSide.add` returns for a late record.
LATE: Any = object()

_NO_MATCHES: list = []


class JoinContext(ProcessJoinFunction.Context):
    """One object for all pairs of an operator."""

    left_time = right_time = time = 0

    def get_left_timestamp(self):
        return self.left_time

    def get_right_timestamp(self):
        return self.right_time

    def get_timestamp(self):
        return self.time


class JoinSide:
    """One input.

    Args:
        number: 0: left, 1: right.
        lower, upper: where matches lie: the other's time minus this one's, ms.
    """

    __slots__ = ("operator", "number", "lower", "upper", "width", "late_tag", "kept", "others", "_last_times", "_open")

    def __init__(self, operator: Any, number: int, lower: int, upper: int, late_tag: Any):
        self.operator, self.number, self.late_tag = operator, number, late_tag
        self.lower, self.upper = lower, upper
        self.width = max(WIDTH_MIN_MS, upper - lower + 1)
        self.kept = operator.backend.window_table(self.state_name)
        self.others: Any = None  # what the other side keeps
        self._last_times: dict[int, int] = {}  # bucket -> time of the last record in it
        self._open: list[int] = []  # a heap of the buckets that there are

    @property
    def state_name(self) -> str:
        """The width is part of it: with other bounds records may lie in other buckets."""
        return f"{self.state_prefix}{self.width}"

    @property
    def state_prefix(self) -> str:
        return ("left-buffer/", "right-buffer/")[self.number]

    # ---- records --------------------------------------------------------------------------------

    def add(self, key: Any, value: Any, timestamp: Optional[int]) -> Any:
        """Take a record.

        Returns:
            [(time, record)] of the other input that it joins with, in the order of their times; or `LATE`.
        """
        operator = self.operator
        if timestamp is None:
            raise operator.no_timestamp()
        watermark = operator.current_watermark
        if timestamp <= watermark:
            return LATE
        first, last = timestamp + self.lower, timestamp + self.upper
        if last > watermark:
            self._keep(key, value, timestamp)
        bucket, others = first // self.width, self.others
        matches = _NO_MATCHES
        table = others.get(bucket)
        if table is not None:
            records = table.get(key)
            if records is not None:
                matches = records[bisect_left(records, (first,)) : bisect_left(records, (last + 1,))]
        if last // self.width > bucket:
            table = others.get(bucket + 1)
            if table is not None:
                records = table.get(key)
                if records is not None:
                    matches = matches + records[: bisect_left(records, (last + 1,))]
        return matches

    def _keep(self, key: Any, value: Any, timestamp: int) -> None:
        bucket = timestamp // self.width
        table = self.kept.get(bucket)
        if table is None:
            table = self.kept.open(bucket)
            heappush(self._open, bucket)
            self._last_times[bucket] = timestamp
        elif timestamp > self._last_times[bucket]:
            self._last_times[bucket] = timestamp
        records = table.get(key)
        if records is None:
            records = [(timestamp, value)]
        elif records[-1][0] <= timestamp:
            records.append((timestamp, value))
        else:  # a probe is shorter than what it is compared with, so records are never compared
            records.insert(bisect_left(records, (timestamp + 1,)), (timestamp, value))
        table[key] = records

    def forget(self, watermark: int) -> None:
        """Drop the buckets in which nothing can join any more."""
        open_, last_times = self._open, self._last_times
        while open_ and (last_times[open_[0]] + self.upper <= watermark or watermark >= MAX_WATERMARK_MS):
            bucket = heappop(open_)
            del last_times[bucket]
            self.kept.pop(bucket)

    # ---- restoring ------------------------------------------------------------------------------

    def restored(self) -> None:
        """``kept`` has got what was saved.  A database is not read for the times of its records, so its buckets may stay
        a little longer."""
        self._open = sorted(self.kept)
        for bucket in self._open:
            if self.operator.backend.is_database:
                self._last_times[bucket] = (bucket + 1) * self.width - 1
            else:
                self._last_times[bucket] = max(records[-1][0] for records in self.kept[bucket].values())

    def take_over(self, table: Any, watermark: int) -> None:
        """Keep what was saved with another width, as far as it may still join."""
        if isinstance(table, WindowTable):
            for bucket in list(table):
                for key, records in table.pop(bucket).items():
                    self._keep_all(key, records, watermark)
        else:
            for entry in list(table):
                self._keep_all(entry[1], table.pop(entry), watermark)

    def _keep_all(self, key: Any, records: list, watermark: int) -> None:
        for timestamp, value in records:
            if timestamp + self.upper > watermark:
                self._keep(key, value, timestamp)


class IntervalJoinOperator(KeyedOperator):
    expanding = True
    keeps_emitted = True  # the same record may join again
    tagged_results = True
    function_role = "process"

    def __init__(self, spec, environment):
        super().__init__(spec, environment)
        operator = spec.operator
        self.function = self.own(operator.function, "process_element")
        lower, upper = operator.lower_ms, operator.upper_ms
        self.sides = (
            JoinSide(self, 0, lower, upper, operator.left_late_tag),
            JoinSide(self, 1, -upper, -lower, operator.right_late_tag),
        )
        self.context = JoinContext()
        self.num_late_records_dropped = 0

    def no_timestamp(self) -> UserError:
        return UserError(
            "a record without event time came to an interval join",
            where=f'operator "{self.name}"',
            why="neither the source nor a watermark strategy gave it a timestamp",
            do="call assign_timestamps_and_watermarks(...) with a timestamp assigner before the join",
        )

    # ---- checkpoints ----------------------------------------------------------------------------

    def initialize_state(self):
        super().initialize_state()
        for side, other in zip(self.sides, reversed(self.sides)):
            side.others = other.kept
            side.restored()
            for name, table in list(self.backend.tables.items()):
                if name.startswith(side.state_prefix) and name != side.state_name:
                    side.take_over(table, self.current_watermark)

    # ---- records --------------------------------------------------------------------------------

    def process_element(self, value, timestamp, input_index=0):
        key = self.select_key(value, input_index)
        side, context = self.sides[input_index], self.context
        matches = side.add(key, value, timestamp)
        if matches is LATE:
            if side.late_tag is None:
                self.num_late_records_dropped += 1
            else:
                yield from self.output.emit(value, timestamp, tag=side.late_tag)
            return
        for other_time, other in matches:
            yield from self.output.expand()
            left, right = value, other
            context.left_time, context.right_time = timestamp, other_time
            if input_index == 1:
                left, right = right, left
                context.left_time, context.right_time = other_time, timestamp
            time = context.time = max(timestamp, other_time)
            results = self.call(self.function, left, right, context, record=value)
            for result in self.iterate(results, value, function=self.function):
                yield from self.output.expand()
                yield from self.output.result(result, time)

    def generate(self, code, value, timestamp, emit, input_index=0):
        if timestamp is None:
            code.line(f"raise {code.bind('no_timestamp', self.no_timestamp)}()")
            return
        side = self.sides[input_index]
        key = self.generate_current_key(code, value, input_index)
        matches, time, other, other_time = (code.variable(hint) for hint in ("matches", "ts", "v", "ts"))
        code.line(f"{matches} = {code.bind('add', side.add)}({key}, {value}, {timestamp})")
        with code.block(f"if {matches} is {code.bind('late', LATE)}:"):
            if side.late_tag is None:
                code.line(f"{code.bind('join', self)}.num_late_records_dropped += 1")
            else:
                emit(value, timestamp, owned=emit.input_owned, tag=side.late_tag)
        with code.block("else:"):
            with code.expanding_block(f"for {other_time}, {other} in {matches}:"):
                context = code.bind("ctx", self.context)
                left, right, left_time, right_time = value, other, timestamp, other_time
                if input_index == 1:
                    left, right, left_time, right_time = right, left, right_time, left_time
                code.line(f"{context}.left_time = {left_time}")
                code.line(f"{context}.right_time = {right_time}")
                longer = f"{left_time} if {left_time} > {right_time} else {right_time}"
                code.line(f"{context}.time = {time} = {longer}")
                with results_block(code, self, self.function, f"{left}, {right}, {context}", value) as result:
                    emit.result(result, time)

    # ---- time -----------------------------------------------------------------------------------

    def fire(self, watermark):
        self.current_watermark = self.timers.watermark = watermark
        for side in self.sides:
            side.forget(watermark)
        return None

    def forget_key(self):
        for side in self.sides:
            side.forget(MAX_WATERMARK_MS)
        super().forget_key()

    def metrics(self):
        return {"numLateRecordsDropped": self.num_late_records_dropped}
