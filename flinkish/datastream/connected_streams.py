"""ConnectedStreams: two streams that one operator reads."""

from __future__ import annotations

from typing import Any, Callable, Optional, Union

from flinkish.common.typeinfo import TypeInformation
from flinkish.datastream.data_stream import DataStream
from flinkish.datastream.function_adapters import (
    CallableCoFlatMapFunction,
    CallableCoMapFunction,
    check_type,
    co_process_function_of,
    require_function,
)
from flinkish.datastream.functions import CoFlatMapFunction, CoMapFunction
from flinkish.datastream.keyed_stream import KeyedStream, common_key_type, with_key_type
from flinkish.datastream.transformations import (
    CoFlatMapOperator,
    CoMapOperator,
    CoProcessOperator,
    KeyedCoProcessOperator,
    Operator,
    TwoInputTransformation,
)

__all__ = ["ConnectedStreams"]


class ConnectedStreams:
    """Made by ``stream1.connect(stream2)``.  Keyed when both streams are."""

    def __init__(self, stream1: DataStream, stream2: DataStream):
        self.stream1, self.stream2 = stream1, stream2

    def _is_keyed(self) -> bool:
        return isinstance(self.stream1, KeyedStream) and isinstance(self.stream2, KeyedStream)

    def key_by(
        self, key_selector1: Any, key_selector2: Any, key_type: Optional[TypeInformation] = None
    ) -> "ConnectedStreams":
        """Bring equal keys of both streams together."""
        stream1 = self.stream1.key_by(key_selector1, key_type)
        stream2 = self.stream2.key_by(key_selector2, key_type)
        common = common_key_type(stream1.key_type, stream2.key_type, "connect")
        return ConnectedStreams(with_key_type(stream1, common), with_key_type(stream2, common))

    def map(
        self,
        func: Union[CoMapFunction, tuple[Callable, Callable]],
        output_type: Optional[TypeInformation] = None,
    ) -> DataStream:
        """A CoMapFunction, or a pair of callables, one for each stream."""
        if _is_pair(func):
            func = CallableCoMapFunction(*func)  # type: ignore[misc]
        require_function(func, CoMapFunction, "map")
        return self._apply("Co-Map", CoMapOperator(func), output_type)

    def flat_map(
        self,
        func: Union[CoFlatMapFunction, tuple[Callable, Callable]],
        output_type: Optional[TypeInformation] = None,
    ) -> DataStream:
        """A CoFlatMapFunction, or a pair of callables, one for each stream."""
        if _is_pair(func):
            func = CallableCoFlatMapFunction(*func)  # type: ignore[misc]
        require_function(func, CoFlatMapFunction, "flat_map")
        return self._apply("Co-Flat Map", CoFlatMapOperator(func), output_type)

    def process(self, func: Any, output_type: Optional[TypeInformation] = None) -> DataStream:
        """A CoProcessFunction; with keys, a KeyedCoProcessFunction."""
        keyed = self._is_keyed()
        func = co_process_function_of(func, keyed)
        if keyed:
            return self._apply("Co-Keyed-Process", KeyedCoProcessOperator(func), output_type)
        return self._apply("Co-Process", CoProcessOperator(func), output_type)

    def _apply(self, name: str, operator: Operator, output_type: Optional[TypeInformation]) -> DataStream:
        check_type(output_type, name)
        selectors: tuple = ()
        key_type = None
        if self._is_keyed():
            selectors = (self.stream1.key_selector, self.stream2.key_selector)  # type: ignore[attr-defined]
            key_type = self.stream1.key_type or self.stream2.key_type  # type: ignore[attr-defined]
        environment = self.stream1.environment
        transformation = TwoInputTransformation(
            name,
            output_type,
            operator=operator,
            key_selectors=selectors,
            key_type=key_type,
            input1=self.stream1.transformation,
            input2=self.stream2.transformation,
        )
        environment.add_operator(transformation)
        return DataStream(environment, transformation)


def _is_pair(function: Any) -> bool:
    return isinstance(function, tuple) and len(function) == 2 and all(map(callable, function))
