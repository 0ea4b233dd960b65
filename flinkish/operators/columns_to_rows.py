"""Put in by the graph where columns meet an operator that takes rows; records become Row."""

from __future__ import annotations

from typing import Any

from flinkish.operators.columns import rows_of
from flinkish.operators.operator import RuntimeOperator


class ColumnsToRowsOperator(RuntimeOperator):
    """The chain calls `rows` for a column batch and runs what follows over the result; records that are
    rows already go through."""

    def rows(self, columns: Any) -> list:
        return self.call(rows_of, columns)

    def process_element(self, value, timestamp, input_index=0):
        yield from self.output.emit(value, timestamp, owned=True)

    def generate(self, code, value, timestamp, emit, input_index=0):
        emit(value, timestamp, owned=True)
