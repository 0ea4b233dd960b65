"""Transformations -> StreamGraph: virtual nodes resolved, defaults filled in, bad programs refused.

Unions, partitions and side outputs are virtual: they become properties of edges.  Where columns
meet an operator that takes rows, one ``ColumnsToRows`` node is put in, at the producer.

Source: Flink's ``StreamGraphGenerator``, ``StreamGraph.addEdge`` and ``StreamGraphHasherV2``.
"""

from __future__ import annotations

import functools
import hashlib
import heapq
import re
from dataclasses import replace
from typing import Any, Iterable, Mapping, NamedTuple, Optional, Sequence

from flinkish.common import options
from flinkish.common.configuration_check import check_state_backend
from flinkish.datastream.execution_mode import RuntimeExecutionMode
from flinkish.datastream.partitioners import (
    BroadcastPartitioner,
    CustomPartitioner,
    ForwardPartitioner,
    KeyGroupPartitioner,
    RebalancePartitioner,
    StreamPartitioner,
)
from flinkish.datastream.transformations import (
    BroadcastProcessOperator,
    ChainingStrategy,
    ColumnsToRowsOperator,
    IntervalJoinOperator,
    KeyedBroadcastProcessOperator,
    KeyedCoProcessOperator,
    KeyedProcessOperator,
    PartitionTransformation,
    PhysicalTransformation,
    ReduceOperator,
    SideOutputTransformation,
    SinkOperator,
    SourceOperator,
    Transformation,
    UnionTransformation,
    WindowOperator,
)
from flinkish.errors import InvalidJobError
from flinkish.graph.runtime_mode import determine_execution_mode
from flinkish.graph.stream_graph import (
    DEFAULT_SLOT_SHARING_GROUP,
    StreamEdge,
    StreamGraph,
    StreamNode,
)
from flinkish.state.key_groups import check_parallelism, default_max_parallelism

DEFAULT_JOB_NAME = "Flinkish Streaming Job"
_KEYED = (
    IntervalJoinOperator,
    KeyedBroadcastProcessOperator,
    KeyedCoProcessOperator,
    KeyedProcessOperator,
    ReduceOperator,
    WindowOperator,
)
_BROADCAST_STATE = (BroadcastProcessOperator, KeyedBroadcastProcessOperator)


class _Input(NamedTuple):
    """A physical input behind virtual ones; the partitioner nearest to the consumer wins."""

    node_id: int
    partitioner: Optional[StreamPartitioner]
    output_tag: Any


