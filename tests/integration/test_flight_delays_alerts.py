"""The alerts of the main job on a handful of flights, and its source by the suite for sources."""

import importlib
import pathlib

import pyarrow as pa
import pytest

from flinkish.testing.spi_suites import BoundedSourceSuite
from flinkish.testing.stream_test_harness import StreamTestHarness

JOBS = pathlib.Path(__file__).resolve().parents[2] / "jobs"


@pytest.fixture
def job(monkeypatch):
    monkeypatch.syspath_prepend(str(JOBS))
    return importlib.import_module("flight_delays")


@pytest.fixture
def harness(job):
    def build(flights):
        return flights.key_by(lambda flight: flight.tailnum).process(job.LateRuns())

    harness = StreamTestHarness(build)
    yield harness
    harness.close()


def send(harness, job, event_time, delay, flight=1, carrier="UA", tailnum="N1"):
    record = job.Flight("JFK", carrier, flight, tailnum, event_time, delay)
    harness.process_element(record, event_time)


def alerts(harness):
    harness.process_watermark(10_000)
    return [element.value for element in harness.output if hasattr(element, "value")]


def test_third_late_departure_in_a_row_alerts_once(harness, job):
    for event_time in range(1, 7):
        send(harness, job, event_time, 16, flight=event_time * 10)
    assert alerts(harness) == [("N1", 3, 30, "UA", 1)]


def test_a_departure_of_15_minutes_ends_a_run_and_the_next_run_alerts_again(harness, job):
    for event_time, delay in enumerate([99, 99, 15, 16, 16, 16, -3, 20, 20, 20], 1):
        send(harness, job, event_time, delay)
    assert [(alert[1], alert[4]) for alert in alerts(harness)] == [(6, 4), (10, 8)]


def test_flights_count_in_scheduled_order_whatever_order_they_come_in(harness, job):
    for event_time, delay in [(5, 20), (2, 20), (3, 0), (6, 20), (4, 20), (1, 20)]:
        send(harness, job, event_time, delay)
    assert alerts(harness) == [("N1", 6, 1, "UA", 4)]


def test_flights_of_one_time_count_by_flight_number_then_carrier(harness, job):
    send(harness, job, 1, 20)
    send(harness, job, 2, 20, flight=9, carrier="UA")
    send(harness, job, 2, 20, flight=10, carrier="AA")
    send(harness, job, 2, 0, flight=9, carrier="AA")
    send(harness, job, 3, 20)
    # AA 9 is on time and ends the run of time 1; UA 9 begins the next one.
    assert alerts(harness) == [("N1", 3, 1, "UA", 2)]


def test_aircraft_do_not_mix_and_no_timers_are_left(harness, job):
    for event_time in range(1, 4):
        for tailnum in ("N1", "N2"):
            send(harness, job, event_time, 20, tailnum=tailnum)
    assert sorted(alert[0] for alert in alerts(harness)) == ["N1", "N2"]
    assert harness.num_event_time_timers() == 0


def test_a_flight_behind_the_watermark_is_dropped(harness, job):
    harness.process_watermark(5)
    for event_time in (4, 5, 6, 7):
        send(harness, job, event_time, 20)
    assert alerts(harness) == []


class TestFlightSource(BoundedSourceSuite):
    """On the first 500 flights."""

    @pytest.fixture(autouse=True)
    def few_flights(self, job, monkeypatch):
        self.job = job
        self.table = job.read_flights().slice(0, 500)
        monkeypatch.setattr(job, "read_flights", lambda: self.table)

    def make_source(self):
        return self.job.FlightSource()

    def expected(self):
        return [tuple(row.values()) for row in self.table.to_pylist()]

    def test_event_times_go_back_but_arrival_does_not(self):
        times = self.table.column("event_time").to_pylist()
        delays = self.table.column("delay").to_pylist()
        arrivals = [time + (delay or 0) * 60_000 for time, delay in zip(times, delays)]
        assert arrivals == sorted(arrivals) and times != sorted(times)
        assert self.table.schema.field("event_time").type == pa.int64()
