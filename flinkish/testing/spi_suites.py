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


def _assert_same_records(found: list[Any], expected: list[Any], about: str, look_at: str) -> None:
    """In any order."""
    if sorted(found, key=repr) == sorted(expected, key=repr):
        return
    missing, surplus = list(expected), []
    for value in found:
        try:
            missing.remove(value)
        except ValueError:
            surplus.append(value)
    assert not missing and not surplus, (
        f"{about}: {len(missing)} records are missing: {missing[:5]!r}, {len(surplus)} are too many or "
        f"others: {surplus[:5]!r}; look at {look_at}"
    )


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
        assert source.boundedness() is Boundedness.BOUNDED, (
            f"Source.boundedness() returned {source.boundedness()!r}; a source that ends returns "
            "Boundedness.BOUNDED"
        )
        _assert_travels(source)

    def test_every_record_is_read_once_at_any_parallelism_and_room(self):
        expected = self.expected()
        source = self.make_source()
        for parallelism in self._parallelisms(source):
            for room in self.rooms:
                run = SourceRun(source, parallelism).run_until_end(room)
                _assert_same_records(
                    run.values,
                    expected,
                    f"read with parallelism {parallelism} and room for {room} records",
                    "SourceReader.poll_next and SplitEnumerator.handle_split_request (each split goes to "
                    "one reader), or at expected() of this suite",
                )
                run.close()

    def test_reader_stops_at_the_room_of_its_output(self):
        source = self.make_source()
        for room in self.rooms:
            run = SourceRun(source, self._parallelisms(source)[0]).run_until_end(room)
            assert [output.overdraft for output in run.outputs] == [0] * len(run.outputs), (
                f"SourceReader.poll_next gave more than the {room} records that output.room allowed; it "
                "must return when output.room is 0, and go on from there in the next call"
            )
            run.close()

    def test_reader_without_room_gives_nothing_and_does_not_end(self):
        run = SourceRun(self.make_source(), self._parallelisms(self.make_source())[0])
        for _ in range(5):
            run.step(0, 0)
        assert run.outputs[0].values == [], (
            "SourceReader.poll_next gave records although output.room was 0; look at output.room before "
            "the first record too"
        )
        assert self.expected() == [] or run.statuses[0] is not InputStatus.END_OF_INPUT, (
            "SourceReader.poll_next returned END_OF_INPUT before it had given its records; without room "
            "it returns InputStatus.MORE_AVAILABLE"
        )
        run.close()

    def test_finished_splits_release_their_outputs(self):
        run = SourceRun(self.make_source(), self._parallelisms(self.make_source())[-1])
        run.run_until_end()
        left = [split for output in run.outputs for split in output.open_splits]
        assert not left, (
            f"outputs of finished splits were kept: {left!r}; SourceReader.poll_next must call "
            "output.release_output_for_split(split_id) at the end of each split that it made one for, or "
            "an ended split holds back the watermark"
        )
        run.close()

    def test_two_runs_give_each_reader_the_same_records_in_the_same_order(self):
        """Holds for the default rooms: readers turn by turn ask in the same order."""
        source = self.make_source()
        parallelism = self._parallelisms(source)[-1]
        first = SourceRun(source, parallelism).run_until_end(7)
        second = SourceRun(self.make_source(), parallelism).run_until_end(7)
        assert [o.records for o in first.outputs] == [o.records for o in second.outputs], (
            "two runs gave a reader other records or another order; SplitEnumerator must hand splits out in "
            "a fixed order (sort what a listing returns), and SourceReader.poll_next read them in theirs"
        )
        first.close()
        second.close()

    def test_reader_restored_from_a_snapshot_goes_on_exactly_there(self):
        source = self.make_source()
        expected = self.expected()
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
            _assert_same_records(
                before + again.values,
                expected,
                f"restored after {steps} calls of poll_next, which had given {len(before)} records",
                "SourceReader.snapshot_state (return every split that is not finished, with the position "
                "behind the last record given), SourceReader.add_splits (go on at that position), "
                "SplitEnumerator.snapshot_state (return the splits that were not handed out) and "
                "Source.restore_enumerator (hand out only those)",
            )
            again.close()

    def test_splits_have_ids_of_their_own_and_travel_by_pickle(self):
        source = self.make_source()
        parallelism = self._parallelisms(source)[-1]
        run = SourceRun(source, parallelism)
        _, splits = run.snapshot()
        ids = [split.split_id() for split in splits]
        assert len(set(ids)) == len(ids), (
            f"SourceSplit.split_id() is not unique: {ids!r}; return what tells a split from all others of "
            "the source"
        )
        travelled = [pickle.loads(pickle.dumps(split)).split_id() for split in splits]
        assert travelled == ids, (
            f"SourceSplit.split_id() changed from {ids!r} to {travelled!r} by pickle; make it of the "
            "split's fields alone"
        )
        run.close()

    def test_reader_can_be_closed_before_its_first_poll(self):
        run = SourceRun(self.make_source(), self._parallelisms(self.make_source())[0])
        run.close()


