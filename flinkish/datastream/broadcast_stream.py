"""BroadcastStream: records that every subtask sees and keeps as broadcast state."""

from __future__ import annotations

from typing import Any, Optional

from flinkish.common.typeinfo import TypeInformation
from flinkish.datastream.data_stream import DataStream
from flinkish.datastream.state import MapStateDescriptor
from flinkish.errors import InvalidJobError

__all__ = ["BroadcastConnectedStream", "BroadcastStream"]


class BroadcastStream:
    """Made by ``stream.broadcast(descriptor, ...)``, to be given to ``connect``."""

    def __init__(self, input_stream: DataStream, *broadcast_state_descriptors: Any):
        for descriptor in broadcast_state_descriptors:
            if not isinstance(descriptor, MapStateDescriptor):
                raise InvalidJobError(f"broadcast() takes MapStateDescriptors, not {descriptor!r}")
        self.input_stream = input_stream
        self.broadcast_state_descriptors = broadcast_state_descriptors


class BroadcastConnectedStream:
    """A stream and the broadcast stream that it is connected to."""

    def __init__(
        self,
        non_broadcast_stream: DataStream,
        broadcast_stream: BroadcastStream,
        broadcast_state_descriptors: Any,
    ):
        self.non_broadcast_stream = non_broadcast_stream
        self.broadcast_stream = broadcast_stream
        self.broadcast_state_descriptors = broadcast_state_descriptors

    def process(self, func: Any, output_type: Optional[TypeInformation] = None) -> DataStream:
        raise InvalidJobError(
            "could not process a stream with broadcast state",
            why="this version keeps no broadcast state",
            do="use stream.connect(other.broadcast()).process(CoProcessFunction) and keep the records in "
            "a field of the function",
        )
