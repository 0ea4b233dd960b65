"""What a record costs in a chain, against a bare loop: ``python -m tests.benchmarks.chains``.

The bare loop does the same work by hand: the same user functions, a dict for state, ``emit(value)`` at
the end, which appends to a list as the chain's writer does.  Rounds of all forms are interleaved, the
best of each counts, so that what else the machine does hits all of them alike.
"""

from __future__ import annotations

import time
from operator import itemgetter

from flinkish.datastream.functions import KeyedProcessFunction
from flinkish.datastream.state import ValueStateDescriptor
from flinkish.datastream.transformations import (
    FilterOperator,
    KeyedProcessOperator,
    MapOperator,
    ReduceOperator,
    WindowOperator,
)
from flinkish.datastream.window import TumblingEventTimeWindows
from flinkish.messages.elements import RowBatch
from tests.unit.operators.chains import Chain, ListWriter

RECORDS, ROUNDS = 1_000, 400
VALUES = [(f"k{i % 100}", i % 1_000, i) for i in range(RECORDS)]
KEY = itemgetter(0)


class AppendWriter(ListWriter):
    """Only the value counts here: a channel's buffer without its bookkeeping."""

    def generate(self, code, value, timestamp):
        append = code.variable("append")
        code.before(f"{append} = {code.bind('writer', self)}.open.append")
        code.line(f"{append}({value})")

    def emit(self, value, timestamp):
        self.open.append(value)


def double(record):
    return record[0], record[1] * 2, record[2]


def large(record):
    return record[1] >= 100


def pair(record):
    return record[0], record[1] + 1


def add(a, b):
    return a[0], a[1] + b[1], b[2]


class RunningSum(KeyedProcessFunction):
    def open(self, context):
        self.sum = context.get_state(ValueStateDescriptor("sum"))

    def process_element(self, value, ctx):
        total = (self.sum.value() or 0) + value[1]
        self.sum.update(total)
        yield value[0], total


def bare_maps(values, emit):
    for value in values:
        value = double(value)
        if large(value):
            emit(pair(value))


def bare_sum(values, emit, state={}):  # noqa: B006 (state is meant to live on)
    def add_up(key, value):
        total = state.get(key, 0) + value
        state[key] = total
        return key, total

    for value in values:
        emit(add_up(value[0], value[1]))


def bare_sum_generator(values, emit, state={}):  # noqa: B006
    """As the user of a process function must write it: a generator, and state behind a method each."""
    get, put = state.get, state.__setitem__

    class State:
        key = None

        def value(self):
            return get(self.key)

        def update(self, value):
            put(self.key, value)

    kept = State()

    def process(value, ctx):
        total = (kept.value() or 0) + value[1]
        kept.update(total)
        yield value[0], total

    for value in values:
        kept.key = value[0]
        for result in process(value, None):
            emit(result)


def bare_reduce(values, emit, state={}):  # noqa: B006
    for value in values:
        key = value[0]
        known = state.get(key)
        if known is not None:
            value = add(known, value)
        state[key] = value
        emit(value)


def bare_window(values, emit, windows={}):  # noqa: B006
    for value in values:
        start = value[2] - value[2] % 1_000
        window = windows.get(start)
        if window is None:
            window = windows[start] = {}
        key = value[0]
        known = window.get(key)
        window[key] = value if known is None else add(known, value)


WINDOW = TumblingEventTimeWindows.of(1_000)
CASES = {
    "map, filter, map": (bare_maps, [MapOperator(double), FilterOperator(large), MapOperator(pair)]),
    "keyed process, ValueState": (bare_sum, [(KeyedProcessOperator(RunningSum()), KEY)]),
    "  the same, bare loop with a generator": (
        bare_sum_generator, [(KeyedProcessOperator(RunningSum()), KEY)]
    ),
    "reduce": (bare_reduce, [(ReduceOperator(add), KEY)]),
    "window reduce": (bare_window, [(WindowOperator(WINDOW, "reduce", add), KEY)]),
}  # fmt: skip
FORMS = {
    "fused": {}, "fused, object reuse": {"object_reuse": True}, "interpreted": {"fused": False},
}  # fmt: skip


def measure(bare, operators, rounds=ROUNDS):
    """Nanoseconds a record by form; "bare" first."""
    out: list = []
    runs = {"bare": lambda: bare(VALUES, out.append)}
    chains = []
    for form, options in FORMS.items():
        chain = Chain(*operators, **options)
        chain.writers[0].__class__ = AppendWriter
        chain.chain.open()  # again, with that writer
        batch = RowBatch(VALUES, [value[2] for value in VALUES] if "Window" in str(operators) else None)
        runs[form] = lambda chain=chain, batch=batch: chain.run(
            chain.chain.process_batch(0, batch, 0, RECORDS)
        )
        chains.append(chain)
    best = dict.fromkeys(runs, float("inf"))
    for _ in range(rounds):
        for form, run in runs.items():
            start = time.perf_counter_ns()
            run()
            best[form] = min(best[form], (time.perf_counter_ns() - start) / RECORDS)
            out.clear()
            for chain in chains:
                chain.writers[0].open.clear()
    return best


def main() -> None:
    print(f"{'':40}" + "".join(f"{form:>22}" for form in ("bare", *FORMS)))
    for name, (bare, operators) in CASES.items():
        best = measure(bare, operators)
        cells = [f"{best['bare']:.0f} ns"]
        cells += [f"{best[form]:.0f} ns ({best[form] / best['bare']:.2f}x)" for form in FORMS]
        print(f"{name:40}" + "".join(f"{cell:>22}" for cell in cells))


if __name__ == "__main__":
    main()
