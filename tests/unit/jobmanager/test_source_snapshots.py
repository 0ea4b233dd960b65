import pytest

from flinkish.connectors.sequence import NumberSequenceSource
from flinkish.connectors.split_assignment import OnDemandSplitEnumerator
from flinkish.errors import InvalidJobError, StateMigrationError
from flinkish.jobmanager.coordinator_gateway import CoordinatorGateways
from flinkish.jobmanager.events import CoordinatorSaid
from flinkish.jobmanager.source_coordinator import SourceCoordinator
from flinkish.messages.control import SourceAddSplits, SourceNoMoreSplits, SourceRegister, SourceRequestSplit


def coordinator(sent, state=None, parallelism=2):
    made = SourceCoordinator(
        NumberSequenceSource(1, 10), "numbers", parallelism, lambda *said: sent.append(said), None, state
    )
    made.start()
    for subtask in range(parallelism):
        made.handle(subtask, 0, SourceRegister("host"))
    return made


def kinds(sent):
    return [(subtask, type(payload)) for subtask, _, payload in sent]


def test_a_restored_enumerator_hands_out_only_what_its_snapshot_still_had():
    sent = []
    first = coordinator(sent)
    first.handle(0, 0, SourceRequestSplit("host"))
    state = first.snapshot(1)
    first.handle(1, 0, SourceRequestSplit("host"))  # after the snapshot: still in it
    assert kinds(sent).count((1, SourceAddSplits)) == 1
    again = []
    restored = coordinator(again, state)
    for subtask in (0, 1):
        restored.handle(subtask, 0, SourceRequestSplit("host"))
    assert [payload.splits for *_, payload in again if isinstance(payload, SourceAddSplits)] == [
        payload.splits for subtask, _, payload in sent if subtask == 1 and isinstance(payload, SourceAddSplits)
    ]
    assert [type(payload) for *_, payload in again].count(SourceNoMoreSplits) == 2


def test_a_snapshot_of_an_unknown_format_is_refused_and_one_before_the_start_too():
    with pytest.raises(StateMigrationError, match="numbers"):
        coordinator([], b"FLKC\x09rest")
    with pytest.raises(StateMigrationError, match="cannot be unpickled"):
        coordinator([], b"FLKC\x01rest")
    made = SourceCoordinator(NumberSequenceSource(1, 10), "numbers", 1, lambda *said: None, None)
    with pytest.raises(InvalidJobError, match="has not started"):
        made.snapshot(1)


def test_a_closed_gateway_keeps_events_in_order_and_others_pass():
    gateways = CoordinatorGateways()
    said = [CoordinatorSaid("j", 0, name, 0, number) for number, name in enumerate("abab")]
    gateways.close("a")
    assert [gateways.pass_on(event) for event in said] == [False, True, False, True]
    gateways.check()
    assert gateways.open() == [said[0], said[2]] and gateways.open() == []
    assert gateways.pass_on(said[0])


# ---- readers that restart while the enumerator goes on


def tracking(sent, parallelism=2):
    made = SourceCoordinator(
        NumberSequenceSource(1, 10), "numbers", parallelism, lambda *said: sent.append(said), None, tracks_splits=True
    )
    made.start()
    for subtask in range(parallelism):
        made.handle(subtask, 0, SourceRegister("host"))
    return made


def splits_for(sent, subtask, attempt):
    return [
        payload.splits
        for to, of, payload in sent
        if (to, of) == (subtask, attempt) and isinstance(payload, SourceAddSplits)
    ]


@pytest.mark.parametrize("checkpoint_id, comes_again", [(0, True), (1, True), (2, False), (3, False)])
def test_splits_that_a_reader_has_got_since_its_checkpoint_come_back_and_go_to_it_again(checkpoint_id, comes_again):
    sent = []
    made = tracking(sent)
    made.snapshot(1)
    made.handle(0, 0, SourceRequestSplit("host"))
    made.snapshot(2)
    made.handle(1, 0, SourceRequestSplit("host"))
    made.snapshot(3)
    made.reset_subtask(0, checkpoint_id)
    assert list(made.registered_readers()) == [1]
    made.handle(0, 5, SourceRegister("host"))
    made.handle(0, 5, SourceRequestSplit("host"))
    assert splits_for(sent, 0, 5) == (splits_for(sent, 0, 0) if comes_again else [])
    assert splits_for(sent, 1, 0) and (0, 5, SourceNoMoreSplits()) in sent


def test_splits_of_a_complete_checkpoint_are_forgotten():
    made = tracking([])
    made.handle(0, 0, SourceRequestSplit("host"))
    made.snapshot(1)
    assert made._tracker.by_checkpoint
    made.notify_checkpoint_complete(1)
    assert not made._tracker.by_checkpoint


def test_a_split_that_is_assigned_to_a_reader_that_has_failed_and_is_not_known_to_comes_back_too():
    sent = []
    made = tracking(sent)
    made.handle(0, 0, SourceRequestSplit("host"))  # it is on its way while the reader fails
    made.reset_subtask(0, 0)
    made.reset_subtask(0, 0)  # it failed again before it had asked
    made.handle(0, 2, SourceRegister("host"))
    made.handle(0, 2, SourceRequestSplit("host"))
    assert len(splits_for(sent, 0, 2)) == 1


def test_an_enumerator_that_still_looks_for_splits_gives_none_to_a_reader_that_has_failed_meanwhile():
    calls = []

    class Looking(NumberSequenceSource):
        def create_enumerator(self, context):
            return OnDemandSplitEnumerator(context, lambda: ["one", "two"])

    sent = []
    made = SourceCoordinator(
        Looking(1, 2), "numbers", 2, lambda *said: sent.append(said), lambda *call: calls.append(call), tracks_splits=True
    )
    made.start()
    for subtask in range(2):
        made.handle(subtask, 0, SourceRegister("host"))
        made.handle(subtask, 0, SourceRequestSplit("host"))
    made.reset_subtask(0, 0)
    ((find, found, *_),) = calls
    found(find(), None)
    assert [(subtask, attempt) for subtask, attempt, _ in sent] == [(1, 0)]
    made.handle(0, 1, SourceRegister("host"))
    made.handle(0, 1, SourceRequestSplit("host"))
    assert [(subtask, attempt) for subtask, attempt, _ in sent] == [(1, 0), (0, 1)]
