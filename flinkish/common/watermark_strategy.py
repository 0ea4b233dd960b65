"""WatermarkStrategy: where event times come from, and how far event time has got.

Source: Flink's ``org.apache.flink.api.common.eventtime`` package.
"""

from __future__ import annotations

import abc
import inspect
from dataclasses import dataclass, fields, is_dataclass, replace
from datetime import datetime
from typing import Any, Callable, Optional, Protocol, Union

from flinkish.common.constants import MIN_LONG_VALUE
from flinkish.common.time import Instant, TimeLike, to_epoch_milliseconds, to_milliseconds
from flinkish.errors import InvalidJobError

__all__ = [
    "AscendingTimestampsWatermarks",
    "BoundedOutOfOrdernessWatermarks",
    "FieldTimestampAssigner",
    "NoWatermarksGenerator",
    "TimestampAssigner",
    "WatermarkAlignment",
    "WatermarkGenerator",
    "WatermarkStrategy",
]


class TimestampAssigner(abc.ABC):
    """Reads the event time from a record."""

    @abc.abstractmethod
    def extract_timestamp(self, value: Any, record_timestamp: Optional[int]) -> int:
        """Event time of ``value``, ms since the epoch (UTC).

        ``record_timestamp`` is the time that the source gave it, or None.  Called for each record."""


class FieldTimestampAssigner(TimestampAssigner):
    """The event time stands in a field (name or position): an int of ms, a datetime or an Instant.

    On columns the field names a column, so batches need not become rows."""

    def __init__(self, field: Union[str, int]):
        self.field = field

    def extract_timestamp(self, value: Any, record_timestamp: Optional[int]) -> int:
        field = self.field
        try:
            time = value[field]
        except TypeError:  # neither a dict, a tuple nor a Row
            time = _field_of_object(value, field)
        return to_epoch_milliseconds(time)


def _field_of_object(value: Any, field: Union[str, int]) -> Any:
    """Of a dataclass, a NamedTuple, another object, or a single value, which is its own field 0."""
    if isinstance(field, str):
        return getattr(value, field)
    if is_dataclass(value):
        return getattr(value, fields(value)[field].name)
    if field == 0 and (isinstance(value, (datetime, Instant)) or hasattr(value, "__index__")):
        return value
    raise TypeError(f"a {type(value).__name__} has no field {field}: {value!r:.200}")


class WatermarkOutput(Protocol):
    """What a generator writes to (``connectors.spi.WatermarkOutput``)."""

    def emit_watermark(self, timestamp_ms: int) -> None: ...

    def mark_idle(self) -> None: ...

    def mark_active(self) -> None: ...


class WatermarkGenerator(abc.ABC):
    """Decides how far event time has got; one per split or subtask, never shared."""

    def on_event(self, event: Any, event_timestamp: int, output: WatermarkOutput) -> None:
        """Called for each record; may emit a watermark at once."""

    @abc.abstractmethod
    def on_periodic_emit(self, output: WatermarkOutput) -> None:
        """Called every ``pipeline.auto-watermark-interval``, and before the input ends."""


class BoundedOutOfOrdernessWatermarks(WatermarkGenerator):
    """Records come at most ``max_out_of_orderness`` after a record with a later time.

    Built-in generators need only the largest time of a batch: `on_batch` replaces one `on_event`
    per record.

    Source: Flink BoundedOutOfOrdernessWatermarks (the ``- 1`` is theirs).
    """

    def __init__(self, max_out_of_orderness: TimeLike):
        self.delay_ms = to_milliseconds(max_out_of_orderness)
        self.max_timestamp = MIN_LONG_VALUE + self.delay_ms + 1

    def on_event(self, event: Any, event_timestamp: int, output: WatermarkOutput) -> None:
        if event_timestamp > self.max_timestamp:
            self.max_timestamp = event_timestamp

    def on_batch(self, max_timestamp: int) -> None:
        if max_timestamp > self.max_timestamp:
            self.max_timestamp = max_timestamp

    def on_periodic_emit(self, output: WatermarkOutput) -> None:
        output.emit_watermark(self.max_timestamp - self.delay_ms - 1)