class StreamGraphGenerator:
    """Makes a StreamGraph of what the user's calls left behind.

    Args:
        transformations: the sinks, or all; what they read from is found from them.
        configuration: the job's, by Flink's keys.
        job_name: shown in logs and the UI; None: ``pipeline.name``.
        parallelism: of operators without one; None: ``parallelism.default``.
        max_parallelism: of operators without one; None: ``pipeline.max-parallelism``, else by the
            operator's parallelism.
        chaining_enabled: None: ``pipeline.operator-chaining.enabled``.
    """

    def __init__(
        self,
        transformations: Iterable[Transformation],
        configuration: Optional[Mapping[str, Any]] = None,
        job_name: Optional[str] = None,
        parallelism: Optional[int] = None,
        max_parallelism: Optional[int] = None,
        chaining_enabled: Optional[bool] = None,
    ):
        self.transformations = list(transformations)
        self.configuration = dict(configuration or {})
        read = functools.partial(options.read, self.configuration)
        self.job_name = job_name or read(options.PIPELINE_NAME) or DEFAULT_JOB_NAME
        self.parallelism = parallelism or read(options.PARALLELISM_DEFAULT)
        if max_parallelism is None:
            max_parallelism = read(options.PIPELINE_MAX_PARALLELISM)
        self.max_parallelism = max_parallelism if max_parallelism > 0 else None
        if chaining_enabled is None:
            chaining_enabled = read(options.PIPELINE_OPERATOR_CHAINING)
        self.chaining_enabled = chaining_enabled

    # ---- the way through ------------------------------------------------------------------------

    def generate(self) -> StreamGraph:
        """Build the graph.

        Raises:
            InvalidJobError: the program cannot run; says what, where, why, and what to do.
        """
        self._nodes: dict[int, StreamNode] = {}
        self._physical: dict[int, PhysicalTransformation] = {}
        self._resolved: dict[int, list[_Input]] = {}
        transformations = _inputs_first(self.transformations)
        self._set_runtime_mode(transformations)
        for transformation in transformations:
            self._translate(transformation)
        if not self._nodes:
            raise InvalidJobError(
                "could not build the job graph",
                where=f'job "{self.job_name}"',
                why="the program defines no operators",
                do="add a source and a sink before execute()",
            )
        check_state_backend(options.read(self.configuration, options.STATE_BACKEND))
        if not options.read(self.configuration, options.PIPELINE_AUTO_GENERATE_UIDS):
            self._check_uids()
        self._choose_columns()
        self._insert_conversions()
        nodes = {node.id: node for node in _topological(self._nodes)}
        _assign_operator_ids(nodes.values(), self._physical)
        return StreamGraph(self.job_name, nodes, self.configuration, self.chaining_enabled)

    def _set_runtime_mode(self, transformations: Sequence[Transformation]) -> None:
        """From now on the configuration says STREAMING or BATCH; a batch takes no checkpoints and goes on from none."""
        mode = determine_execution_mode(transformations, self.configuration)
        self._batch = mode is RuntimeExecutionMode.BATCH
        for key in (options.EXECUTION_RUNTIME_MODE.key, *options.EXECUTION_RUNTIME_MODE.older_keys):
            self.configuration.pop(key, None)
        self.configuration[options.EXECUTION_RUNTIME_MODE.key] = mode.name
        if not self._batch:
            return
        path = options.read(self.configuration, options.STATE_RECOVERY_PATH)
        if path is not None:
            raise InvalidJobError(
                "could not start a batch job from a savepoint",
                where=options.STATE_RECOVERY_PATH.key,
                why=f"a batch has no state that is saved, and {path} would be left out",
                do=f"set {options.EXECUTION_RUNTIME_MODE.key} to STREAMING, or start without a savepoint",
            )
        for key in (options.CHECKPOINTING_INTERVAL.key, *options.CHECKPOINTING_INTERVAL.older_keys):
            self.configuration.pop(key, None)

    def _check_uids(self) -> None:
        for node_id, transformation in self._physical.items():
            if transformation.uid is None and transformation.uid_hash is None:
                raise InvalidJobError(
                    f'could not identify operator "{self._nodes[node_id].name}"',
                    where=f'job "{self.job_name}"',
                    why=f"it has no uid, and {options.PIPELINE_AUTO_GENERATE_UIDS.key} is false",
                    do="call uid(...) on it",
                )

    def _translate(self, transformation: Transformation) -> None:
        if isinstance(transformation, UnionTransformation):
            inputs = [i for t in transformation.union_inputs for i in self._resolved[t.id]]
        elif isinstance(transformation, PartitionTransformation):
            inputs = [
                i._replace(partitioner=transformation.partitioner)
                for i in self._resolved[transformation.input.id]
            ]
        elif isinstance(transformation, SideOutputTransformation):
            inputs = [
                i._replace(output_tag=transformation.output_tag)
                for i in self._resolved[transformation.input.id]
            ]
        elif isinstance(transformation, PhysicalTransformation):
            self._add_node(transformation)
            inputs = [_Input(transformation.id, None, None)]
        else:
            raise InvalidJobError(
                f"could not translate a {type(transformation).__name__}",
                where=f'operator "{transformation.name}"',
                why="the graph does not know this kind of transformation",
                do="build the stream by the methods of DataStream",
            )
        self._resolved[transformation.id] = inputs

    def _add_node(self, t: PhysicalTransformation) -> None:
        inputs_by_index = [self._resolved[upstream.id] for upstream in t.inputs]
        parallelism = self._parallelism_of(t)
        max_parallelism = t.max_parallelism or self.max_parallelism
        derived = max_parallelism is None or max_parallelism <= 0
        if max_parallelism is None or derived:
            max_parallelism = default_max_parallelism(parallelism)
        name = _display_name(t)
        check_parallelism(max_parallelism, parallelism, name)
        key_selectors = tuple(t.key_selectors)
        _check_keys(t, name, key_selectors)
        node = StreamNode(
            id=t.id,
            operator_id="",
            name=name,
            uid=t.uid,
            description=t.description or name,
            operator=t.operator,
            parallelism=parallelism,
            parallelism_set=t.parallelism is not None or _fixed_parallelism(t) is not None,
            max_parallelism=max_parallelism,
            max_parallelism_derived=derived,
            slot_sharing_group=self._slot_sharing_group(t, inputs_by_index),
            chaining_strategy=self._chaining_strategy(t),
            key_selectors=key_selectors,
            key_type=t.key_type,
            output_type=t.output_type,
        )
        self._nodes[t.id] = node
        self._physical[t.id] = t
        for index, inputs in enumerate(inputs_by_index):
            for upstream in inputs:
                self._add_edge(upstream, node, index)

    def _chaining_strategy(self, t: PhysicalTransformation) -> ChainingStrategy:
        """In a batch the input of a keyed operator is sorted, which the head of a chain does."""
        if self._batch and any(t.key_selectors) and t.chaining_strategy is ChainingStrategy.ALWAYS:
            return ChainingStrategy.HEAD
        return t.chaining_strategy

    def _parallelism_of(self, t: PhysicalTransformation) -> int:
        parallelism = t.parallelism
        fixed = _fixed_parallelism(t)
        if fixed is not None:
            if parallelism is not None and parallelism != fixed:
                raise InvalidJobError(
                    f"could not give parallelism {parallelism} to an operator",
                    where=f'operator "{_display_name(t)}"',
                    why=f"it can only run with parallelism {fixed}",
                    do="leave out set_parallelism on it, and set it on the operators behind it",
                )
            return fixed
        if parallelism is None:
            parallelism = self.parallelism
        if not isinstance(parallelism, int) or parallelism < 1:
            raise InvalidJobError(
                f"could not give parallelism {parallelism} to an operator",
                where=f'operator "{_display_name(t)}"',
                why="it must be an integer of at least 1",
                do="change set_parallelism or parallelism.default",
            )
        return parallelism

    def _slot_sharing_group(
        self, t: PhysicalTransformation, inputs_by_index: Sequence[Sequence[_Input]]
    ) -> str:
        if t.slot_sharing_group is not None:
            return t.slot_sharing_group
        groups = {
            self._nodes[upstream.node_id].slot_sharing_group
            for inputs in inputs_by_index
            for upstream in inputs
        }
        return groups.pop() if len(groups) == 1 else DEFAULT_SLOT_SHARING_GROUP

    def _add_edge(self, upstream: _Input, target: StreamNode, input_index: int) -> None:
        source = self._nodes[upstream.node_id]
        partitioner = upstream.partitioner
        equal = source.parallelism == target.parallelism
        if partitioner is None:
            partitioner = ForwardPartitioner() if equal else RebalancePartitioner()
        elif isinstance(partitioner, ForwardPartitioner) and not equal:
            raise InvalidJobError(
                "could not forward records to an operator of another parallelism",
                where=f'from "{source.name}" to "{target.name}"',
                why=f'"{source.name}" has parallelism {source.parallelism}, '
                f'"{target.name}" has {target.parallelism}',
                do="give both the same parallelism, or use rebalance() or rescale()",
            )
        keyed = input_index < len(target.key_selectors) and target.key_selectors[input_index]
        if keyed and target.parallelism > 1:
            if not isinstance(partitioner, (KeyGroupPartitioner, ForwardPartitioner)):
                raise InvalidJobError(
                    f'could not key the input of operator "{target.name}"',
                    where=f'from "{source.name}" to "{target.name}"',
                    why=f"its records arrive by {partitioner.name}, so those of one key would "
                    "reach several subtasks",
                    do="call key_by() directly before the operator",
                )
        if isinstance(target.operator, _BROADCAST_STATE) and input_index == 1:
            if not isinstance(partitioner, BroadcastPartitioner):
                raise InvalidJobError(
                    f'could not give broadcast state to operator "{target.name}"',
                    where=f'from "{source.name}" to "{target.name}"',
                    why=f"its records arrive by {partitioner.name}, so that each subtask would see others",
                    do="make the stream by broadcast(descriptor, ...), and connect that",
                )
        edge = StreamEdge(
            source_id=source.id,
            target_id=target.id,
            input_index=input_index,
            partitioner=partitioner,
            output_tag=upstream.output_tag,
            buffer_timeout_ms=self._physical[source.id].buffer_timeout_ms,
        )
        source.out_edges.append(edge)
        target.in_edges.append(edge)

    # ---- physical forms -------------------------------------------------------------------------

    def _choose_columns(self) -> None:
        """Windows that can run on columns and get nothing else, inputs before outputs.  RocksDB and a changelog keep
        state by entry, not in arrays; a batch sorts its input by key."""
        backend, changelog = (
            options.read(self.configuration, option) for option in (options.STATE_BACKEND, options.CHANGELOG_ENABLED)
        )
        if self._batch or backend != "hashmap" or changelog:
            return
        for node in _topological(self._nodes):
            if isinstance(node.operator, WindowOperator) and node.operator.can_run_on_columns and all(
                self._nodes[edge.source_id].operator.gives_columns
                and edge.output_tag is None
                and _runs_on_columns(edge.partitioner)
                for edge in node.in_edges
            ):
                node.operator = replace(node.operator, on_columns=True)

    def _insert_conversions(self) -> None:
        next_id = max(self._nodes) + 1
        for source in list(self._nodes.values()):
            if not source.operator.gives_columns:
                continue
            to_rows = []
            for edge in source.out_edges:
                if edge.output_tag is not None:
                    continue  # side outputs are rows
                target = self._nodes[edge.target_id]
                if target.operator.takes_columns and _runs_on_columns(edge.partitioner):
                    edge.columns = True
                else:
                    to_rows.append(edge)
            if to_rows:
                self._convert(source, to_rows, next_id)
                next_id += 1

    def _convert(self, source: StreamNode, edges: list[StreamEdge], node_id: int) -> None:
        """One conversion for all consumers that want rows, at the producer, so that its rows are
        made once and the partitioners with key selectors see them."""
        node = StreamNode(
            id=node_id,
            operator_id="",
            name="ColumnsToRows",
            uid=None,
            description="ColumnsToRows",
            operator=ColumnsToRowsOperator(),
            parallelism=source.parallelism,
            parallelism_set=source.parallelism_set,
            max_parallelism=source.max_parallelism,
            max_parallelism_derived=source.max_parallelism_derived,
            slot_sharing_group=source.slot_sharing_group,
            # It always joins its producer (is_chainable), and hands on the wish not to be chained.
            chaining_strategy=(
                ChainingStrategy.NEVER
                if source.chaining_strategy is ChainingStrategy.NEVER
                else ChainingStrategy.ALWAYS
            ),
            output_type=source.output_type,
        )
        self._nodes[node_id] = node
        edge_in = StreamEdge(
            source_id=source.id,
            target_id=node_id,
            input_index=0,
            partitioner=ForwardPartitioner(),
            buffer_timeout_ms=edges[0].buffer_timeout_ms,
            columns=True,
        )
        moved = {id(edge) for edge in edges}
        source.out_edges = [edge for edge in source.out_edges if id(edge) not in moved]
        source.out_edges.append(edge_in)
        node.in_edges.append(edge_in)
        for edge in edges:
            edge.source_id = node_id
            node.out_edges.append(edge)


