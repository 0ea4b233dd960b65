"""Chains without a task: a writer that remembers, a clock by hand, and a driver that resumes."""

from __future__ import annotations

import itertools

from flinkish.datastream.partitioners import ForwardPartitioner
from flinkish.graph.job_graph import ChainedOperator, ChainEdge, OperatorChainSpec, OutputEdge
from flinkish.messages.checkpoints import OperatorSubtaskState
from flinkish.messages.deployment import TaskRestore
from flinkish.messages.elements import RowBatch, Watermark, WatermarkStatus
from flinkish.operators.chain import OperatorChain
from flinkish.operators.output import RecordWriter, TaskEnvironment
from flinkish.testing.manual_clock import timers_at_their_time


class ListWriter(RecordWriter):
    """Keeps the very objects that it is given.  ``capacity`` records fit until the driver empties it;
    like a real buffer, the open list is another one after that."""

    def __init__(self, capacity=1_000_000):
        self.capacity = capacity
        self.open = []
        self.sent = []
        self.overdraft = 0

    @property
    def room(self):
        return self.capacity - len(self.open)

    @property
    def records_out(self):
        return len(self.elements)

    def seal(self):
        self.overdraft = max(self.overdraft, len(self.open) - self.capacity)
        self.sent += self.open
        self.open = []

    @property
    def elements(self):
        return self.sent + self.open

    def emit(self, value, timestamp):
        self.open.append((value, timestamp))

    def emit_batch(self, values, timestamps):
        self.open += zip(values, timestamps or itertools.repeat(None))

    def emit_columns(self, columns, timestamps):
        self.open.append((columns, timestamps))

    def emit_watermark(self, timestamp):
        self.open.append(Watermark(timestamp))

    def emit_watermark_status(self, idle):
        self.open.append(WatermarkStatus(idle))

    def emit_latency_marker(self, marker):
        self.open.append(marker)

    def generate(self, code, value, timestamp):
        append = code.variable("append")
        code.before(f"{append} = {code.bind('writer', self)}.open.append")
        code.line(f"{append}(({value}, {timestamp}))")


class Clock:
    def __init__(self, ms=0):
        self.ms = ms

    def __call__(self):
        return self.ms


class Chain:
    """An open OperatorChain with its writers.

    Args:
        operators: ``description`` or ``(description, key selector, ...)`` each; a line unless ``edges``.
        edges: ``(source, target[, tag])`` by position.
        outputs: ``(source[, tag])`` by position; default: the last operator's main output.
    """

    def __init__(
        self, *operators, edges=None, outputs=None, fused=True, capacity=1_000_000, clock=None,
        key_type=None, partitioner=None, name=None, **environment,
    ):  # fmt: skip
        chained = []
        for i, operator in enumerate(operators):
            description, *selectors = operator if isinstance(operator, tuple) else (operator,)
            chained.append(
                ChainedOperator(
                    i, f"id-{i}", name or f"{type(description).__name__} {i}", description,
                    tuple(selectors), key_type,
                )
            )  # fmt: skip
        edges = [(i, i + 1) for i in range(len(chained) - 1)] if edges is None else edges
        outputs = [(len(chained) - 1,)] if outputs is None else outputs
        self.clock = clock or Clock()
        self.events = []
        self.writers = [ListWriter(capacity) for _ in outputs]
        environment.setdefault("configuration", {})
        self.environment = TaskEnvironment(
            "job", "job name", "task", 1, 3, 128, 0, "host", environment.pop("configuration"),
            self.clock, lambda operator, payload: self.events.append((operator, payload)), lambda: None,
            **environment,
        )  # fmt: skip
        spec = OperatorChainSpec(
            tuple(chained),
            tuple(ChainEdge(*edge) for edge in edges),
            tuple(
                OutputEdge(
                    i, output[0], partitioner or ForwardPartitioner(), 128,
                    output[1] if len(output) > 1 else None,
                )
                for i, output in enumerate(outputs)
            ),
        )  # fmt: skip
        self.chain = OperatorChain(spec, self.environment, dict(enumerate(self.writers)), fused)
        self.suspensions = 0
        self.chain.open()

    def run(self, generator):
        for _ in generator:
            self.suspensions += 1
            for writer in self.writers:
                writer.seal()

    def rows(self, values, timestamps=None, input=0, size=None):
        """Feed records as batches of ``size``, each as one slice; a full writer is emptied between."""
        size = size or max(1, len(values))
        for start in range(0, len(values), size):
            stop = min(len(values), start + size)
            if not self.chain.expanding:
                for writer in self.writers:
                    writer.seal()
            times = None if timestamps is None else list(timestamps[start:stop])
            batch = RowBatch(list(values[start:stop]), times)
            self.run(self.chain.process_batch(input, batch, 0, stop - start))
        return self

    def watermark(self, timestamp, input=0):
        self.run(self.chain.process_watermark(input, timestamp))
        return self

    def status(self, idle, input=0):
        self.run(self.chain.process_watermark_status(input, idle))
        return self

    def time(self, ms):
        with timers_at_their_time([self.chain]):
            return self.slot_time(ms)

    def slot_time(self, ms):
        """As a slot does: timers for ``ms`` itself fire later."""
        self.clock.ms = ms
        self.run(self.chain.on_processing_time(ms))
        return self

    def end(self, input=0):
        self.run(self.chain.end_input(input))
        return self

    @property
    def output(self):
        return self.writers[0].elements

    @property
    def values(self):
        return [element[0] for element in self.output if isinstance(element, tuple)]

    def close(self):
        self.chain.close()


def snapshot(chain, checkpoint_id=1):
    """What each operator has saved, as it comes back at a restore; and the parts themselves."""
    chain.run(chain.chain.prepare_snapshot_pre_barrier(checkpoint_id))
    parts = chain.chain.snapshot_state(checkpoint_id, 0)
    states = {part.operator_id: (OperatorSubtaskState((), part.operator),) for part in parts if part.operator}
    return TaskRestore(checkpoint_id, states), {part.operator_id: part for part in parts}
