"""Tests that every source and sink must pass.  Derive from a suite and say what to test::

    class TestMySource(BoundedSourceSuite):
        def make_source(self):
            return MySource(...)

        def expected(self):
            return [...]            # every record, in any order

pytest finds the inherited tests.  They run in the test's process, without Spark.
"""

from __future__ import annotations

import pickle
from typing import Any

import cloudpickle

from flinkish.connectors.spi import Boundedness, InputStatus, Sink, Source
from flinkish.testing.spi_fakes import SinkRun, SourceRun


def _key(value: Any) -> str:
    """Puts records of any type in one order."""
    return repr(value)


class BoundedSourceSuite:
    """For sources that end."""

    parallelisms: tuple[int, ...] = (1, 2, 3)
    rooms: tuple[int, ...] = (1, 3, 1_000)

    def make_source(self) -> Source[Any, Any]:
        raise NotImplementedError("return the source to test")

    def expected(self) -> list[Any]:
        raise NotImplementedError("return every record that the source gives")

    def _parallelisms(self, source: Source[Any, Any]) -> tuple[int, ...]:
        fixed = source.fixed_parallelism
        return self.parallelisms if fixed is None else (fixed,)

    def test_source_is_bounded_and_travels_by_pickle(self):
        source = self.make_source()
        assert source.boundedness() is Boundedness.BOUNDED
        assert isinstance(cloudpickle.loads(cloudpickle.dumps(source)), type(source))

    def test_every_record_is_read_once_at_any_parallelism_and_room(self):
        expected = sorted(self.expected(), key=_key)
        source = self.make_source()
        for parallelism in self._parallelisms(source):
            for room in self.rooms:
                run = SourceRun(source, parallelism).run_until_end(room)
                assert sorted(run.values, key=_key) == expected, (parallelism, room)
                run.close()

    def test_reader_stops_at_the_room_of_its_output(self):
        source = self.make_source()
        for room in self.rooms:
            run = SourceRun(source, self._parallelisms(source)[0]).run_until_end(room)
            assert [output.overdraft for output in run.outputs] == [0] * len(run.outputs), room
            run.close()

    def test_reader_without_room_gives_nothing_and_does_not_end(self):
        run = SourceRun(self.make_source(), self._parallelisms(self.make_source())[0])
        for _ in range(5):
            run.step(0, 0)
        assert run.outputs[0].values == []
        assert self.expected() == [] or run.statuses[0] is not InputStatus.END_OF_INPUT
        run.close()

    def test_finished_splits_release_their_outputs(self):
        run = SourceRun(self.make_source(), self._parallelisms(self.make_source())[-1])
        run.run_until_end()
        assert [output.open_splits for output in run.outputs] == [[]] * len(run.outputs)
        run.close()

    def test_two_runs_give_each_reader_the_same_records_in_the_same_order(self):
        """Holds for the default rooms: readers turn by turn ask in the same order."""
        source = self.make_source()
        parallelism = self._parallelisms(source)[-1]
        first = SourceRun(source, parallelism).run_until_end(7)
        second = SourceRun(self.make_source(), parallelism).run_until_end(7)
        assert [o.records for o in first.outputs] == [o.records for o in second.outputs]
        first.close()
        second.close()

    def test_reader_restored_from_a_snapshot_goes_on_exactly_there(self):
        source = self.make_source()
        expected = sorted(self.expected(), key=_key)
        parallelism = self._parallelisms(source)[-1]
        for steps in (0, 1, 2, 5, 11):
            run = SourceRun(source, parallelism)
            for step in range(steps):
                run.step(step % parallelism, 3)
            before = list(run.values)
            state, splits = run.snapshot()
            # Records after the snapshot are lost with the reader.
            for subtask in range(parallelism):
                run.step(subtask, 5)
            run.close()
            restored = {subtask: [] for subtask in range(parallelism)}
            for index, split in enumerate(splits):
                restored[index % parallelism].append(split)
            again = SourceRun(source, parallelism, state, restored).run_until_end(4)
            assert sorted(before + again.values, key=_key) == expected, steps
            again.close()

    def test_splits_have_ids_of_their_own_and_travel_by_pickle(self):
        source = self.make_source()
        parallelism = self._parallelisms(source)[-1]
        run = SourceRun(source, parallelism)
        _, splits = run.snapshot()
        ids = [split.split_id() for split in splits]
        assert len(set(ids)) == len(ids)
        assert [pickle.loads(pickle.dumps(split)).split_id() for split in splits] == ids
        run.close()

    def test_reader_can_be_closed_before_its_first_poll(self):
        run = SourceRun(self.make_source(), self._parallelisms(self.make_source())[0])
        run.close()


class SinkSuite:
    """For sinks that publish at the end.  ``read_back`` returns what a reader of the target sees."""

    def make_sink(self) -> Sink[Any]:
        raise NotImplementedError("return the sink to test; two calls may name the same target")

    def records(self) -> list[Any]:
        raise NotImplementedError("return some records")

    def read_back(self) -> list[Any]:
        raise NotImplementedError("return the published records, in the form of records()")

    def test_sink_travels_by_pickle(self):
        sink = self.make_sink()
        assert isinstance(cloudpickle.loads(cloudpickle.dumps(sink)), type(sink))

    def test_what_all_writers_wrote_is_published_once(self):
        run = SinkRun(self.make_sink(), parallelism=2)
        records = self.records()
        for index, record in enumerate(records):
            run.write([record], subtask=index % 2)
        run.finish()
        assert sorted(self.read_back(), key=_key) == sorted(records, key=_key)

    def test_batches_and_single_records_give_the_same(self):
        run = SinkRun(self.make_sink())
        records = self.records()
        half = len(records) // 2
        run.write(records[:half])
        for record in records[half:]:
            run.writers[0].write(record, None, 0)
        run.finish()
        assert self.read_back() == records

    def test_nothing_is_seen_before_commit(self):
        run = SinkRun(self.make_sink())
        run.write(self.records())
        run.prepare()
        assert self.read_back() == []
        run.finish()
        assert self.read_back() == self.records()

    def test_failed_job_publishes_nothing_and_leaves_the_target_usable(self):
        run = SinkRun(self.make_sink(), parallelism=2)
        run.write(self.records(), subtask=0)
        run.writers[0].flush(True)
        run.committables += run.writers[0].prepare_commit()
        run.write(self.records(), subtask=1)  # still being written when the job fails
        run.fail()
        assert self.read_back() == []
        again = SinkRun(self.make_sink(), job_id="job1" * 8)
        again.write(self.records())
        again.finish()
        assert self.read_back() == self.records()

    def test_repeated_commit_changes_nothing(self):
        sink = self.make_sink()
        run = SinkRun(sink)
        run.write(self.records())
        run.finish()
        committer = sink.create_committer()
        committer.commit(run.committables)
        committer.close()
        assert self.read_back() == self.records()

    def test_empty_result_can_be_read(self):
        run = SinkRun(self.make_sink(), parallelism=2)
        run.finish()
        assert self.read_back() == []

    def test_writer_can_be_closed_at_once_and_twice(self):
        run = SinkRun(self.make_sink())
        run.fail()
        run.writers[0].close()
