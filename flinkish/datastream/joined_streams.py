"""JoinedStreams: pairs of records of two streams with equal keys in one window.  (Java's; PyFlink has none.)"""

from __future__ import annotations

import inspect
from typing import Any

from flinkish.datastream.co_grouped_streams import CoGroupedStreams
from flinkish.datastream.function_adapters import DelegatingFunction, check_function
from flinkish.datastream.functions import WindowFunction
from flinkish.datastream.join_functions import FlatJoinFunction, JoinFunction

__all__ = ["JoinedStreams"]


class JoinedStreams(CoGroupedStreams):
    """Made by ``stream1.join(stream2)``::

        stream1.join(stream2).where(key1).equal_to(key2).window(assigner).apply(function)

    An inner join: each record of the first stream with each of the second that has the same key and lies in the
    same window, when the window fires.  A record without a partner gives nothing; `co_group` sees it.
    """

    method = "join"
    _made_by = "join()"

    @staticmethod
    def _window_function(function: Any) -> WindowFunction:
        flat = isinstance(function, FlatJoinFunction) or inspect.isgeneratorfunction(function)
        function = check_function(function, FlatJoinFunction if flat else JoinFunction, "apply")
        return (_FlatJoinWindowFunction if flat else _JoinWindowFunction)(function)


class _JoinWindowFunction(DelegatingFunction, WindowFunction):
    """A JoinFunction, or ``function(first, second)`` with one result, over the tagged records of a window."""

    def apply(self, key, window, inputs):
        function = self._func
        join = function.join if isinstance(function, JoinFunction) else function
        second = [record for tag, record in inputs if tag]
        for tag, one in inputs:
            if not tag:
                for other in second:
                    yield join(one, other)


class _FlatJoinWindowFunction(DelegatingFunction, WindowFunction):
    """The same with any number of results."""

    def apply(self, key, window, inputs):
        function = self._func
        join = function.join if isinstance(function, FlatJoinFunction) else function
        second = [record for tag, record in inputs if tag]
        for tag, one in inputs:
            if not tag:
                for other in second:
                    results = join(one, other)
                    if results is not None:
                        yield from results
