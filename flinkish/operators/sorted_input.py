"""What a task of a batch job does with its input before its operators see it.

Of a keyed operator the inputs are sorted by (key, time), so that it sees one key after the other, those of two
inputs together, and its state is that of one key.  When a key is over, its timers fire and its state goes.  A
broadcast side passes at once, so it is whole before the first record of the other.

An operator with broadcast state and without keys gets the other side in the order in which it came, once the
broadcast side has ended.

Every input is read as it comes, and kept here: an operator that would read one side first could wait for ever for a
producer that is blocked on the other.

Source: Flink's ``SortingDataInput``, ``MultiInputSortingDataInput``, ``BatchExecutionInternalTimeService``.
"""

from __future__ import annotations

import itertools
from typing import Any, Iterable, Iterator, Optional

from flinkish.common import options
from flinkish.datastream.transformations import BroadcastProcessOperator
from flinkish.messages.elements import MIN_WATERMARK_MS
from flinkish.operators.external_sorter import Entry, ExternalSorter
from flinkish.operators.operator import RuntimeOperator
from flinkish.state.key_encoding import encode_key

BATCH_RECORDS_MAX = 256
#: Records that are handed on before others get their turn.
SHARE_RECORDS = 512

_WITHOUT_TIME = MIN_WATERMARK_MS - 1  # before all that have one
_INPUT_SHIFT = 56  # a record's number has the index of its input above it


def sorted_input_of(operator: RuntimeOperator, inputs: int) -> Optional["SortedInput"]:
    """For the head of a chain in a batch job; None where records go on as they come."""
    keyed = tuple(index for index, selector in enumerate(operator.selectors) if selector is not None)
    if keyed:
        return SortedInput(operator, keyed, inputs)
    if isinstance(operator.spec.operator, BroadcastProcessOperator):
        return HeldInput(operator, (0,), inputs)
    return None


class SortedInput:
    """Args:
    operator: the head.
    kept: indices of the inputs that are kept here.
    inputs: how many there are.
    """

    def __init__(self, operator: RuntimeOperator, kept: tuple[int, ...], inputs: int):
        self._operator = operator
        self._kept = kept
        self._open = set(range(inputs))
        memory_bytes = options.read(operator.environment.configuration, options.SORTED_INPUTS_MEMORY)
        self._sorter = ExternalSorter(memory_bytes)
        self._numbers = [index << _INPUT_SHIFT for index in range(inputs)]
        self._released = False

    def keeps(self, input_index: int) -> bool:
        """Whether records of this input are to be given to `add` now."""
        return not self._released and input_index in self._kept

    def add(self, input_index: int, values: list, timestamps: Optional[list]) -> Iterator[None]:
        times = itertools.repeat(None) if timestamps is None else timestamps
        numbers = itertools.count(self._numbers[input_index])
        self._numbers[input_index] += len(values)
        self._sorter.extend(self._entries(values, times, numbers, input_index))
        if self._sorter.must_compact:
            yield from self._sorter.compact()

    def _entries(
        self, values: list, times: Iterable[Optional[int]], numbers: Iterable[int], input_index: int
    ) -> list[Entry]:
        select_key = self._operator.select_key
        return [
            (encode_key(select_key(value, input_index)), _WITHOUT_TIME if time is None else time, number, value, time)
            for value, time, number in zip(values, times, numbers)
        ]

    def end(self, input_index: int) -> bool:
        """An input has ended; True: now what was kept goes on."""
        self._open.discard(input_index)
        if self._released or not self._is_due():
            return False
        self._released = True
        return True

    def _is_due(self) -> bool:
        return not self._open

    def release(self, chain: Any) -> Iterator[None]:
        """Run through ``chain`` what was kept."""
        values: list = []
        timestamps: list = []
        key: Optional[bytes] = None
        source, since = 0, 0
        for entry in self._sorter.entries():
            index = entry[2] >> _INPUT_SHIFT
            if entry[0] != key or index != source or len(values) >= BATCH_RECORDS_MAX:
                since += len(values) + 1
                if values:
                    yield from chain.run_rows(source, values, timestamps)
                    values, timestamps = [], []
                if entry[0] != key and key is not None:
                    yield from self._end_of_key(chain)
                key, source = entry[0], index
                if since >= SHARE_RECORDS:
                    since = 0
                    yield
            values.append(entry[3])
            timestamps.append(entry[4])
        if values:
            yield from chain.run_rows(source, values, timestamps)
            yield from self._end_of_key(chain)
        self._sorter.close()

    def _end_of_key(self, chain: Any) -> Iterator[None]:
        items = self._operator.finish_key()
        if items is not None:
            yield from chain.drain_head(items)
        self._operator.forget_key()

    def metrics(self) -> dict[str, int]:
        return {"spilledBytes": self._sorter.spilled_bytes}

    def close(self) -> None:
        self._sorter.close()


class HeldInput(SortedInput):
    """Keeps one input, in the order in which it comes, until all others have ended."""

    def _entries(
        self, values: list, times: Iterable[Optional[int]], numbers: Iterable[int], input_index: int
    ) -> list[Entry]:
        return [(b"", 0, number, value, time) for value, time, number in zip(values, times, numbers)]

    def _is_due(self) -> bool:
        return self._open <= set(self._kept)

    def _end_of_key(self, chain: Any) -> Iterator[None]:
        yield from ()