def _runs_on_columns(partitioner: StreamPartitioner) -> bool:
    if isinstance(partitioner, KeyGroupPartitioner):
        return partitioner.key_field is not None
    return not isinstance(partitioner, CustomPartitioner)


def _check_keys(t: PhysicalTransformation, name: str, key_selectors: tuple) -> None:
    if not isinstance(t.operator, _KEYED):
        return
    wanted = 1 if isinstance(t.operator, _BROADCAST_STATE) else len(t.inputs)
    if len(key_selectors) < wanted or any(selector is None for selector in key_selectors[:wanted]):
        raise InvalidJobError(
            f'could not run operator "{name}" without a key',
            where=f'operator "{name}" ({type(t.operator).__name__})',
            why="it keeps state or timers for each key, and its input has no key",
            do="call key_by() before it" + (" on both inputs" if wanted == 2 else ""),
        )


def _fixed_parallelism(t: PhysicalTransformation) -> Optional[int]:
    """The only parallelism that a source or sink can run with."""
    if isinstance(t.operator, SourceOperator):
        return getattr(t.operator.source, "fixed_parallelism", None)
    if isinstance(t.operator, SinkOperator):
        return getattr(t.operator.sink, "fixed_parallelism", None)
    return None


def _display_name(t: PhysicalTransformation) -> str:
    """Flink's: sources and sinks say what they are."""
    prefix = {SourceOperator: "Source: ", SinkOperator: "Sink: "}.get(type(t.operator), "")
    return t.name if t.name.startswith(prefix) else prefix + t.name


