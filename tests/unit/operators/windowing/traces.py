"""Traces of a window operator (``traces.json``): inputs and the right outputs, confirmed on Flink 2.3."""

import json
import pathlib
import re

from flinkish.datastream.functions import ProcessWindowFunction, ReduceFunction, WindowFunction
from flinkish.datastream.output_tag import OutputTag
from flinkish.datastream.time_window import TimeWindow
from flinkish.datastream.triggers import EventTimeTrigger, TriggerResult
from flinkish.datastream.window import (
    ContinuousEventTimeTrigger,
    ContinuousProcessingTimeTrigger,
    CountEvictor,
    CountTrigger,
    DeltaEvictor,
    DynamicEventTimeSessionWindows,
    DynamicProcessingTimeSessionWindows,
    EventTimeSessionWindows,
    GlobalWindows,
    ProcessingTimeSessionWindows,
    ProcessingTimeTrigger,
    PurgingTrigger,
    SlidingEventTimeWindows,
    SlidingProcessingTimeWindows,
    TimeEvictor,
    TumblingEventTimeWindows,
    TumblingProcessingTimeWindows,
)
from flinkish.testing import StreamRecord, StreamTestHarness, Watermark

CASES = json.loads(pathlib.Path(__file__).with_name("traces.json").read_text())["cases"]
LATE = OutputTag("late-output")


# ---- what the traces name ---------------------------------------------------------------------------


class SumReducer(ReduceFunction):
    def reduce(self, value1, value2):
        return value1[0], value1[1] + value2[1]


class SessionWindowFunction(WindowFunction):
    def apply(self, key, window, inputs):
        yield f"{key}-{sum(value for _, value in inputs)}", window.start, window.end


class PassThroughFunction(WindowFunction):
    def apply(self, key, window, inputs):
        yield from inputs


class RichSumReducer(ProcessWindowFunction):
    def process(self, key, context, elements):
        yield key, sum(value for _, value in elements)


class EmptyReturnFunction(ProcessWindowFunction):
    def process(self, key, context, elements):
        return []


class PointSessionWindows(EventTimeSessionWindows):
    def assign_windows(self, element, timestamp, context):
        return [TimeWindow(timestamp, timestamp if element[1] == 33 else timestamp + self.gap_ms)]


class FireEverytimeOnElementAndEventTimeTrigger(EventTimeTrigger):
    def on_element(self, element, timestamp, window, ctx):
        ctx.register_event_time_timer(window.max_timestamp())
        return TriggerResult.FIRE

    def on_event_time(self, time, window, ctx):
        return TriggerResult.FIRE


def gap_of(element):
    key, value = element
    if key == "key1":
        return 3000
    return 1000 if value == 10 else 2000


def difference(old, new):
    return new[1] - old[1]


_NAMES = {
    "ContinuousEventTimeTrigger": ContinuousEventTimeTrigger,
    "ContinuousProcessingTimeTrigger": ContinuousProcessingTimeTrigger,
    "CountEvictor": CountEvictor,
    "CountTrigger": CountTrigger,
    "DeltaEvictor": DeltaEvictor,
    "DynamicEventTimeSessionWindows": DynamicEventTimeSessionWindows,
    "DynamicProcessingTimeSessionWindows": DynamicProcessingTimeSessionWindows,
    "EventTimeSessionWindows": EventTimeSessionWindows,
    "EventTimeTrigger": EventTimeTrigger,
    "FireEverytimeOnElementAndEventTimeTrigger": FireEverytimeOnElementAndEventTimeTrigger,
    "GlobalWindows": GlobalWindows,
    "PointSessionWindows": PointSessionWindows,
    "ProcessingTimeSessionWindows": ProcessingTimeSessionWindows,
    "ProcessingTimeTrigger": ProcessingTimeTrigger,
    "PurgingTrigger": PurgingTrigger,
    "SlidingEventTimeWindows": SlidingEventTimeWindows,
    "SlidingProcessingTimeWindows": SlidingProcessingTimeWindows,
    "TimeEvictor": TimeEvictor,
    "TumblingEventTimeWindows": TumblingEventTimeWindows,
    "TumblingProcessingTimeWindows": TumblingProcessingTimeWindows,
    "difference": difference,
    "gap_of": gap_of,
}