class AscendingTimestampsWatermarks(BoundedOutOfOrdernessWatermarks):
    """Times never go back within a split."""

    def __init__(self):
        super().__init__(0)


class NoWatermarksGenerator(WatermarkGenerator):
    """Event time does not move until the input ends."""

    def on_batch(self, max_timestamp: int) -> None: ...

    def on_periodic_emit(self, output: WatermarkOutput) -> None: ...


@dataclass(frozen=True)
class WatermarkAlignment:
    """Sources of one group stop reading while they are further ahead than the drift."""

    group: str
    max_drift_ms: int
    update_interval_ms: int


@dataclass(frozen=True)
class WatermarkStrategy:
    """How a stream gets event times and watermarks.  Immutable: each ``with_…`` returns a new one.

    >>> strategy = WatermarkStrategy.for_bounded_out_of_orderness(5_000)
    >>> strategy = strategy.with_timestamp_assigner(lambda trade: trade["time"])
    """

    generator_factory: Callable[[], WatermarkGenerator] = NoWatermarksGenerator
    timestamp_assigner: Optional[Any] = None
    idle_timeout_ms: Optional[int] = None
    alignment: Optional[WatermarkAlignment] = None

    # ---- made by --------------------------------------------------------------------------------

    @staticmethod
    def for_bounded_out_of_orderness(max_out_of_orderness: TimeLike) -> "WatermarkStrategy":
        """The watermark stays this far behind the latest event time."""
        delay_ms = to_milliseconds(max_out_of_orderness)
        if delay_ms < 0:
            raise InvalidJobError(f"the disorder of a watermark strategy cannot be {delay_ms} ms")
        return WatermarkStrategy(_BoundedFactory(delay_ms))

    @staticmethod
    def for_monotonous_timestamps() -> "WatermarkStrategy":
        return WatermarkStrategy(AscendingTimestampsWatermarks)

    @staticmethod
    def no_watermarks() -> "WatermarkStrategy":
        return WatermarkStrategy()

    @staticmethod
    def for_generator(supplier: Callable[[], WatermarkGenerator]) -> "WatermarkStrategy":
        """``supplier`` makes a generator for each split: a class or a function without arguments."""
        why = _no_supplier(supplier)
        if why:
            raise InvalidJobError(
                "a watermark strategy needs a supplier of generators",
                why=why,
                do="give a class derived from WatermarkGenerator, or a function without arguments that returns a new one",
            )
        return WatermarkStrategy(supplier)

    # ---- changed by -----------------------------------------------------------------------------

    def with_timestamp_assigner(
        self, timestamp_assigner: Union[TimestampAssigner, Callable[..., int], str, int]
    ) -> "WatermarkStrategy":
        """Read event times by a ``TimestampAssigner``, by a function of ``(value)`` or ``(value,
        record_timestamp)``, or from a field (its name or position)."""
        if isinstance(timestamp_assigner, (str, int)):
            timestamp_assigner = FieldTimestampAssigner(timestamp_assigner)
        elif not isinstance(timestamp_assigner, TimestampAssigner) and not callable(timestamp_assigner):
            raise InvalidJobError(
                f"{timestamp_assigner!r} cannot assign timestamps",
                do="give a TimestampAssigner, a function (value) -> ms or a field name",
            )
        else:
            _check_assigner(timestamp_assigner)
        return replace(self, timestamp_assigner=timestamp_assigner)

    def with_idleness(self, idle_timeout: TimeLike) -> "WatermarkStrategy":
        """A split without records for this long no longer holds the watermark back."""
        idle_timeout_ms = to_milliseconds(idle_timeout)
        if idle_timeout_ms <= 0:
            raise InvalidJobError(f"the idle timeout must be above 0 ms, not {idle_timeout_ms}")
        return replace(self, idle_timeout_ms=idle_timeout_ms)

    def with_watermark_alignment(
        self,
        watermark_group: str,
        max_allowed_watermark_drift: TimeLike,
        update_interval: Optional[TimeLike] = None,
    ) -> "WatermarkStrategy":
        """Sources of one group wait for each other: one whose watermark is more than the drift ahead of the least of
        the group stops reading until the others have caught up.  Of a source with several splits each split waits
        for itself (``SourceReader.pause_or_resume_splits``).

        Args:
            watermark_group: a name; sources with the same one are aligned with each other.
            max_allowed_watermark_drift: >= 0 ms.
            update_interval: how often readers say how far they are and are told how far they may get; default: 1 s.
                Much less than a second costs messages.
        """
        if not isinstance(watermark_group, str) or not watermark_group:
            raise InvalidJobError(
                f"{watermark_group!r} cannot be a group of watermarks",
                where="with_watermark_alignment",
                do="give a name, the same for all sources that wait for each other",
            )
        interval_ms = 1_000 if update_interval is None else to_milliseconds(update_interval)
        if interval_ms <= 0:
            raise InvalidJobError(
                f"the update interval of a watermark alignment must be above 0 ms, not {interval_ms}"
            )
        drift_ms = to_milliseconds(max_allowed_watermark_drift)
        if drift_ms < 0:
            raise InvalidJobError(f"the drift of a watermark alignment cannot be {drift_ms} ms")
        return replace(self, alignment=WatermarkAlignment(watermark_group, drift_ms, interval_ms))

    # ---- read by the runtime --------------------------------------------------------------------

    def create_watermark_generator(self) -> WatermarkGenerator:
        generator = self.generator_factory()
        if not _is_generator(generator):
            raise TypeError(f"the supplier of watermark generators gave {generator!r:.200}, no WatermarkGenerator")
        return generator

    def timestamp_function(self) -> Optional[tuple[Callable[..., int], bool]]:
        """``(function, takes_record_timestamp)``, or None when the source's times are kept.

        ``takes_record_timestamp``: call ``function(value, record_timestamp)``, else
        ``function(value)``."""
        assigner = self.timestamp_assigner
        if assigner is None:
            return None
        if isinstance(assigner, TimestampAssigner):
            return assigner.extract_timestamp, True
        return assigner, _takes_two(assigner)

    @property
    def timestamp_field(self) -> Union[str, int, None]:
        """The field that holds the event time, when it is just a field."""
        assigner = self.timestamp_assigner
        return assigner.field if isinstance(assigner, FieldTimestampAssigner) else None


