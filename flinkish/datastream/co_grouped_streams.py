"""CoGroupedStreams: the records of two streams with equal keys, window by window.  (Java's; PyFlink has none.)"""

from __future__ import annotations

from typing import Any, Callable, Optional, Union

from flinkish.common.time import TimeLike
from flinkish.common.typeinfo import TypeInformation
from flinkish.datastream.data_stream import DataStream
from flinkish.datastream.evictors import Evictor
from flinkish.datastream.function_adapters import (
    DelegatingFunction,
    check_function,
    check_type,
    key_selector_of,
)
from flinkish.datastream.functions import WindowFunction
from flinkish.datastream.join_functions import CoGroupFunction
from flinkish.datastream.keyed_stream import KeyedStream, common_key_type
from flinkish.datastream.missing_calls import WithMissingCalls
from flinkish.datastream.transformations import (
    MapOperator,
    OneInputTransformation,
    PhysicalTransformation,
    SideOutputTransformation,
    UnionTransformation,
)
from flinkish.datastream.triggers import Trigger
from flinkish.datastream.window_assigners import WindowAssigner
from flinkish.datastream.windowed_stream import WindowedStream

__all__ = ["CoGroupedStreams"]

_CALLS = "where", "equal_to", "window", "apply"
_OF_WINDOW = ("trigger", "evictor", "allowed_lateness")


def _needed_before(call: str, why: str) -> dict[str, tuple[str, str]]:
    """What comes behind ``call``, which was left out."""
    do = f"call {call}() before, as in a.join(b).where(key).equal_to(key).window(assigner).apply(function)"
    return dict.fromkeys((*_CALLS[_CALLS.index(call) + 1 :], *_OF_WINDOW), (why, do))


class CoGroupedStreams(WithMissingCalls):
    """Made by ``stream1.co_group(stream2)``::

        stream1.co_group(stream2).where(key1).equal_to(key2).window(assigner).apply(function)

    A window of a key gives its result when it holds records of at least one stream.  The operator behind it is a
    window operator over both streams, so times, lateness, state and snapshots are those of windows.
    """

    method = "co_group"
    _made_by = "co_group()"
    _missing_calls = _needed_before("where", "the keys are not known yet")

    def __init__(self, input1: DataStream, input2: DataStream):
        self._inputs = input1, input2

    def where(self, key_selector: Any, key_type: Optional[TypeInformation] = None) -> "Where":
        """The key of the first stream's records: as `DataStream.key_by` takes it."""
        return Where(self, key_selector, key_type)

    @staticmethod
    def _window_function(function: Any) -> WindowFunction:
        return _CoGroupWindowFunction(check_function(function, CoGroupFunction, "apply"))


class Where(WithMissingCalls):
    """The key of the first stream is known."""

    _made_by = "where()"
    _missing_calls = _needed_before("equal_to", "the key of the second stream is not known yet")

    def __init__(self, streams: CoGroupedStreams, key_selector: Any, key_type: Optional[TypeInformation]):
        self._streams = streams
        record_type, what = streams._inputs[0].transformation.output_type, f"{streams.method}().where"
        self._key1, self._key_type, _ = key_selector_of(key_selector, key_type, record_type, what)

    def equal_to(self, key_selector: Any, key_type: Optional[TypeInformation] = None) -> "EqualTo":
        """The key of the second stream's records.

        Raises:
            InvalidJobError: both keys have a declared type, and not the same one."""
        streams = self._streams
        record_type, what = streams._inputs[1].transformation.output_type, f"{streams.method}().equal_to"
        key2, key_type2, _ = key_selector_of(key_selector, key_type, record_type, what)
        return EqualTo(streams, self._key1, key2, common_key_type(self._key_type, key_type2, streams.method))


class EqualTo(WithMissingCalls):
    """The keys of both are known."""

    _made_by = "equal_to()"
    _missing_calls = _needed_before("window", "records meet in windows, and there are none yet")

    def __init__(
        self, streams: CoGroupedStreams, key1: Callable, key2: Callable, key_type: Optional[TypeInformation]
    ):
        self._streams, self._key1, self._key2, self._key_type = streams, key1, key2, key_type

    def window(self, window_assigner: WindowAssigner) -> "WithWindow":
        """Assigner, trigger and evictor see a record as ``(0, record)`` when it is of the first stream, else as
        ``(1, record)``: Flink's TaggedUnion."""
        return WithWindow(self._streams, self._tagged_union().window(window_assigner))

    def _tagged_union(self) -> KeyedStream:
        key1, key2 = self._key1, self._key2
        input1, input2 = self._streams._inputs
        tagged1 = _tagged(input1, lambda record: (0, record))
        tagged2 = _tagged(input2, lambda record: (1, record))
        union = UnionTransformation("Union", None, union_inputs=(tagged1, tagged2))

        def key(tagged: tuple) -> Any:
            return key2(tagged[1]) if tagged[0] else key1(tagged[1])

        return KeyedStream(DataStream(input1.environment, union), key, self._key_type)


def _tagged(stream: DataStream, tag: Callable[[Any], tuple]) -> OneInputTransformation:
    """With the parallelism of the operator before, so that its records stay in order."""
    transformation = stream.original.transformation if isinstance(stream, KeyedStream) else stream.transformation
    operator = transformation.input if isinstance(transformation, SideOutputTransformation) else transformation
    parallelism = operator.parallelism if isinstance(operator, PhysicalTransformation) else None
    return OneInputTransformation("Tag", None, parallelism, operator=MapOperator(tag), input=transformation)


class WithWindow:
    """The windows are known; `apply` says what becomes of them."""

    def __init__(self, streams: CoGroupedStreams, windowed: WindowedStream):
        self._streams, self._windowed = streams, windowed

    def trigger(self, trigger: Trigger) -> "WithWindow":
        """As of a `WindowedStream`."""
        self._windowed.trigger(trigger)
        return self

    def evictor(self, evictor: Evictor) -> "WithWindow":
        self._windowed.evictor(evictor)
        return self

    def allowed_lateness(self, time_ms: TimeLike) -> "WithWindow":
        """How long after its end a window still takes late records; for each of them it gives its results anew."""
        self._windowed.allowed_lateness(time_ms)
        return self

    def apply(self, function: Union[Callable, Any], output_type: Optional[TypeInformation] = None) -> DataStream:
        """What to do with the records of a window.

        Args:
            function: of a co_group, a CoGroupFunction, or a callable of two lists of records, with any number of
                results.  Of a join, a JoinFunction or FlatJoinFunction, or a callable of two records: its value is the
                result; a generator function yields several.
        """
        check_type(output_type, f"the {self._streams.method}")
        return self._windowed.apply(self._streams._window_function(function), output_type)


class _CoGroupWindowFunction(DelegatingFunction, WindowFunction):
    """A CoGroupFunction, or ``function(first, second)``, over the tagged records of a window."""

    def apply(self, key, window, inputs):
        function = self._func
        first = [record for tag, record in inputs if not tag]
        second = [record for tag, record in inputs if tag]
        return (function.co_group if isinstance(function, CoGroupFunction) else function)(first, second)
