import pickle

import pytest

from flinkish.common.accumulators import (
    AverageAccumulator,
    DoubleCounter,
    DoubleMaximum,
    DoubleMinimum,
    Histogram,
    IntCounter,
    IntMaximum,
    IntMinimum,
    ListAccumulator,
    LongCounter,
    LongMaximum,
    LongMinimum,
    merge_accumulators,
)
from flinkish.errors import UserError

VALUES = [3, 1, 4, 1, 5]


@pytest.mark.parametrize(
    "kind, result, empty",
    [
        (IntCounter, 14, 0),
        (LongCounter, 14, 0),
        (DoubleCounter, 14.0, 0.0),
        (IntMaximum, 5, None),
        (LongMaximum, 5, None),
        (DoubleMaximum, 5, None),
        (IntMinimum, 1, None),
        (LongMinimum, 1, None),
        (DoubleMinimum, 1, None),
        (AverageAccumulator, 2.8, 0.0),
        (ListAccumulator, VALUES, []),
        (Histogram, {1: 2, 3: 1, 4: 1, 5: 1}, {}),
    ],
)
def test_the_parts_of_subtasks_merge_to_the_result_of_the_whole(kind, result, empty):
    for cut in range(len(VALUES) + 1):
        parts = [kind(), kind(), kind()]  # the last subtask has no records
        for index, value in enumerate(VALUES):
            parts[index >= cut].add(value)
        merged = merge_accumulators(pickle.dumps({"a": part}) for part in parts)
        assert merged == {"a": result} and type(merged["a"]) is type(result)
    one = parts[0].clone()
    one.reset_local()
    assert one.get_local_value() == empty and repr(one) == f"{kind.__name__}({empty!r})"
    assert parts[0].get_local_value() == result


def test_accumulators_of_one_name_and_different_classes_are_refused():
    parts = [pickle.dumps({"b": IntCounter(2)}), pickle.dumps({"a": IntCounter(1)})]
    assert merge_accumulators(parts) == {"a": 1, "b": 2}
    with pytest.raises(UserError, match='the accumulator "a"(.|\n)*IntCounter in one place and a Histogram'):
        merge_accumulators([pickle.dumps({"a": IntCounter()}), pickle.dumps({"a": Histogram()})])


def test_an_accumulator_that_cannot_be_read_or_merged_is_named():
    mixed = Histogram()
    for value in (1, "a"):
        mixed.add(value)
    with pytest.raises(UserError, match='the accumulator "mixed"(.|\n)*not supported'):
        merge_accumulators([pickle.dumps({"mixed": mixed})])
    with pytest.raises(UserError, match='the accumulator "n"(.|\n)*unsupported operand'):
        merge_accumulators([pickle.dumps({"n": IntCounter(1)}), pickle.dumps({"n": IntCounter("1")})])
