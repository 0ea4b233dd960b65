"""Watermark alignment in a reader: it reports, stops ahead of the limit, goes on below it; so do its splits."""

import pytest

from flinkish.common.watermark_strategy import WatermarkStrategy
from flinkish.errors import InvalidJobError
from flinkish.messages.control import SourceReportedWatermark, SourceWatermarkAlignment
from flinkish.messages.elements import MAX_WATERMARK_MS, Watermark, WatermarkStatus
from flinkish.taskmanager.source_input import SourceInput
from tests.unit.operators import source_chains
from tests.unit.operators.chains import snapshot
from tests.unit.operators.source_chains import SourceChain, bounded, split

SECOND = 1_000


class PausingReader(source_chains.ScriptedReader):
    def pause_or_resume_splits(self, splits_to_pause, splits_to_resume):
        self.log.append(("pause", splits_to_pause, "resume", splits_to_resume))


class PausingSource(source_chains.ScriptedSource):
    def create_reader(self, context):
        return PausingReader(context)


def aligned(strategy=None):
    return (strategy or bounded()).with_watermark_alignment("g", 100, SECOND)


def chain_of(strategy=None, source=None, **options):
    return SourceChain(aligned(strategy), source=source or PausingSource(), **options)


def reports(chain):
    return [payload.watermark_ms for _, payload in chain.events if isinstance(payload, SourceReportedWatermark)]


def pauses(chain):
    return [entry for entry in chain.reader.log if entry[0] == "pause"]


def limit(chain, watermark):
    chain.event(SourceWatermarkAlignment(watermark))


def test_a_reader_reports_its_watermark_once_an_interval_when_there_is_news():
    chain = chain_of().assign("p0")
    chain.poll(split("p0", 500)).time(200).time(800)
    assert reports(chain) == []
    chain.time(SECOND)
    assert reports(chain) == [499]
    chain.time(2 * SECOND)
    assert reports(chain) == [499]
    chain.poll(split("p0", 900)).time(2_200).time(3 * SECOND)
    assert reports(chain) == [499, 899]


def test_a_reader_without_a_watermark_reports_nothing_an_idle_one_and_one_at_its_end_the_last_there_is():
    chain = chain_of(bounded().with_idleness(2_000)).assign("p0")
    chain.time(SECOND)
    assert reports(chain) == []
    chain.poll(split("p0", 500)).time(1_200).time(2_200).time(3_400).time(4_400)
    assert chain.marks == [Watermark(499), WatermarkStatus(True)]
    assert reports(chain) == [499, MAX_WATERMARK_MS]
    chain.poll(split("p0", 600)).time(5_000).time(5_600)
    assert reports(chain) == [499, MAX_WATERMARK_MS, 599]
    chain.end()
    assert reports(chain)[3:] == [MAX_WATERMARK_MS]


def test_reports_come_also_without_periodic_watermarks():
    chain = chain_of(configuration={"pipeline.auto-watermark-interval": 0}).assign("p0")
    chain.poll(lambda output: output.create_output_for_split("p0").emit_watermark(7))
    assert chain.chain.next_processing_time() == SECOND
    chain.time(SECOND)
    assert reports(chain) == [7]


def test_a_reader_is_paused_above_its_limit_and_not_at_it():
    chain = chain_of().assign("p0")
    assert not chain.source.is_paused and chain.source.metrics()["watermarkAlignmentDrift"] == 0
    chain.poll(split("p0", 501)).tick()
    limit(chain, 500)
    assert not chain.source.is_paused and chain.source.metrics()["watermarkAlignmentDrift"] == 0
    chain.poll(split("p0", 502)).tick()
    assert chain.source.is_paused and chain.source.metrics()["watermarkAlignmentDrift"] == 1
    limit(chain, 501)
    assert not chain.source.is_paused


def test_a_paused_reader_is_not_silent():
    chain = chain_of(bounded().with_idleness(300)).assign("p0")
    chain.poll(split("p0", 900)).tick()
    limit(chain, 100)
    for _ in range(5):
        chain.tick()
    assert chain.marks == [Watermark(899)]
    limit(chain, 1_000)
    for _ in range(3):
        chain.tick()
    assert chain.marks == [Watermark(899), WatermarkStatus(True)]


def test_splits_that_are_ahead_are_paused_and_resumed_one_by_one():
    chain = chain_of().assign("p0", "p1", "p2")
    limit(chain, 500)
    chain.poll(split("p0", 900)).poll(split("p1", 600)).poll(split("p2", 10)).tick()
    assert pauses(chain) == [("pause", ["p0", "p1"], "resume", [])] and not chain.source.is_paused
    limit(chain, 700)
    assert pauses(chain)[1:] == [("pause", [], "resume", ["p1"])]
    limit(chain, 700)
    chain.tick()
    assert len(pauses(chain)) == 2


