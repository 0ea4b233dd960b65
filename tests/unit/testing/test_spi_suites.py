"""What the suites say of a source or sink that does not keep the contract."""

import pytest

from flinkish.connectors.collection import CollectionSource
from flinkish.connectors.spi import Committer, Sink, SinkWriter
from flinkish.testing.spi_suites import BoundedSourceSuite, SinkSuite


class WithoutSnapshots(CollectionSource):
    def create_reader(self, context):
        reader = super().create_reader(context)
        reader.snapshot_state = lambda checkpoint_id: []
        return reader


class SourceTests(BoundedSourceSuite):
    def __init__(self, kind=CollectionSource, values=range(40)):
        self.kind, self.values = kind, list(values)

    def make_source(self):
        return self.kind(self.values)

    def expected(self):
        return list(range(40))


def test_a_reader_without_snapshots_is_told_which_methods_to_write():
    suite = SourceTests(WithoutSnapshots)
    with pytest.raises(AssertionError, match="records are missing") as caught:
        suite.test_reader_restored_from_a_snapshot_goes_on_exactly_there()
    assert "SourceReader.snapshot_state (return every split that is not finished" in str(caught.value)
    assert "restored after" in str(caught.value)


def test_missing_and_surplus_records_are_shown():
    suite = SourceTests(values=[*range(1, 40), 7])
    with pytest.raises(AssertionError) as caught:
        suite.test_every_record_is_read_once_at_any_parallelism_and_room()
    assert "1 records are missing: [0], 1 are too many or others: [7]" in str(caught.value)


class ListSink(Sink):
    published: list = []

    def __init__(self, eager):
        self.eager = eager

    def create_writer(self, context):
        return ListWriter(self.eager)

    def create_committer(self):
        return ListCommitter()


class ListWriter(SinkWriter):
    def __init__(self, eager):
        self.eager, self.values = eager, []

    def write(self, value, timestamp_ms, watermark_ms):
        (ListSink.published if self.eager else self.values).append(value)

    def prepare_commit(self):
        values, self.values = self.values, []
        return values


class ListCommitter(Committer):
    def commit(self, committables):
        ListSink.published += committables


class SinkTests(SinkSuite):
    def __init__(self, eager):
        self.eager = eager
        ListSink.published = []

    def make_sink(self):
        return ListSink(self.eager)

    def records(self):
        return ["a", "b"]

    def read_back(self):
        return list(ListSink.published)


def test_a_writer_that_publishes_at_once_is_told_where_to_write():
    with pytest.raises(AssertionError, match="before Committer.commit: .*SinkWriter must write where readers"):
        SinkTests(eager=True).test_nothing_is_seen_before_commit()
    with pytest.raises(AssertionError, match="SinkWriter.close must publish nothing"):
        SinkTests(eager=True).test_failed_job_publishes_nothing_and_leaves_the_target_usable()


def test_a_committer_that_is_not_idempotent_is_told_so():
    SinkTests(eager=False).test_what_all_writers_wrote_is_published_once()
    with pytest.raises(AssertionError, match="committed twice: .*it must find what is published already"):
        SinkTests(eager=False).test_repeated_commit_changes_nothing()
