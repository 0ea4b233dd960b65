"""What every public call says of an argument that it cannot use: our error, raised in the call itself."""

import inspect
import pickle
import traceback

import pyarrow as pa
import pytest

from flinkish import MapStateDescriptor, StreamExecutionEnvironment, Types, WatermarkStrategy
from flinkish.common.serialization import Encoder
from flinkish.connectors import (
    CollectionSource,
    FunctionSource,
    PrintSink,
    SocketTextSink,
    SocketTextSource,
)
from flinkish.connectors.delta import DeltaSink
from flinkish.connectors.files import (
    FileSink,
    FileSource,
    ParquetFormat,
    ParquetPart,
    ParquetSink,
    TextLineFormat,
    TextPart,
)
from flinkish.datastream.connectors.file_system import OutputFileConfig, RollingPolicy, StreamFormat
from flinkish.datastream import window
from flinkish.datastream.connectors.number_seq import NumberSequenceSource
from flinkish.datastream.window import TumblingEventTimeWindows
from flinkish.errors import FlinkishError, InvalidJobError

WRONG = [None, 5, -1, 1.5, "x", "", [], object(), int, print, {}, True]

#: Calls that run the job, or whose argument is the user's own business.
NOT_ASKED = {
    "close", "execute", "execute_and_collect", "execute_async", "get_execution_plan", "get_mermaid",
    "get_stream_graph",
    "add_operator", "set_context",  # called by the engine and by launchers
    "key_selector",  # the user's own function
}  # fmt: skip


def objects():
    env = StreamExecutionEnvironment.get_execution_environment()
    stream = env.from_collection([("a", 1)])
    keyed, operator = stream.key_by(0), stream.map(str)
    rules = stream.broadcast(MapStateDescriptor("rules", Types.STRING(), Types.STRING()))
    everything = {
        "env": env,
        "checkpoint config": env.get_checkpoint_config(),
        "stream": stream,
        "operator": operator,
        "keyed stream": keyed,
        "windowed stream": keyed.window(TumblingEventTimeWindows.of(5)),
        "connected streams": stream.connect(operator),
        "connected keyed streams": stream.connect(operator).key_by(0, 0),
        "stream with a broadcast one": operator.connect(rules),
        "sink": operator.print(),
        "file sink builder": FileSink.for_row_format("out"),
        "file source builder": FileSource.for_record_stream_format(StreamFormat.text_line_format(), "in"),
    }
    env.close()
    return everything


def public_calls():
    for kind, thing in objects().items():
        for name, method in inspect.getmembers(thing, callable):
            if name[0] != "_" and name not in NOT_ASKED and not inspect.isclass(method):
                if inspect.signature(method).parameters:
                    yield f"{kind}: {name}", (kind, name)


CALLS = dict(public_calls())


