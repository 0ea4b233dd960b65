import pytest

from flinkish.connectors.sequence import NumberSequenceSource
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
        made.handle(subtask, SourceRegister("host"))
    return made


def kinds(sent):
    return [(subtask, type(payload)) for subtask, payload in sent]


def test_a_restored_enumerator_hands_out_only_what_its_snapshot_still_had():
    sent = []
    first = coordinator(sent)
    first.handle(0, SourceRequestSplit("host"))
    state = first.snapshot(1)
    first.handle(1, SourceRequestSplit("host"))  # after the snapshot: still in it
    assert kinds(sent).count((1, SourceAddSplits)) == 1
    again = []
    restored = coordinator(again, state)
    for subtask in (0, 1):
        restored.handle(subtask, SourceRequestSplit("host"))
    assert [payload.splits for _, payload in again if isinstance(payload, SourceAddSplits)] == [
        payload.splits for subtask, payload in sent if subtask == 1 and isinstance(payload, SourceAddSplits)
    ]
    assert [type(payload) for _, payload in again].count(SourceNoMoreSplits) == 2


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
