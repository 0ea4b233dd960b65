"""Case B16 of the given semantics: state goes to the same names, whatever the order of the program's lines."""

import pickle

import pytest

from flinkish.datastream import StreamExecutionEnvironment
from flinkish.errors import StateMigrationError
from flinkish.graph.job_graph_generator import create_job_graph
from flinkish.jobmanager.restore_decision import adopt_max_parallelism, deal_out_checkpoint, decide_restore
from flinkish.messages.checkpoints import (
    CheckpointCommit,
    CompletedCheckpoint,
    DistributionMode,
    InFlightHandle,
    InFlightPart,
    InFlightRestore,
    InlineBytes,
    KeyedStateHandle,
    KeyGroupRange,
    OperatorSnapshot,
    OperatorStateHandle,
    OperatorSubtaskState,
    SnapshotKind,
    VertexInFlight,
)
from flinkish.messages.deployment import EdgeDescriptor


def program(names, parallelism=1, mapped=False, max_parallelism=None):
    """A union of sources, counted by key."""
    env = StreamExecutionEnvironment.get_execution_environment({"parallelism.default": parallelism})
    if max_parallelism is not None:
        env.set_max_parallelism(max_parallelism)
    streams = [env.from_sequence(1, 9).uid(f"source-{name}").name(name) for name in names]
    stream = streams[0] if len(streams) == 1 else streams[0].union(*streams[1:])
    if mapped:
        stream = stream.map(lambda value: value)
    counts = stream.key_by(lambda value: value % 3).reduce(lambda one, other: one + other).uid("counts")
    counts.print().uid("out")
    return create_job_graph(env.get_stream_graph("b16"))


def operators(graph):
    return {op.uid: (op, vertex) for vertex in graph.vertices for op in vertex.chain.operators if op.uid}


def checkpoint_of(graph, finished=(), **fields):
    """Each source has its own position in operator state, the reduction has keyed state."""
    snapshots = {}
    for uid, (op, vertex) in operators(graph).items():
        subtasks = {}
        for index in range(vertex.parallelism):
            if uid.startswith("source"):
                handle = OperatorStateHandle({"splits": (DistributionMode.SPLIT, (f"{uid} {index}".encode(),))})
                subtasks[index] = OperatorSubtaskState(operator=handle)
            elif uid == "counts":
                width = 128 // vertex.parallelism
                groups = KeyGroupRange(index * width, (index + 1) * width - 1)
                subtasks[index] = OperatorSubtaskState((KeyedStateHandle(groups, InlineBytes(b"keyed")),))
        ended = frozenset(range(vertex.parallelism)) if uid in finished else frozenset()
        snapshots[op.operator_id] = OperatorSnapshot(
            op.operator_id, uid, op.name, vertex.parallelism, vertex.max_parallelism,
            {} if ended else subtasks, ended, b"enumerator" if uid.startswith("source") else None,
        )  # fmt: skip
    return CompletedCheckpoint(
        "j", "b16", "run", 4, 0, 0, SnapshotKind.SAVEPOINT, "file:/sav/savepoint-j-4", snapshots, **fields
    )


def positions(graph, checkpoint):
    dealt = deal_out_checkpoint(graph, checkpoint)
    found = {}
    for uid, (op, vertex) in operators(graph).items():
        if uid.startswith("source"):
            (state,) = dealt[vertex.id, 0].operators[op.operator_id]
            found[uid] = state.operator.states["splits"][1]
    return found


def test_reordered_lines_and_an_inserted_map_keep_the_state_of_each_name():
    checkpoint = checkpoint_of(program("ABC"))
    changed = program("CAB", mapped=True)
    decision = decide_restore(changed, checkpoint)
    assert decision.refusal(ignore_unclaimed=False) is None
    assert positions(changed, checkpoint) == {
        f"source-{name}": (f"source-{name} 0".encode(),) for name in "ABC"
    }
    assert [operator.name for operator in decision.added] == ["Map"]
    assert any("new" in line and "Map" in line for line in decision.report({}))


def test_a_removed_source_is_refused_by_name_and_accepted_on_request():
    decision = decide_restore(program("CA"), checkpoint_of(program("ABC")))
    refusal = decision.refusal(ignore_unclaimed=False)
    assert isinstance(refusal, StateMigrationError) and "uid source-B" in refusal.why
    assert "source-A" not in refusal.why and "counts" not in refusal.why
    assert decision.refusal(ignore_unclaimed=True) is None
    assert any("DROPPED" in line and "source-B" in line for line in decision.report({}))


def test_an_operator_without_state_may_go_but_not_one_whose_committables_are_unpublished():
    whole = program("A")
    sink = operators(whole)["out"][0].operator_id
    without_sink = checkpoint_of(whole)
    env = StreamExecutionEnvironment.get_execution_environment()
    counts = env.from_sequence(1, 9).uid("source-A").key_by(lambda value: value % 3)
    counts.reduce(lambda one, other: one + other).uid("counts").print().uid("another")
    changed = create_job_graph(env.get_stream_graph("b16"))
    assert decide_restore(changed, without_sink).refusal(False) is None
    unpublished = checkpoint_of(whole, commits=(CheckpointCommit("j", "run", 4, {sink: (b"",)}),))
    assert "uid out" in decide_restore(changed, unpublished).refusal(False).why


def test_another_max_parallelism_is_refused_with_both_numbers():
    decision = decide_restore(program("A", max_parallelism=64), checkpoint_of(program("A", max_parallelism=128)))
    refusal = decision.refusal(ignore_unclaimed=True)
    assert isinstance(refusal, StateMigrationError)
    assert "max parallelism 128" in refusal.why and "has 64" in refusal.why
    assert list(decision.all_refusals(ignore_unclaimed=True)) == [refusal]