def _inputs_first(transformations: Sequence[Transformation]) -> list[Transformation]:
    """All that is reachable, each behind its inputs; without recursion, so depth has no limit."""
    done: dict[int, Transformation] = {}
    entered: set[int] = set()
    for root in transformations:
        stack = [(root, False)]
        while stack:
            current, inputs_done = stack.pop()
            if current.id in done:
                continue
            if inputs_done:
                done[current.id] = current
                continue
            assert current.id not in entered, f"transformation {current.id} reads from itself"
            entered.add(current.id)
            stack.append((current, True))
            for upstream in reversed(list(current.inputs)):
                if upstream.id not in done:
                    stack.append((upstream, False))
    return list(done.values())


def _topological(nodes: Mapping[int, StreamNode]) -> list[StreamNode]:
    """Sources first, then whatever has all its inputs before it; ties by id."""
    missing = {node.id: len(node.in_edges) for node in nodes.values()}
    ready = [(False, node_id) for node_id, count in missing.items() if count == 0]
    heapq.heapify(ready)
    order = []
    while ready:
        _, node_id = heapq.heappop(ready)
        node = nodes[node_id]
        order.append(node)
        for edge in node.out_edges:
            missing[edge.target_id] -= 1
            if missing[edge.target_id] == 0:
                heapq.heappush(ready, (True, edge.target_id))
    assert len(order) == len(nodes), "the graph has a cycle"
    return order


