"""A chain behind a source whose reader plays a script: one function of the output for each poll."""

from __future__ import annotations

import cloudpickle

from flinkish.common.watermark_strategy import WatermarkStrategy
from flinkish.connectors.spi import Boundedness, InputStatus, Source, SourceReader, SourceSplit
from flinkish.datastream.transformations import SourceOperator
from flinkish.messages.control import SourceAddSplits
from flinkish.messages.elements import ColumnBatch, RowBatch, Watermark, WatermarkStatus
from tests.unit.operators.chains import Chain


class Split(SourceSplit):
    def __init__(self, name):
        self.name = name

    def split_id(self):
        return self.name


class ScriptedReader(SourceReader):
    """``script``: one function of the output for each poll."""

    def __init__(self, context):
        self.context = context
        self.script, self.log = [], []

    def start(self):
        self.log.append("start")

    def poll_next(self, output):
        if not self.script:
            return InputStatus.NOTHING_AVAILABLE
        return self.script.pop(0)(output) or InputStatus.MORE_AVAILABLE

    def add_splits(self, splits):
        self.log.append([split.name for split in splits])

    def notify_no_more_splits(self):
        self.log.append("no more")

    def handle_source_event(self, event):
        self.log.append(event)

    def close(self):
        self.log.append("close")


class ScriptedSource(Source):
    def __init__(self, columns=False):
        self.gives_columns = columns

    def boundedness(self):
        return Boundedness.CONTINUOUS_UNBOUNDED

    def create_enumerator(self, context):
        raise AssertionError("the enumerator lives in the driver")

    def create_reader(self, context):
        return ScriptedReader(context)


class SourceChain(Chain):
    def __init__(self, strategy=None, *operators, columns=False, source=None, **options):
        strategy = strategy or WatermarkStrategy.no_watermarks()
        super().__init__(SourceOperator(source or ScriptedSource(columns), strategy), *operators, **options)
        self.source = self.chain.source
        self.reader = self.source.reader

    def event(self, payload):
        self.chain.handle_operator_event("id-0", payload)
        return self

    def assign(self, *names):
        return self.event(SourceAddSplits(cloudpickle.dumps([Split(name) for name in names])))

    def poll(self, *script, room=100):
        """Poll, then process all that was collected, as the task does."""
        self.reader.script += script
        self.status_of_poll = self.source.poll(room)
        return self.drain()

    def drain(self):
        for element in self.source.take():
            self.feed(element)
        return self

    def feed(self, element):
        if isinstance(element, (RowBatch, ColumnBatch)):
            self.run(self.chain.process_batch(0, element, 0, len(element)))
        elif isinstance(element, Watermark):
            self.run(self.chain.process_watermark(0, element.timestamp))
        else:
            self.run(self.chain.process_watermark_status(0, element.idle))

    def tick(self):
        return self.time(self.chain.next_processing_time())

    @property
    def marks(self):
        return [e for e in self.output if isinstance(e, (Watermark, WatermarkStatus))]


def bounded(delay=0):
    return WatermarkStrategy.for_bounded_out_of_orderness(delay)


def split(name, *records):
    """A poll that collects ``records`` (value = time) from one split."""

    def poll(output):
        output.create_output_for_split(name).collect_batch(list(records), list(records))

    return poll