def test_a_paused_split_does_not_become_idle_and_a_silent_one_beside_it_does():
    chain = chain_of(bounded().with_idleness(300)).assign("p0", "p1")
    limit(chain, 500)
    chain.poll(split("p0", 900)).poll(split("p1", 10))
    for _ in range(5):
        chain.tick()
    assert chain.marks == [Watermark(9), Watermark(899)]  # p1 is idle, so p0 counts alone, and is active
    assert chain.source.is_paused


def test_a_split_that_has_ended_while_paused_is_not_resumed_and_the_last_one_waits_with_its_reader():
    chain = chain_of().assign("p0", "p1")
    limit(chain, 500)
    chain.poll(split("p0", 900)).poll(split("p1", 800)).tick()
    assert pauses(chain) == [("pause", ["p0", "p1"], "resume", [])]
    chain.poll(lambda output: output.release_output_for_split("p0"))
    assert pauses(chain)[1:] == [("pause", [], "resume", ["p1"])]  # its reader is paused instead
    assert chain.source.is_paused


def test_a_reader_that_cannot_pause_splits_fails_unless_the_settings_allow_it():
    for allowed in (False, True):
        configuration = {"pipeline.watermark-alignment.allow-unaligned-source-splits": allowed}
        chain = chain_of(source=source_chains.ScriptedSource(), configuration=configuration).assign("p0", "p1")
        limit(chain, 500)
        chain.poll(split("p0", 900)).poll(split("p1", 800))
        if allowed:
            chain.tick()
            assert chain.source.is_paused
        else:
            with pytest.raises(InvalidJobError, match="p0, p1(.|\n)*ScriptedReader(.|\n)*allow-unaligned"):
                chain.tick()


def test_the_error_of_a_reader_that_pauses_names_the_source():
    class Broken(PausingReader):
        def pause_or_resume_splits(self, splits_to_pause, splits_to_resume):
            raise OSError("gone")

    class BrokenSource(PausingSource):
        def create_reader(self, context):
            return Broken(context)

    chain = chain_of(source=BrokenSource()).assign("p0", "p1")
    chain.poll(split("p0", 900)).poll(split("p1", 1)).tick()
    with pytest.raises(Exception, match='gone(.|\n)*"SourceOperator 0"(.|\n)*pause_or_resume_splits'):
        limit(chain, 500)


def test_a_restored_reader_gets_no_further_than_it_was_until_it_is_told_how_far():
    chain = chain_of().assign("p0", "p1")
    limit(chain, 500)
    chain.poll(split("p0", 901)).poll(split("p1", 11)).tick()
    chain.reader.snapshot_state = lambda checkpoint_id: [source_chains.Split(name) for name in ("p0", "p1")]
    restore, _ = snapshot(chain)
    restored = chain_of(restore=restore)
    assert restored.source.alignment.max_watermark == 900
    restored.poll(split("p0", 950)).poll(split("p1", 2_000)).tick()
    assert pauses(restored) == [("pause", ["p0", "p1"], "resume", [])] and restored.source.is_paused
    limit(restored, 990)
    assert not restored.source.is_paused
    restored.time(SECOND)
    assert reports(restored) == [949]
    assert chain_of().source.alignment.max_watermark == MAX_WATERMARK_MS


def test_a_source_that_waits_is_not_polled_takes_barriers_and_is_polled_at_once_when_it_may_go_on():
    chain = chain_of().assign("p0")
    reader_input = SourceInput(chain.source, chain.clock, lambda: 0, slow_ns=1_000)
    chain.poll(split("p0", 900)).tick()
    limit(chain, 500)
    chain.reader.script += [split("p0", 1_000)]
    for look in (True, False):
        reader_input.begin_turn()
        reader_input.look = look
        assert reader_input.next_element(100, 100, at_end=False) is None
        assert not reader_input.has_input and not reader_input.may_have_more(False)
        assert not reader_input.is_to_be_asked() and reader_input.next_poll_ms is None
    reader_input.put("a barrier")
    assert reader_input.has_input and reader_input.next_element(100, 100, at_end=False) == "a barrier"
    assert len(chain.reader.script) == 1
    limit(chain, 2_000)
    reader_input.begin_turn()
    assert reader_input.is_to_be_asked()
    assert reader_input.next_element(100, 100, at_end=False).values == [1_000]


def test_alignment_needs_a_group_a_drift_and_an_interval():
    strategy = WatermarkStrategy.no_watermarks()
    for arguments in ((None, 5), ("", 5), ("g", -1), ("g", 5, 0)):
        with pytest.raises(InvalidJobError):
            strategy.with_watermark_alignment(*arguments)
