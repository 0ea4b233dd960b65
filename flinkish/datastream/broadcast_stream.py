"""BroadcastStream: records that every subtask sees and keeps as broadcast state."""

from __future__ import annotations

from typing import Optional, Sequence, Union

from flinkish.common.arguments import check_argument
from flinkish.common.typeinfo import TypeInformation
from flinkish.datastream.data_stream import DataStream
from flinkish.datastream.function_adapters import broadcast_process_function_of, check_type
from flinkish.datastream.functions import BroadcastProcessFunction, KeyedBroadcastProcessFunction
from flinkish.datastream.keyed_stream import KeyedStream
from flinkish.datastream.missing_calls import WithMissingCalls
from flinkish.datastream.state import MapStateDescriptor
from flinkish.datastream.transformations import (
    BroadcastProcessOperator,
    KeyedBroadcastProcessOperator,
    TwoInputTransformation,
)
from flinkish.errors import InvalidJobError

__all__ = ["BroadcastConnectedStream", "BroadcastStream"]


class BroadcastStream:
    """Made by ``stream.broadcast(descriptor, ...)``, to be given to ``connect``.

    Args:
        input_stream: broadcast.
        broadcast_state_descriptors: at least one, each with a name of its own.
    """

    def __init__(self, input_stream: DataStream, *broadcast_state_descriptors: MapStateDescriptor):
        check_argument(input_stream, DataStream, "BroadcastStream()", "input_stream")
        names: set[str] = set()
        for descriptor in broadcast_state_descriptors:
            if not isinstance(descriptor, MapStateDescriptor):
                raise InvalidJobError(f"broadcast() takes MapStateDescriptors, not {descriptor!r}")
            if descriptor.name in names:
                raise InvalidJobError(
                    f'broadcast() got two states with the name "{descriptor.name}"', do="give each its own name"
                )
            names.add(descriptor.name)
        self.input_stream = input_stream
        self.broadcast_state_descriptors = broadcast_state_descriptors


class BroadcastConnectedStream(WithMissingCalls):
    """A stream and the broadcast stream that it is connected to: made by ``stream.connect(broadcast_stream)``."""

    _made_by = "connect(broadcast_stream)"
    _missing_calls = {
        **dict.fromkeys(
            ("map", "flat_map"),
            (
                "broadcast state is there for process() alone",
                "call process() with a BroadcastProcessFunction (a KeyedBroadcastProcessFunction on a stream with a "
                "key), or broadcast() without a MapStateDescriptor",
            ),
        ),
        "key_by": (
            "a broadcast stream has no key",
            "call key_by() on the other stream, before connect()",
        ),
    }

    def __init__(
        self,
        non_broadcast_stream: DataStream,
        broadcast_stream: BroadcastStream,
        broadcast_state_descriptors: Sequence[MapStateDescriptor],
    ):
        self.non_broadcast_stream = non_broadcast_stream
        self.broadcast_stream = broadcast_stream
        self.broadcast_state_descriptors = broadcast_state_descriptors

    def process(
        self,
        func: Union[BroadcastProcessFunction, KeyedBroadcastProcessFunction],
        output_type: Optional[TypeInformation] = None,
    ) -> DataStream:
        """A KeyedBroadcastProcessFunction where the other stream has a key, else a BroadcastProcessFunction."""
        stream = self.non_broadcast_stream
        keyed = isinstance(stream, KeyedStream)
        func = broadcast_process_function_of(func, keyed)
        check_type(output_type, "process")
        descriptors = tuple(self.broadcast_state_descriptors)
        transformation = TwoInputTransformation(
            "Co-Process-Broadcast-Keyed" if keyed else "Co-Process-Broadcast",
            output_type,
            operator=(KeyedBroadcastProcessOperator if keyed else BroadcastProcessOperator)(func, descriptors),
            key_selectors=(stream.key_selector, None) if keyed else (),  # type: ignore[attr-defined]
            key_type=stream.key_type if keyed else None,  # type: ignore[attr-defined]
            input1=stream.transformation,
            input2=self.broadcast_stream.input_stream.transformation,
        )
        stream.environment.add_operator(transformation)
        return DataStream(stream.environment, transformation)
