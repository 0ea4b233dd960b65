"""What both window operators share: the user's functions, late records, and the results of a window.

`operators.window.AlignedWindowOperator` runs the windows that are the same for all keys and fire by the watermark;
`operators.windowing.window_operator.WindowOperator` runs all others.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Callable, Iterator, Mapping, Optional

from flinkish.datastream.aggregations import check_of_first
from flinkish.datastream.field_aggregates import FieldAggregates
from flinkish.datastream.functions import (
    AggregateFunction,
    Function,
    ProcessWindowFunction,
    ReduceFunction,
    WindowFunction,
)
from flinkish.errors import InvalidJobError, StateMigrationError, UserError
from flinkish.messages.elements import MAX_WATERMARK_MS
from flinkish.operators.operator import KeyedOperator
from flinkish.operators.timers import EVENT_TIMERS
from flinkish.operators.windowing.contexts import FiredWindow, WindowContext, WindowScope

KINDS = ("reduce", "aggregate", "apply", "process")
#: Properties of the saved event timers: `WindowOperatorBase.form`, and the allowed lateness, ms.
FORM, LATENESS = "windows", "lateness_ms"


class WindowOperatorBase(KeyedOperator):
    fires = True

    def __init__(self, spec, environment):
        super().__init__(spec, environment)
        operator = spec.operator
        _check_description(spec.name, operator)
        self.assigner = operator.assigner
        self.kind: str = operator.kind
        self.lateness_ms: int = operator.allowed_lateness_ms
        self.saved_lateness_ms = self.lateness_ms  # of the windows that were restored
        self.late_tag = operator.late_data_tag
        self.num_late_records_dropped = 0
        self.scope = WindowScope()
        self._own_functions(operator)

    def _own_functions(self, operator: Any) -> None:
        if self.kind == "reduce":
            self.reduce = self.own(operator.function, "reduce")
            self.check_first = check_of_first(operator.function)
        elif self.kind == "aggregate":
            function = operator.function
            self.add = self.own(function, "add")
            self.create_accumulator, self.get_result = function.create_accumulator, function.get_result
        window_function = operator.window_function
        self.window_function: Optional[Callable[..., Any]] = None
        self.wants_context = False
        self.clear: Optional[Callable[..., Any]] = None
        self.context = WindowContext(self, self.scope)
        #: What a window function yields may be ``(tag, value)``; a reduced value is one record.
        self.tagged_results = window_function is not None
        if window_function is None:
            return
        self.wants_context = isinstance(window_function, ProcessWindowFunction) or (
            self.kind == "process" and not isinstance(window_function, WindowFunction)
        )
        self.window_function = self.own(window_function, "process" if self.wants_context else "apply")
        if isinstance(window_function, ProcessWindowFunction):
            if type(window_function).clear is not ProcessWindowFunction.clear:
                self.clear = window_function.clear

    # ---- checkpoints ----------------------------------------------------------------------------

    @classmethod
    def form(cls, operator: Any) -> dict[str, str]:
        """What saved windows must have in common with those of the program, by names that users read (JSON values).

        Args:
            operator: the description of the window operator.
        """
        return {"contents": _contents(operator)}

    def states_beside_backend(self):
        for entries in super().states_beside_backend():
            if entries.meta.name == EVENT_TIMERS:
                own = {FORM: self.form(self.spec.operator), LATENESS: self.lateness_ms}
                properties = {**entries.meta.properties, **own}
                entries.meta = replace(entries.meta, properties=properties)
            yield entries

    def restore_keyed(self, reader, key_groups):
        meta = reader.states.get(EVENT_TIMERS)
        if meta is not None and FORM in meta.properties:
            check_form(self.name, meta.properties[FORM], self.form(self.spec.operator))
            self.saved_lateness_ms = int(meta.properties[LATENESS])
        super().restore_keyed(reader, key_groups)

    # ---- records --------------------------------------------------------------------------------

    def no_timestamp(self) -> UserError:
        return UserError(
            "a record without event time came to an event-time window",
            where=f'operator "{self.name}"',
            why="neither the source nor a watermark strategy gave it a timestamp",
            do="call assign_timestamps_and_watermarks(...) with a timestamp assigner before the window",
        )

    def is_late(self, timestamp: int) -> bool:
        """Of a record that no window has taken."""
        return min(timestamp + self.lateness_ms, MAX_WATERMARK_MS) <= self.current_watermark

    def results_of(self, key: Any, window: Any, elements: list, about: FiredWindow) -> Iterator[Any]:
        """What the window function gives; the scope stands at this window."""
        seen_as = self.context if self.wants_context else window
        results = self.call(self.window_function, key, seen_as, elements, record=about)  # type: ignore[arg-type]
        return self.iterate(results, about)

    def metrics(self):
        return {"numLateRecordsDropped": self.num_late_records_dropped}


def _contents(operator: Any) -> str:
    if operator.evictor is not None:
        return "records with their times, for an evictor"
    if operator.kind == "reduce":
        return "reduced values"
    if operator.kind != "aggregate":
        return "records"
    if not isinstance(operator.function, FieldAggregates):
        return "accumulators"
    aggregates = operator.function.aggregates
    parts = ("count" if each.field is None else f"{each.kind} of {each.field!r}" for each in aggregates)
    return f"accumulators ({', '.join(parts)})"


def check_form(name: str, saved: Mapping[str, str], form: Mapping[str, str]) -> None:
    """Refuse what would be read as something else, instead of giving wrong results for it.

    Args:
        name: of the operator.
        saved: `WindowOperatorBase.form` as it was; ``form``: as it is.
    """
    changes = [
        f"{part}: {saved.get(part, 'any')} -> {form.get(part, 'any')}"
        for part in dict.fromkeys((*saved, *form))
        if saved.get(part) != form.get(part)
    ]
    if changes:
        raise StateMigrationError(
            f'could not restore the windows of operator "{name}"',
            why=f"the program keeps them in another form than the savepoint ({'; '.join(changes)})",
            do="give the operator another uid, and restore with allow_non_restored_state",
        )


def _check_description(name: str, operator: Any) -> None:
    where = f'operator "{name}"'
    if operator.kind not in KINDS:
        raise InvalidJobError(f"could not run a window of kind {operator.kind!r}", where=where)
    if operator.kind == "aggregate" and not isinstance(operator.function, AggregateFunction):
        raise InvalidJobError("aggregate needs an AggregateFunction", where=where)
    if isinstance(operator.function, Function) and operator.kind == "reduce":
        if not isinstance(operator.function, ReduceFunction):
            raise InvalidJobError("reduce needs a ReduceFunction or a callable", where=where)
