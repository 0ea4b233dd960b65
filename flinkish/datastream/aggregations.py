"""The reduce functions behind ``sum``, ``min``, ``max``, ``min_by`` and ``max_by``.

`Sum` and `MinMax` keep the other fields of the first record, `MinMaxBy` takes the whole record with
the extreme value; on a tie the earlier record stays.  None of them changes a record.

Source: Flink's ``SumAggregator`` and ``ComparableAggregator``.
"""

from __future__ import annotations

from typing import Any

from flinkish.datastream.fields import Field, get_field, with_field
from flinkish.datastream.functions import ReduceFunction


class Sum(ReduceFunction):
    def __init__(self, field: Field):
        self.field = field

    def reduce(self, value1: Any, value2: Any) -> Any:
        field = self.field
        if type(value1) is tuple:  # the common record; three times faster than the general way
            total = value1[field] + value2[field]  # type: ignore[index]
            return (*value1[:field], total, *value1[field + 1 :])  # type: ignore[index,misc,operator]
        return with_field(value1, field, get_field(value1, field) + get_field(value2, field))


class MinMax(ReduceFunction):
    def __init__(self, field: Field, largest: bool):
        self.field, self.largest = field, largest

    def reduce(self, value1: Any, value2: Any) -> Any:
        first, second = get_field(value1, self.field), get_field(value2, self.field)
        better = second > first if self.largest else second < first
        return with_field(value1, self.field, second) if better else value1


class MinMaxBy(ReduceFunction):
    def __init__(self, field: Field, largest: bool):
        self.field, self.largest = field, largest

    def reduce(self, value1: Any, value2: Any) -> Any:
        first, second = get_field(value1, self.field), get_field(value2, self.field)
        return value2 if (second > first if self.largest else second < first) else value1