def made_of(text):
    """The object of a text such as ``TumblingEventTimeWindows.of(3000ms)``."""
    text = re.sub(r"(\d+)ms", r"\1", text)
    text = text.replace("withGap", "with_gap").replace("withDynamicGap(mock)", "with_dynamic_gap(gap_of)")
    return eval(text.replace("DeltaFunction()", "difference"), dict(_NAMES))  # texts of this folder


def windowed(stream, description):
    """The stream that an ``operator`` of the traces describes."""
    result = stream.key_by(lambda record: record[0]).window(made_of(description["assigner"]))
    result = result.trigger(made_of(description["trigger"])).allowed_lateness(description["lateness"])
    if description["late_tag"] != "None":
        result = result.side_output_late_data(LATE)
    if "evictor" in description:
        result = result.evictor(made_of(description["evictor"]))
    function, state = description["function"], description["state"]
    if "PassThroughFunction" in function:
        return result.apply(PassThroughFunction())
    if "EmptyReturnFunction" in function:
        return result.process(EmptyReturnFunction())
    if "RichSumReducer" in function:
        return result.process(RichSumReducer())
    of_window = SessionWindowFunction() if "SessionWindowFunction" in function else None
    if state.startswith("ReducingStateDescriptor"):
        return result.reduce(SumReducer(), of_window)
    return result.apply(of_window)


# ---- running them -----------------------------------------------------------------------------------


class TraceRun:
    """One trace.

    Args:
        fused: False: operators run one by one, without generated code, which is quicker to start.
    """

    def __init__(self, case, backend="hashmap", fused=True):
        self.case = case
        self.build = lambda stream: windowed(stream, case["operator"])
        self.options = {"configuration": {"flinkish.fused-chains": fused}}
        self.backend = backend
        self.harness = StreamTestHarness(self.build, backend, **self.options)
        self.output, self.side = [], []

    def cut(self, parallelism=1):
        """Go on from a snapshot."""
        snapshot = self.harness.snapshot()
        self._take()
        self.harness.close()
        self.harness = StreamTestHarness.restore(
            self.build, snapshot, parallelism, self.backend, **self.options
        )
        self.harness.clear_output()  # sources tell their watermarks again

    def _take(self):
        self.output += self.harness.output
        self.side += self.harness.side_output(LATE)
        self.harness.clear_output()

    def run(self, cut=lambda run: None):
        """``cut``: called after each step."""
        last_window_end = None
        for step in self.case["steps"]:
            if "element" in step:
                key, value = step["element"]
                self.harness.process_element((key, value), step["ts"])
                last_window_end = step["ts"] and step["ts"] // 1000 * 1000 + 999
            elif "watermark" in step:
                watermark = step["watermark"]  # or a text: the last instant of the window of the last element
                self.harness.process_watermark(last_window_end if isinstance(watermark, str) else watermark)
            elif "processing_time" in step:
                self.harness.set_processing_time(step["processing_time"])
            elif "restore" in step:
                self.cut()
            self._take()
            if "expect" in step:
                self.compare(self.output, step["expect"], last_window_end)
            elif "expect_side" in step:
                self.compare(self.side, step["expect_side"], last_window_end)
            elif "clear_expected" in step:
                self.output.clear()
            cut(self)
        self.harness.close()

    @staticmethod
    def compare(output, expected, last_window_end):
        """In order; what lies between two watermarks in any order, as keys have none."""

        def time(value):
            return last_window_end if isinstance(value, str) else value

        wanted = [
            Watermark(time(one["watermark"]))
            if "watermark" in one
            else StreamRecord(tuple(one["value"]), time(one["ts"]))
            for one in expected
        ]
        assert _sorted_between_watermarks(output) == _sorted_between_watermarks(wanted)


def _sorted_between_watermarks(elements):
    runs = [[]]
    for element in elements:
        if isinstance(element, Watermark):
            runs += [element], []
        else:
            runs[-1].append(element)
    return [sorted(run, key=repr) for run in runs if run]