def _assert_travels(described: Any) -> None:
    kind = type(described)
    travelled = cloudpickle.loads(cloudpickle.dumps(described))
    assert isinstance(travelled, kind), (
        f"a {kind.__name__} became a {type(travelled).__name__} by pickle; look at its __reduce__ or "
        "__getstate__"
    )


def _assert_published(found: list[Any], expected: list[Any], about: str, look_at: str) -> None:
    """In the order written."""
    _assert_same_records(found, expected, about, look_at)
    assert found == expected, (
        f"{about}: the order is {found[:5]!r}, written was {expected[:5]!r}; look at {look_at}"
    )


class SinkSuite:
    """For sinks that publish at the end.  ``read_back`` returns what a reader of the target sees."""

    def make_sink(self) -> Sink[Any]:
        raise NotImplementedError("return the sink to test; two calls may name the same target")

    def records(self) -> list[Any]:
        raise NotImplementedError("return some records")

    def read_back(self) -> list[Any]:
        raise NotImplementedError("return the published records, in the form of records()")

    def test_sink_travels_by_pickle(self):
        _assert_travels(self.make_sink())

    def test_what_all_writers_wrote_is_published_once(self):
        run = SinkRun(self.make_sink(), parallelism=2)
        records = self.records()
        for index, record in enumerate(records):
            run.write([record], subtask=index % 2)
        run.finish()
        _assert_same_records(
            self.read_back(),
            records,
            "published by two writers and one commit",
            "SinkWriter.prepare_commit (return what this writer wrote) and Committer.commit (it gets that of "
            "all writers at once, and adds to the target)",
        )

    def test_batches_and_single_records_give_the_same(self):
        run = SinkRun(self.make_sink())
        records = self.records()
        half = len(records) // 2
        run.write(records[:half])
        for record in records[half:]:
            run.writers[0].write(record, None, 0)
        run.finish()
        _assert_published(
            self.read_back(),
            records,
            "half was given to write_batch and half to write",
            "SinkWriter.write and SinkWriter.write_batch: both take records in the order of the calls",
        )

    def test_nothing_is_seen_before_commit(self):
        run = SinkRun(self.make_sink())
        run.write(self.records())
        run.prepare()
        seen = self.read_back()
        assert seen == [], (
            f"{len(seen)} records were published before Committer.commit: {seen[:5]!r}; SinkWriter must "
            "write where readers do not look, and Committer.commit publish it"
        )
        run.finish()
        _assert_published(
            self.read_back(), self.records(), "prepared twice and committed", "SinkWriter.prepare_commit"
        )

    def test_failed_job_publishes_nothing_and_leaves_the_target_usable(self):
        run = SinkRun(self.make_sink(), parallelism=2)
        run.write(self.records(), subtask=0)
        run.writers[0].flush(True)
        run.committables += run.writers[0].prepare_commit()
        run.write(self.records(), subtask=1)  # still being written when the job fails
        run.fail()
        seen = self.read_back()
        assert seen == [], (
            f"a failed job published {len(seen)} records: {seen[:5]!r}; SinkWriter.close must publish "
            "nothing, and Committer.abort remove what was prepared"
        )
        again = SinkRun(self.make_sink(), job_id="job1" * 8)
        again.write(self.records())
        again.finish()
        _assert_published(
            self.read_back(),
            self.records(),
            "written by another job after one had failed",
            "SinkWriter.close and Committer.abort: what a failed job leaves must not block the next",
        )

    def test_repeated_commit_changes_nothing(self):
        sink = self.make_sink()
        run = SinkRun(sink)
        run.write(self.records())
        run.finish()
        committer = sink.create_committer()
        if committer is not None:
            committer.commit(run.committables)
            committer.close()
        _assert_published(
            self.read_back(),
            self.records(),
            "committed twice",
            "Committer.commit: it is called again when the driver does not know how the first call ended, "
            "so it must find what is published already",
        )

    def test_empty_result_can_be_read(self):
        run = SinkRun(self.make_sink(), parallelism=2)
        run.finish()
        seen = self.read_back()
        assert seen == [], f"a job without records published {seen[:5]!r}; look at SinkWriter.prepare_commit"

    def test_writer_can_be_closed_at_once_and_twice(self):
        run = SinkRun(self.make_sink())
        run.fail()
        run.writers[0].close()