# ---- operator ids -------------------------------------------------------------------------------


def _hash(*parts: str) -> str:
    text = "".join(f"{len(part)}:{part}" for part in parts)
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:32]


def operator_id_of_uid(uid: str) -> str:
    """The operator id of everything with this uid, in every job."""
    return _hash("uid", uid)


def _assign_operator_ids(
    nodes: Iterable[StreamNode], physical: Mapping[int, PhysicalTransformation]
) -> None:
    """32 hex digits a node, the same in every process.

    By ``uid_hash`` if given, else by ``uid``, else by the name when no other operator has it, so
    that a named operator keeps its state when the program around it changes.  Operators that share
    a name (the default ones mostly) get theirs from name, inputs and number among their like.
    """
    nodes = list(nodes)
    by_uid: dict[str, StreamNode] = {}
    names: dict[str, int] = {}
    for node in nodes:
        transformation = physical.get(node.id)
        if transformation is None or node.uid is not None or transformation.uid_hash is not None:
            continue
        names[node.name] = names.get(node.name, 0) + 1
    ids: dict[int, str] = {}
    taken: set[str] = set()
    for node in nodes:
        transformation = physical.get(node.id)
        uid_hash = transformation.uid_hash if transformation is not None else None
        if node.uid is not None:
            _check_unique(by_uid, f"uid {node.uid!r}", node)
        if uid_hash is not None:
            if not re.fullmatch("[0-9a-fA-F]{32}", uid_hash):
                raise InvalidJobError(
                    f'could not use the uid hash of operator "{node.name}"',
                    why=f"{uid_hash!r} is not 32 hexadecimal digits",
                    do="take the operator id that an earlier run showed",
                )
            operator_id = uid_hash.lower()
            _check_unique(by_uid, f"uid hash {operator_id}", node)
        elif node.uid is not None:
            operator_id = operator_id_of_uid(node.uid)
        elif transformation is not None and names[node.name] == 1:
            operator_id = _hash("name", node.name)
        else:
            inputs = [
                f"{ids[edge.source_id]}/{edge.input_index}/{edge.partitioner.name}"
                for edge in node.in_edges
            ]
            number = 0
            while (operator_id := _hash("place", node.name, *inputs, str(number))) in taken:
                number += 1
        if operator_id in taken:
            raise InvalidJobError(
                f'could not give operator "{node.name}" an id of its own',
                why=f"another operator has the id {operator_id}",
                do="change its uid or uid hash",
            )
        taken.add(operator_id)
        ids[node.id] = node.operator_id = operator_id


def _check_unique(by_uid: dict[str, StreamNode], uid: str, node: StreamNode) -> None:
    other = by_uid.setdefault(uid, node)
    if other is not node:
        raise InvalidJobError(
            f'could not use {uid} for operator "{node.name}"',
            where=f'operators "{other.name}" and "{node.name}"',
            why="two operators have the same uid, and state is found by it",
            do="give each operator a uid of its own",
        )