@pytest.mark.filterwarnings("ignore:slot sharing group")
@pytest.mark.parametrize("call", CALLS)
def test_a_wrong_argument_is_refused_or_taken_but_never_breaks_something_inside(call):
    kind, name = CALLS[call]
    broken = []
    for wrong in WRONG:
        things = objects()
        method = getattr(things[kind], name)
        parameters = inspect.signature(method).parameters.values()
        needed = [p for p in parameters if p.default is p.empty and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
        named = {p.name: wrong for p in parameters if p.kind is p.VAR_KEYWORD}
        try:
            method(*[] if named else [wrong] * max(1, len(needed)), **named)
        except FlinkishError as error:
            assert isinstance(error, InvalidJobError) and error.what
        except Exception as error:
            broken.append(f"{wrong!r}: {type(error).__name__}: {error}")
        things["env"].close()
    assert broken == []


class Unwritten(Encoder):
    def encode(self, element, stream): ...


SCHEMA = {"n": pa.int64()}
CONSTRUCTIONS = {
    "FileSink(path, 'parquet')": lambda: FileSink("out", "parquet"),
    "FileSink(path, None)": lambda: FileSink("out", None),
    "FileSink(None)": lambda: FileSink(None, TextPart()),
    "FileSink(overwrite=1)": lambda: FileSink("out", TextPart(), overwrite=1),
    "FileSink(names='part')": lambda: FileSink("out", TextPart(), names="part"),
    "FileSink(part_size_bytes='1')": lambda: FileSink("out", TextPart(), part_size_bytes="1 MB"),
    "for_row_format(path, 5)": lambda: FileSink.for_row_format("out", 5),
    "for_row_format(path, 'utf-8')": lambda: FileSink.for_row_format("out", "utf-8"),
    "for_row_format(path, class)": lambda: FileSink.for_row_format("out", Unwritten),
    "for_row_format(None)": lambda: FileSink.for_row_format(None),
    "for_bulk_format(path, schema)": lambda: FileSink.for_bulk_format("out", pa.schema(SCHEMA)),
    "ParquetSink(path, 5)": lambda: ParquetSink("out", 5),
    "ParquetSink(5, schema)": lambda: ParquetSink(5, SCHEMA),
    "ParquetPart(None)": lambda: ParquetPart(None),
    "TextPart(5)": lambda: TextPart(5),
    "DeltaSink(path, None)": lambda: DeltaSink("out", None),
    "DeltaSink(None, schema)": lambda: DeltaSink(None, SCHEMA),
    "DeltaSink(mode=None)": lambda: DeltaSink("out", SCHEMA, mode=None),
    "FileSource(None)": lambda: FileSource(None),
    "FileSource([None])": lambda: FileSource([None]),
    "FileSource(format=None)": lambda: FileSource("in", format=None),
    "FileSource(format=class)": lambda: FileSource("in", format=TextLineFormat),
    "FileSource(column=...)": lambda: FileSource("in", format="parquet", column=["a"]),
    "for_record_stream_format(None)": lambda: FileSource.for_record_stream_format(None, "in"),
    "for_record_stream_format(path)": lambda: FileSource.for_record_stream_format("in"),
    "for_record_stream_format(bulk)": lambda: FileSource.for_record_stream_format(ParquetFormat(), "in"),
    "for_record_stream_format(.., None)": lambda: FileSource.for_record_stream_format(TextLineFormat(), None),
    "for_bulk_file_format(text)": lambda: FileSource.for_bulk_file_format(TextLineFormat(), "in"),
    "TextLineFormat(None)": lambda: TextLineFormat(None),
    "TextLineFormat(split_bytes='1')": lambda: TextLineFormat(split_bytes="1"),
    "ParquetFormat(columns='a')": lambda: ParquetFormat(columns="a"),
    "ParquetFormat(columns=[1])": lambda: ParquetFormat(columns=[1]),
    "ParquetFormat(batch_rows=0)": lambda: ParquetFormat(batch_rows=0),
    "ParquetFormat(timestamp_column=5)": lambda: ParquetFormat(timestamp_column=5),
    "OutputFileConfig(5)": lambda: OutputFileConfig(5),
    "default_rolling_policy('1')": lambda: RollingPolicy.default_rolling_policy("1"),
    "SocketTextSource(5, 'x')": lambda: SocketTextSource(5, "x"),
    "SocketTextSource(port=70000)": lambda: SocketTextSource("localhost", 70_000),
    "SocketTextSource(delimiter='')": lambda: SocketTextSource("localhost", 9, delimiter=""),
    "SocketTextSource(charset='klingon')": lambda: SocketTextSource("localhost", 9, charset="klingon"),
    "SocketTextSource(max_retries=None)": lambda: SocketTextSource("localhost", 9, max_retries=None),
    "SocketTextSink('h', '9')": lambda: SocketTextSink("h", "9"),
    "SocketTextSink(encoder='json')": lambda: SocketTextSink("h", 9, encoder="json"),
    "PrintSink(5)": lambda: PrintSink(5),
    "CollectionSource(5)": lambda: CollectionSource(5),
    "FunctionSource(5)": lambda: FunctionSource(5),
    "FunctionSource(class)": lambda: FunctionSource(dict),
    "FunctionSource(lambda a, b)": lambda: FunctionSource(lambda a, b: None),
    "NumberSequenceSource('a', 'b')": lambda: NumberSequenceSource("a", "b"),
    "NumberSequenceSource(1, 2.5)": lambda: NumberSequenceSource(1, 2.5),
    "from_source(class)": lambda: StreamExecutionEnvironment.get_execution_environment().from_source(
        NumberSequenceSource, WatermarkStrategy.no_watermarks(), "numbers"
    ),
    "from_dataframe(list)": lambda: StreamExecutionEnvironment.get_execution_environment().from_dataframe([1]),
}


#: Parts of windows.
CONSTRUCTIONS.update({
    text: lambda text=text: eval(text, vars(window))
    for text in (
        "CountTrigger.of(0)", "CountTrigger.of('3')", "CountTrigger.of(2.5)", "CountTrigger.of(True)",
        "DeltaTrigger.of('x', abs)", "DeltaTrigger.of(float('nan'), abs)", "DeltaTrigger.of(1, lambda one: 1)",
        "PurgingTrigger.of(None)", "PurgingTrigger.of(CountTrigger)",
        "ProcessingTimeoutTrigger.of(None, 5)", "ProcessingTimeoutTrigger.of(CountTrigger.of(1), 0)",
        "ProcessingTimeoutTrigger.of(CountTrigger.of(1), 5, 'yes')",
        "CountEvictor.of(-1)", "CountEvictor.of('3')", "CountEvictor.of(3, 'after')", "TimeEvictor.of(-1)",
        "DeltaEvictor.of(None, max)", "DeltaEvictor.of(1, lambda one: 1)",
        "EventTimeSessionWindows.with_dynamic_gap(5)", "EventTimeSessionWindows.with_dynamic_gap(lambda: 5)",
        "ProcessingTimeSessionWindows.with_dynamic_gap(SessionWindowTimeGapExtractor)",
        "CountTumblingWindowAssigner.of('5')", "CountSlidingWindowAssigner.of(5, 2.5)",
        "GlobalWindows(CountTrigger)", "GlobalWindows('end')", "TumblingEventTimeWindows.of(2**70)",
        "DailyEventTimeWindows.of('UTC', '25:00')", "DailyEventTimeWindows.of('UTC', 6)",
    )
})  # fmt: skip
CONSTRUCTIONS.update({
    "with_timestamp_assigner(lambda: 5)": lambda: WatermarkStrategy.no_watermarks().with_timestamp_assigner(lambda: 5),
    "min_by(0, 'first')": lambda: window_of_pairs().min_by(0, "first"),
})  # fmt: skip


def window_of_pairs():
    stream = StreamExecutionEnvironment.get_execution_environment().from_collection([("a", 1)])
    return stream.key_by(0).window(TumblingEventTimeWindows.of(5))


@pytest.mark.parametrize("construction", CONSTRUCTIONS)
def test_a_source_or_sink_of_wrong_parts_is_refused_where_it_is_made(construction):
    with pytest.raises(InvalidJobError) as caught:
        CONSTRUCTIONS[construction]()
    error = caught.value
    assert error.what and (error.why or error.do) and str(pickle.loads(pickle.dumps(error))) == str(error)
    assert len(traceback.extract_tb(error.__traceback__)) <= 7


def test_calls_that_look_odd_but_work_stay_allowed():
    import numpy as np

    env = StreamExecutionEnvironment.get_execution_environment()
    stream = env.from_sequence(np.int64(1), 2)
    stream.add_sink(print)
    stream.key_by(5).map(print)
    env.add_source(lambda ctx: [1])
    env.add_source(lambda: iter([1]))
    FileSink.for_row_format("out", None)
    SocketTextSource("localhost", np.int32(9))
    env.close()
