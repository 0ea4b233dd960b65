import itertools
import threading

import pytest

from flinkish.connectors.function_source import QUEUE_RECORDS, FunctionSource
from flinkish.connectors.spi import Boundedness, InputStatus
from flinkish.datastream.functions import CheckpointedFunction, ParallelSourceFunction, SourceFunction
from flinkish.errors import InvalidJobError
from flinkish.testing.spi_fakes import FakeReaderContext, RecordingReaderOutput


def drive(source, room=1_000, subtask=0, parallelism=1):
    """Poll as a slot does: again at once, or when the reader has called wakeup."""
    context = FakeReaderContext(subtask, parallelism)
    woken = threading.Event()
    context.on_wakeup = woken.set
    reader, output = source.create_reader(context), RecordingReaderOutput()
    reader.start()
    try:
        while True:
            output.give_room(room)
            woken.clear()
            status = reader.poll_next(output)
            assert output.overdraft == 0
            if status is InputStatus.END_OF_INPUT:
                return output
            if status is InputStatus.NOTHING_AVAILABLE:
                assert woken.wait(10), "the reader never called wakeup"
    finally:
        reader.close()


class Counting(SourceFunction):
    def __init__(self, count):
        self.count = count

    def run(self, ctx):
        for i in range(self.count):
            ctx.collect_with_timestamp(i, i * 10)

    def cancel(self):
        self.count = 0


def test_function_runs_on_a_thread_and_gives_all_records_in_order():
    output = drive(FunctionSource(Counting(3 * QUEUE_RECORDS)), room=777)
    assert output.records == [(i, i * 10) for i in range(3 * QUEUE_RECORDS)]


def test_watermarks_and_idleness_keep_their_place_between_records():
    def run(ctx):
        ctx.collect("a")
        ctx.emit_watermark(5)
        ctx.mark_as_temporarily_idle()
        ctx.collect("b")

    assert drive(FunctionSource(run)).events == [
        ("record", "a"),
        ("watermark", 5),
        ("idle", None),
        ("active", None),
        ("record", "b"),
    ]


def test_a_list_that_run_goes_on_changing_gives_what_it_was_at_collect():
    def run(ctx):
        same = []
        for i in range(3):
            same.append(i)
            ctx.collect(same)

    assert drive(FunctionSource(run)).values == [[0], [0, 1], [0, 1, 2]]


@pytest.mark.parametrize("how", ["a generator", "run(ctx)"])
def test_a_run_that_waits_holds_up_neither_what_it_gave_nor_the_slot(how):
    go_on, ended = threading.Event(), threading.Event()

    def wait():
        yield 1
        try:
            assert go_on.wait(10)
            yield 2
            yield 3
        finally:
            ended.set()

    def collect(ctx):
        for value in wait():
            ctx.collect(value)

    context, woken = FakeReaderContext(), threading.Event()
    context.on_wakeup = woken.set
    source = FunctionSource(wait if how == "a generator" else collect)
    reader, output = source.create_reader(context), RecordingReaderOutput()
    reader.start()
    output.give_room(2)
    while not output.values:
        reader.poll_next(output)
    assert reader.poll_next(output) is InputStatus.NOTHING_AVAILABLE
    woken.clear()
    go_on.set()
    assert woken.wait(10)
    while len(output.values) < 2:
        reader.poll_next(output)
    reader.close()
    assert ended.wait(10)
    assert output.values == [1, 2]


def test_a_run_is_ahead_of_the_slot_by_a_queue_at_most():
    made = []

    def numbers():
        for i in itertools.count():
            made.append(i)
            yield i

    reader, output = FunctionSource(numbers).create_reader(FakeReaderContext()), RecordingReaderOutput()
    reader.start()
    output.give_room(3)
    while not output.values:
        reader.poll_next(output)
    reader.close()
    assert output.values == [0, 1, 2]
    assert len(made) <= QUEUE_RECORDS + 4


def test_generator_that_yields_the_same_list_gives_each_state_of_it():
    class Growing(SourceFunction):
        def run(self, ctx):
            same = []
            for i in range(3):
                same.append(i)
                yield same

        def cancel(self):
            self.cancelled = True

    assert drive(FunctionSource(Growing()), room=2).values == [[0], [0, 1], [0, 1, 2]]


def test_error_of_run_is_raised_on_the_slots_thread_behind_its_records():
    def run(ctx):
        ctx.collect(1)
        raise ValueError("no more")

    reader_output = []
    with pytest.raises(ValueError, match="no more"):
        source = FunctionSource(run)
        context = FakeReaderContext()
        woken = threading.Event()
        context.on_wakeup = woken.set
        reader, output = source.create_reader(context), RecordingReaderOutput()
        reader.start()
        try:
            while True:
                woken.clear()
                if reader.poll_next(output) is InputStatus.NOTHING_AVAILABLE:
                    woken.wait(10)
        finally:
            reader_output = output.values
            reader.close()
    assert reader_output == [1]


def test_close_ends_a_run_that_waits_for_room():
    ended = threading.Event()

    def run(ctx):
        try:
            while True:
                ctx.collect(1)
        finally:
            ended.set()

    reader = FunctionSource(run).create_reader(FakeReaderContext())
    reader.start()
    reader.close()
    assert ended.wait(5)


def test_open_tells_a_parallel_function_its_subtask():
    class Mine(ParallelSourceFunction):
        def open(self, runtime_context):
            self.index = runtime_context.get_index_of_this_subtask()

        def run(self, ctx):
            ctx.collect(self.index)

        def cancel(self):
            self.index = -1

    source = FunctionSource(Mine())
    assert source.fixed_parallelism is None
    assert drive(source, subtask=2, parallelism=3).values == [2]


def test_plain_functions_have_one_subtask_and_are_unbounded_unless_said():
    source = FunctionSource(Counting(1))
    assert (source.fixed_parallelism, source.boundedness()) == (
        1,
        Boundedness.CONTINUOUS_UNBOUNDED,
    )
    assert FunctionSource(Counting(1), bounded=True).boundedness() is Boundedness.BOUNDED


def test_what_has_no_run_is_refused():
    with pytest.raises(InvalidJobError, match="has no run"):
        FunctionSource(3)


def test_a_function_that_wants_to_be_checkpointed_is_refused_because_it_runs_ahead():
    class Position(SourceFunction, CheckpointedFunction):
        def run(self, ctx): ...
        def cancel(self): ...
        def snapshot_state(self, context): ...
        def initialize_state(self, context): ...

    with pytest.raises(InvalidJobError, match="Position is a CheckpointedFunction"):
        FunctionSource(Position())