def test_a_program_without_a_max_parallelism_takes_the_saved_one_over():
    checkpoint = checkpoint_of(program("A", 2))
    graph = program("A", 100)  # 256 are derived
    adopt_max_parallelism(graph, checkpoint)
    assert not decide_restore(graph, checkpoint).refusals
    assert {vertex.max_parallelism for vertex in graph.vertices} == {128}
    outputs = [output for vertex in graph.vertices for output in vertex.chain.outputs]
    assert outputs and {output.target_max_parallelism for output in outputs} == {128}


def test_what_the_program_sets_and_what_would_not_fit_is_not_taken_over_and_is_refused():
    checkpoint = checkpoint_of(program("A", 2))
    for graph, do in (
        (program("A", 100, max_parallelism=256), "call set_max_parallelism(128)"),
        (program("A", 129), "run the operator with a parallelism of at most 128"),
    ):
        adopt_max_parallelism(graph, checkpoint)
        (refusal,) = decide_restore(graph, checkpoint).refusals
        assert refusal.do == do and "saved with max parallelism 128" in refusal.why


@pytest.mark.parametrize("parallelism", [1, 2, 3])
def test_with_another_parallelism_each_key_group_goes_to_one_subtask(parallelism):
    checkpoint = checkpoint_of(program("A", parallelism=2))
    graph = program("A", parallelism=parallelism)
    assert decide_restore(graph, checkpoint).refusal(False) is None
    op, vertex = operators(graph)["counts"]
    dealt = deal_out_checkpoint(graph, checkpoint)
    groups = [
        group
        for index in range(parallelism)
        for (state,) in [dealt[vertex.id, index].operators[op.operator_id]]
        for handle in state.keyed
        for group in range(handle.key_groups.start, handle.key_groups.end + 1)
    ]
    assert sorted(groups) == list(range(128))


def test_a_vertex_all_of_whose_operators_had_finished_is_restored_as_finished():
    graph = program("A")
    dealt = deal_out_checkpoint(graph, checkpoint_of(graph, finished={"source-A"}))
    source, counts = (operators(graph)[uid][1].id for uid in ("source-A", "counts"))
    assert dealt[source, 0].finished and not dealt[counts, 0].finished


def overtaken(graph, receiver=1, partitioner="HASH"):
    """Two records in flight to subtask ``receiver`` of the counts, one still with its sender."""
    (edge,) = operators(graph)["counts"][1].inputs
    described = EdgeDescriptor(edge.id, edge.source_vertex_id, edge.target_vertex_id, 0, partitioner, True)
    reached = InFlightPart(described, 0, receiver, True, 5, 10, 1)
    unsent = InFlightPart(described, 0, receiver, False, 15, 10, 2)
    return (
        VertexInFlight(edge.source_vertex_id, {0: (InFlightHandle(InlineBytes(b"s"), (unsent,)),)}),
        VertexInFlight(edge.target_vertex_id, {receiver: (InFlightHandle(InlineBytes(b"r"), (reached,)),)}),
    )


def test_records_in_flight_go_to_the_same_receiver_in_order_while_the_parallelism_stays():
    graph = program("A", parallelism=2)
    vertex = operators(graph)["counts"][1]
    checkpoint = checkpoint_of(graph, in_flight=overtaken(graph))
    assert decide_restore(graph, checkpoint).refusal(False) is None
    dealt = deal_out_checkpoint(graph, checkpoint)
    assert dealt[vertex.id, 0].in_flight == ()
    (edge,) = vertex.inputs
    assert dealt[vertex.id, 1].in_flight == (
        InFlightRestore(edge.id, 0, InlineBytes(b"r"), 5, 10, 1),
        InFlightRestore(edge.id, 0, InlineBytes(b"s"), 15, 10, 2),
    )


def test_keyed_records_in_flight_go_to_all_that_own_keys_of_the_old_receiver_and_are_picked_there():
    checkpoint = checkpoint_of(program("A", parallelism=2), in_flight=overtaken(program("A", parallelism=2)))
    graph = program("A", parallelism=4)
    assert decide_restore(graph, checkpoint).refusal(False) is None
    vertex = operators(graph)["counts"][1]
    dealt = deal_out_checkpoint(graph, checkpoint)
    assert [len(dealt[vertex.id, index].in_flight) for index in range(4)] == [0, 0, 2, 2]
    partitioner = pickle.loads(dealt[vertex.id, 3].in_flight[0].partitioner)
    assert partitioner.key_selector(8) == 2 and dealt[vertex.id, 3].in_flight[0].sender is None


@pytest.mark.parametrize("change", ["partitioner", "source"])
def test_records_in_flight_of_a_connection_that_is_gone_are_refused(change):
    graph = program("A")
    checkpoint = checkpoint_of(graph, in_flight=overtaken(graph, 0, "SHUFFLE" if change == "partitioner" else "HASH"))
    now = graph if change == "partitioner" else program("B")
    refusal = decide_restore(now, checkpoint).refusal(True)
    assert "unaligned" in refusal.why and "records in flight" in refusal.what


def test_an_input_that_is_added_to_what_has_finished_is_refused_for_nobody_would_read_it():
    finished = checkpoint_of(program("A"), finished={"source-A", "counts", "out"})
    assert decide_restore(program("A"), finished).refusal(ignore_unclaimed=False) is None
    error = decide_restore(program("AB"), finished).refusal(ignore_unclaimed=True)
    assert isinstance(error, StateMigrationError) and "B" in error.what and "had finished" in error.why
    some = checkpoint_of(program("A"), finished={"source-A"})
    assert decide_restore(program("AB"), some).refusal(ignore_unclaimed=False) is None
