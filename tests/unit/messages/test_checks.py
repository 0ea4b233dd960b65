"""A message that is not what its class says is refused, whatever is wrong and however deep."""

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flinkish.errors import SlotLostError, UserFunctionError
from flinkish.messages import checks, control
from flinkish.messages.checks import MessageRefused, check_message
from flinkish.messages.deployment import ExecutionAttemptID, SlotAddress, TaskFailure

EXECUTION = ExecutionAttemptID("job", 0, "vertex", 1)
ADDRESS = SlotAddress("slot", "host", None, ("127.0.0.1", 7))
GOOD = [
    control.RegisterSupervisor("lease", 0, 1, "host", 17, ("a", "b")),
    control.SupervisorHeartbeat(
        (control.SlotReport("a", 17, 3), control.SlotReport("b", 18, 0, -9, "killed"))
    ),
    control.Heartbeat(),
    control.RegisterSlot("lease", "slot", 17, ADDRESS),
    control.TasksDeployed("job", 0),
    control.TaskStateChanged(EXECUTION, "RUNNING"),
    control.TaskStateChanged(EXECUTION, "FAILED", TaskFailure(UserFunctionError("boom"))),
    control.SlotFailed("slot", "job", (), TaskFailure(SlotLostError("gone")), "peer"),
    control.OperatorEvent(EXECUTION, "source", control.SourceRequestSplit("host")),
    control.MetricsReport("job", "slot", {"task": {"numRecordsIn": 1, "busy": None}}),
    control.PeerHello("job", 0, "slot"),
]


@pytest.mark.parametrize("message", GOOD, ids=lambda message: type(message).__name__)
def test_a_good_message_passes(message):
    check_message(message)


def test_every_message_has_a_check():
    for cls in vars(control).values():
        if isinstance(cls, type) and cls.__module__ == control.__name__:
            checks._record_check(cls)


def changed(message, **fields):
    return dataclasses.replace(message, **fields)


@pytest.mark.parametrize(
    "message, said",
    [
        (changed(GOOD[0], spark_attempt="1"), "RegisterSupervisor.spark_attempt is a str, not int"),
        (changed(GOOD[0], spark_attempt=True), "is a bool, not int"),
        (changed(GOOD[0], spark_attempt=2**63), "does not fit into 64 bits"),
        (changed(GOOD[0], slot_ids=["a"]), "is a list, not tuple"),
        (changed(GOOD[0], slot_ids=("a", None)), "an entry of RegisterSupervisor.slot_ids is a NoneType"),
        (changed(GOOD[0], slot_ids=("a",) * (checks.ENTRIES_MAX + 1)), "entries, at most"),
        (changed(GOOD[0], host="x" * (checks.TEXT_CHARACTERS_MAX + 1)), "characters, at most"),
        (changed(GOOD[3], address=("127.0.0.1", 7)), "RegisterSlot.address is a tuple, not SlotAddress"),
        (changed(GOOD[3], address=changed(ADDRESS, tcp=("127.0.0.1", 7, 8))), "tcp has 3 entries, not 2"),
        (changed(GOOD[3], address=changed(ADDRESS, unix_path=b"x")), "unix_path is a bytes, not str"),
        (changed(GOOD[5], state="EXPLODED"), "TaskStateChanged.state is none of INITIALIZING, RUNNING"),
        (changed(GOOD[5], state=["RUNNING"]), "TaskStateChanged.state is none of"),
        (changed(GOOD[6], failure=TaskFailure(ValueError("x"))), "is a ValueError, not a FlinkishError"),
        (changed(GOOD[9], tasks={"task": 3}), "a value of MetricsReport.tasks is a int, not dict"),
        (changed(GOOD[9], tasks={3: {}}), "a key of MetricsReport.tasks is a int, not str"),
        (ADDRESS, "a SlotAddress is no message"),
        ({"job_id": "job"}, "a dict is no message"),
        (control.PeerHello, "a type is no message"),
    ],
)
def test_what_is_wrong_is_named(message, said):
    with pytest.raises(MessageRefused, match=said.replace(".", r"\.")):
        check_message(message)


def test_a_message_without_a_field_is_refused():
    message = object.__new__(control.PeerHello)
    with pytest.raises(MessageRefused, match="PeerHello.job_id is missing"):
        check_message(message)


@given(st.sampled_from(GOOD), st.data())
def test_any_value_in_any_field_passes_or_is_refused_and_nothing_else(message, data):
    fields = dataclasses.fields(message)
    values = st.recursive(
        st.none() | st.integers() | st.text() | st.binary() | st.booleans() | st.floats(),
        lambda inner: st.lists(inner) | st.tuples(inner, inner) | st.dictionaries(st.text(), inner),
        max_leaves=5,
    )
    if fields:
        field = data.draw(st.sampled_from(fields))
        message = dataclasses.replace(message, **{field.name: data.draw(values)})
    try:
        check_message(message)
    except MessageRefused:
        return