@dataclass(frozen=True)
class _BoundedFactory:
    """A supplier that compares and pickles, unlike a lambda."""

    delay_ms: int

    def __call__(self) -> BoundedOutOfOrdernessWatermarks:
        return BoundedOutOfOrdernessWatermarks(self.delay_ms)


def _is_generator(thing: Any) -> bool:
    return callable(getattr(thing, "on_event", None)) and callable(getattr(thing, "on_periodic_emit", None))


def _no_supplier(supplier: Any) -> str:
    """Why ``supplier`` cannot make generators; "": it can, for all that is known now."""
    if isinstance(supplier, WatermarkGenerator) or not callable(supplier):
        return "each split has a generator of its own, so one object cannot be shared"
    if isinstance(supplier, type) and not _is_generator(supplier):
        return f"{supplier.__name__} has no on_event() and on_periodic_emit()"
    if inspect.isabstract(supplier):
        return f"{supplier.__name__} leaves {', '.join(sorted(supplier.__abstractmethods__))} unwritten"
    try:
        signature = inspect.signature(supplier)
    except (TypeError, ValueError):  # it does not say
        return ""
    try:
        signature.bind()
    except TypeError:
        return f"it is called without arguments, and its parameters are {signature}"
    return ""


def _check_assigner(function: Any) -> None:
    """Refuse a function that takes neither one argument nor two, if it says so."""
    if isinstance(function, TimestampAssigner):
        return
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # some builtins tell nothing
        return
    for arguments in ((None,), (None, None)):
        try:
            signature.bind(*arguments)
        except TypeError:
            continue
        return
    raise InvalidJobError(
        f"{function!r} cannot assign timestamps",
        why=f"it is called with the record, or with the record and its time, and its parameters are {signature}",
        do="give it the parameters (value) or (value, record_timestamp)",
    )


def _takes_two(function: Callable) -> bool:
    """Whether ``function`` wants a second positional argument that has no default."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):  # some builtins tell nothing; int("…") and operator.itemgetter take one
        return False
    required = [
        p
        for p in parameters
        if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD) and p.default is p.empty
    ]
    return len(required) >= 2
