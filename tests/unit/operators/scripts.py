"""What is fed to a harness, as data: run whole, or cut by a snapshot and a restore after every step."""

from flinkish.testing import StreamRecord, StreamTestHarness, Watermark

BACKENDS = ("hashmap", "rocksdb")


def element(value, timestamp=None, input=0):
    return "process_element", (value, timestamp, input)


def elements(*records, input=0):
    """As one batch."""
    return "process_elements", (records, input)


def watermark(timestamp, inputs=1):
    """The same on all inputs."""
    return "process_watermark", [(timestamp, index) for index in range(inputs)]


def clock(ms):
    return "set_processing_time", (ms,)


class Run:
    """``results`` and ``sides``: what each step gave; ``tags``: of the side outputs to be looked at."""

    def __init__(self, build, steps, backend="hashmap", parallelism=1, fused=True, tags=(), cut=False):
        self.results, self.sides = [], []
        self._build, self._tags = build, tags
        self._fused = {"flinkish.fused-chains": str(fused).lower()}
        self._watermark = None
        harness = StreamTestHarness(build, backend, parallelism, configuration=self._fused)
        for number, (method, arguments) in enumerate(steps):
            for call in arguments if isinstance(arguments, list) else [arguments]:
                getattr(harness, method)(*call)
            self._take(harness)
            if cut:  # into the other backend, and every second time with another parallelism
                backend = BACKENDS[1 - BACKENDS.index(backend)]
                snapshot = harness.snapshot()
                harness.close()
                harness = StreamTestHarness.restore(
                    build, snapshot, 1 + (parallelism + number) % 2, backend, configuration=self._fused
                )
                self._take(harness, first=True)
        self.timers = harness.num_event_time_timers() + harness.num_processing_time_timers()
        harness.close()

    def _take(self, harness, first=False):
        """Watermarks that a restored source tells again are left out."""
        given = [record for record in harness.output if self._is_new(record)]
        sides = {tag.tag_id: list(harness.side_output(tag)) for tag in self._tags}
        harness.clear_output()
        if first:
            assert not given and not any(sides.values()), "a restore gives nothing by itself"
        else:
            self.results.append(given)
            self.sides.append(sides)

    def _is_new(self, record):
        if isinstance(record, StreamRecord):
            return True
        known, self._watermark = self._watermark, record.timestamp
        return known is None or record.timestamp > known

    @property
    def records(self):
        """Of all steps, with watermarks as ("WM", ms)."""
        return [
            ("WM", given.timestamp) if isinstance(given, Watermark) else (given.value, given.timestamp)
            for step in self.results
            for given in step
        ]

    def of_tag(self, tag):
        return [(record.value, record.timestamp) for step in self.sides for record in step[tag.tag_id]]


def in_any_order(results):
    """Results of each step where several subtasks give them; watermarks stay behind the records of their step."""
    return [sorted(step, key=lambda given: (isinstance(given, Watermark), repr(given))) for step in results]
