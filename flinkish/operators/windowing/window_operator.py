"""WindowOperator: windows of any assigner, trigger and evictor.

Each record goes to the windows that the assigner names; for each, its content grows, then the trigger is asked.
The content lies under (window, key), so do the trigger's state and timers; of windows that merge a `MergingWindowSet`
is kept for each key.  A window is cleaned up by a timer at its last instant plus the lateness, which takes its content,
its trigger's state and timers, and calls the window function's ``clear``.

A window is late when its cleanup time is not above the watermark.  A record that no window took is late when its time
plus the lateness is not above the watermark: it goes to the late output, or is counted.

Source: Flink's ``WindowOperator`` and ``EvictingWindowOperator``.  What differs: event time goes on after a restore
(decision 0015), a window equal to one in flight keeps that one's content, and records that an assigner put into several
windows are copied where a reduce could change them.
"""

from __future__ import annotations

from typing import Any, Iterator, Optional

from flinkish.common.constants import WINDOW_STATE_NAME
from flinkish.datastream.evictors import TimestampedValue
from flinkish.datastream.state import MapStateDescriptor
from flinkish.datastream.triggers import EventTimeTrigger, ProcessingTimeTrigger, Trigger, TriggerResult
from flinkish.datastream.window_assigners import MergingWindowAssigner
from flinkish.errors import InvalidJobError, UserError
from flinkish.messages.elements import MAX_WATERMARK_MS
from flinkish.operators.codegen import Blame
from flinkish.operators.copying import freeze
from flinkish.operators.operator import Item
from flinkish.operators.timers import TimerQueue
from flinkish.operators.windowing.base import WindowOperatorBase
from flinkish.operators.windowing.contents import (
    MISSING,
    Aggregated,
    Records,
    Reduced,
    TimestampedRecords,
    WindowContents,
)
from flinkish.operators.windowing.contexts import (
    AssignerContext,
    EvictorContext,
    FiredWindow,
    TriggerContext,
    WindowContext,
)
from flinkish.operators.windowing.merging_window_set import Merge, MergingWindowSet
from flinkish.operators.windowing.namespaces import checked_windows, namespaces_of
from flinkish.operators.windowing.timers import WindowTimerService

#: What `WindowOperator.process` returns for a record that goes to the late output.
LATE: Any = iter(())

#: Keyed state: the `MergingWindowSet`'s mapping.
MERGING_WINDOW_SET = "merging-window-set"

_CONTINUE, _PURGE = TriggerResult.CONTINUE, TriggerResult.PURGE
_FIRES = frozenset((TriggerResult.FIRE, TriggerResult.FIRE_AND_PURGE))
_PURGES = frozenset((TriggerResult.PURGE, TriggerResult.FIRE_AND_PURGE))


class WindowOperator(WindowOperatorBase):
    expanding = True
    keeps_emitted = True

    def __init__(self, spec, environment):
        super().__init__(spec, environment)
        operator, assigner = spec.operator, self.assigner
        self.timers = WindowTimerService(self.scope, environment.now_ms)
        self.event_time: bool = assigner.is_event_time()
        self._cleanup_timers: TimerQueue = self.timers.event_time if self.event_time else self.timers.processing_time
        self.trigger: Trigger = assigner.get_default_trigger(None) if operator.trigger is None else operator.trigger
        self.namespaces = namespaces_of(assigner.get_window_serializer())
        self.merging: Optional[MergingWindowSet] = None
        if isinstance(assigner, MergingWindowAssigner):
            self._check_trigger()
            self.merging = MergingWindowSet(assigner, self.namespaces)
            self.context = WindowContext(self, self.scope, merging=True)
        #: The assigner is not one of ours.
        self.checks_windows = not type(assigner).assign_windows.__module__.startswith("flinkish.datastream.")
        self.evictor = operator.evictor
        self.contents = self._make_contents()
        self.window_sets: Any = None  # key -> mapping of the MergingWindowSet
        self.assigner_context = AssignerContext(self)
        self.trigger_context = TriggerContext(self, self.scope)
        self.evictor_context = EvictorContext(self)
        self.copies = not environment.object_reuse
        fires_at_end = EventTimeTrigger if self.event_time else ProcessingTimeTrigger
        #: The trigger needs nothing but a timer at the end of the window: then it is not asked.
        self.fires_at_end = type(self.trigger) is fires_at_end

    def _check_trigger(self) -> None:
        if not self.trigger.can_merge():
            raise InvalidJobError(
                f"could not use the trigger {type(self.trigger).__name__} for {type(self.assigner).__name__}",
                where=f'operator "{self.name}"',
                why="these windows merge, and the trigger's can_merge() says that it cannot",
                do="take another trigger, or write its can_merge() and on_merge()",
            )

    def _make_contents(self) -> WindowContents:
        if self.evictor is not None:
            return TimestampedRecords(self)
        if self.kind == "reduce":
            return Reduced(self)
        return Aggregated(self) if self.kind == "aggregate" else Records(self)

    # ---- checkpoints ----------------------------------------------------------------------------

    @classmethod
    def form(cls, operator):
        assigner = operator.assigner
        return {
            "kept": "for each key",
            "windows": f"as {type(assigner.get_window_serializer()).__name__} writes them",
            "merging": "yes" if isinstance(assigner, MergingWindowAssigner) else "no",
            "time": "event time" if assigner.is_event_time() else "processing time",
            **super().form(operator),
        }

    def initialize_state(self):
        super().initialize_state()
        self.backend.state(self.contents.descriptor(), self.scope)
        self.contents.table = self.backend.tables[WINDOW_STATE_NAME]
        if self.merging is not None:
            self.backend.state(MapStateDescriptor(MERGING_WINDOW_SET))
            self.window_sets = self.backend.tables[MERGING_WINDOW_SET]

    def open(self):
        super().open()
        if self.event_time and self.saved_lateness_ms != self.lateness_ms:
            self._change_lateness()

    def _change_lateness(self) -> None:
        """Restored windows go by the lateness of the program; those whose time is over by it go now."""
        timers = self._cleanup_timers
        known = list(timers.timers())
        waiting = set(known)  # to fire, or to go
        for time, (namespace, key) in known:
            end = self.namespaces.last_instant(namespace)
            if time != end + self.saved_lateness_ms:
                continue
            if end + self.lateness_ms > self.current_watermark:
                cleanup_time = min(end + self.lateness_ms, MAX_WATERMARK_MS)
                if cleanup_time == end and (end, (namespace, key)) not in waiting:
                    cleanup_time += 1  # it has fired: event time has begun anew, and does not fire it again
                timers.register(cleanup_time, (namespace, key))
                continue
            state_window = namespace
            if self.merging is not None:
                state_window = self.window_sets.get(key, {}).get(namespace)
                if state_window is None:
                    continue
            timers.delete(time, (namespace, key))
            window = self.namespaces.window(namespace)
            self.backend.current_key = key
            self.scope.enter(key, window, namespace)
            self._clean_up(key, window, namespace, (state_window, key), FiredWindow(key, window))

    # ---- records --------------------------------------------------------------------------------

    def process_element(self, value, timestamp, input_index=0):
        self.select_key(value)
        results = self.call(self.process, value, timestamp, record=value)
        if results is None:
            return
        if results is LATE:
            yield from self.output.emit(value, timestamp, tag=self.late_tag)
            return
        for result, time in results:
            yield from self.output.expand()
            if self.tagged_results:
                yield from self.output.result(result, time)
            else:
                yield from self.output.emit(result, time)

    def generate(self, code, value, timestamp, emit, input_index=0):
        self.generate_current_key(code, value)
        results, result, time = code.variable("results"), code.variable("v"), code.variable("ts")
        with code.blame(self, record=value):
            code.line(f"{results} = {code.bind('window', self.process)}({value}, {timestamp})")
        with code.block(f"if {results} is not None:"):
            if self.late_tag is not None:
                with code.block(f"if {results} is {code.bind('late', LATE)}:"):
                    emit(value, timestamp, owned=emit.input_owned, tag=self.late_tag)
            blame = Blame(self, record=value)
            with code.expanding_block(f"for {result}, {time} in {results}:", blame):
                if self.tagged_results:
                    emit.result(result, time)
                else:
                    emit(result, time)

    def process(self, value: Any, timestamp: Optional[int]) -> Optional[Iterator[Any]]:
        """One record of the current key: None, `LATE`, or an iterator of (result, time) that does the rest of the work
        while it is walked."""
        windows = self.assigner.assign_windows(value, timestamp, self.assigner_context)
        if self.checks_windows:
            windows = checked_windows(windows, self.assigner)
        return self._add_to(tuple(windows), 0, value, timestamp, False)

    def _add_to(
        self, windows: tuple, start: int, value: Any, timestamp: Optional[int], taken: bool
    ) -> Optional[Iterator[Any]]:
        """Add a record to the windows from ``start`` on; ``taken``: one before has it."""
        key = self.backend.current_key
        copies = len(windows) > 1 and self.copies and self.kind == "reduce"
        for position in range(start, len(windows)):
            placed = self._place(windows[position], key)
            if placed is None:
                continue
            taken = True
            window, namespace, entry, end, cleanup_time = placed
            # A reduce may change what it is given, and the other windows are to get it as it came.
            self.contents.add(entry, freeze(value) if copies else value, timestamp)
            if self.fires_at_end:
                if end > self.current_watermark or not self.event_time:
                    self._cleanup_timers.register(end, (namespace, key))
                    if end < cleanup_time < MAX_WATERMARK_MS:
                        self._cleanup_timers.register(cleanup_time, (namespace, key))
                    continue
                result = TriggerResult.FIRE
            else:
                self.scope.enter(key, window, namespace)
                result = self.trigger.on_element(value, timestamp, window, self.trigger_context)
            if result is not _CONTINUE:
                if result in _FIRES:
                    return self._fire_for(windows, position, value, timestamp, placed, result)
                self._check_result(result, "on_element")
                self.contents.table.pop(entry, None)
            if cleanup_time < MAX_WATERMARK_MS:
                self._cleanup_timers.register(cleanup_time, (namespace, key))
        return None if taken else self._late(timestamp)

    def _fire_for(
        self, windows: tuple, position: int, value: Any, timestamp: Optional[int], placed: tuple, result: TriggerResult
    ) -> Iterator[Any]:
        window, namespace, entry, _, cleanup_time = placed
        key = self.backend.current_key
        self.scope.enter(key, window, namespace)
        yield from self._emit(key, window, entry)
        if result in _PURGES:
            self.contents.table.pop(entry, None)
        if cleanup_time < MAX_WATERMARK_MS:
            self._cleanup_timers.register(cleanup_time, (namespace, key))
        rest = self.call(self._add_to, windows, position + 1, value, timestamp, True, record=value)
        if rest is not None:
            yield from rest

    def _place(self, window: Any, key: Any) -> Optional[tuple]:
        """Where a window has its content: (window in flight, namespace, entry, last instant, cleanup time); None when
        it is late."""
        if self.merging is None:
            end = cleanup_time = window.max_timestamp()
            if self.event_time:
                cleanup_time = end + self.lateness_ms
                if cleanup_time <= self.current_watermark or self.current_watermark >= MAX_WATERMARK_MS:
                    return None
            namespace = self.namespaces.of(window)
            return window, namespace, (namespace, key), end, cleanup_time
        mapping = self.window_sets.get(key)
        if mapping is None:
            mapping = {}
        namespace, merges = self.merging.add(mapping, window)
        for merge in merges:
            self._merge(key, merge)
            if merge.result != namespace:
                self._register_timers(key, merge.result)
        if merges or namespace != self.namespaces.of(window):
            window = self.namespaces.window(namespace)
        end = cleanup_time = window.max_timestamp()
        if self.event_time:
            cleanup_time = end + self.lateness_ms
            if cleanup_time <= self.current_watermark or self.current_watermark >= MAX_WATERMARK_MS:
                del mapping[namespace]
                self._keep_set(key, mapping)
                return None
        self.window_sets[key] = mapping
        return window, namespace, (mapping[namespace], key), end, cleanup_time

    def _late(self, timestamp: Optional[int]) -> Optional[Iterator[Any]]:
        """No window took a record."""
        if not self.event_time or timestamp is None or not self.is_late(timestamp):
            return None
        if self.late_tag is not None:
            return LATE
        self.num_late_records_dropped += 1
        return None

    # ---- merging --------------------------------------------------------------------------------

    def _merge(self, key: Any, merge: Merge) -> None:
        self._check_end(merge.result)
        if not self.fires_at_end:
            self._tell_trigger(key, merge)
        last_instant = self.namespaces.last_instant
        for namespace in merge.merged:
            end = last_instant(namespace)
            self._cleanup_timers.delete(end, (namespace, key))
            if self.lateness_ms:
                self._cleanup_timers.delete(end + self.lateness_ms, (namespace, key))
        if merge.merged_state_windows:
            self.contents.merge(
                (merge.state_window, key), [(state_window, key) for state_window in merge.merged_state_windows]
            )

    def _register_timers(self, key: Any, namespace: Any) -> None:
        """Of windows that have merged without the one that was added."""
        end = self.namespaces.last_instant(namespace)
        if self.fires_at_end and end > (self.current_watermark if self.event_time else self.environment.now_ms()):
            self._cleanup_timers.register(end, (namespace, key))
        cleanup_time = self._cleanup_time(self.namespaces.window(namespace))
        if cleanup_time < MAX_WATERMARK_MS:
            self._cleanup_timers.register(cleanup_time, (namespace, key))

    def _tell_trigger(self, key: Any, merge: Merge) -> None:
        context, window = self.trigger_context, self.namespaces.window(merge.result)
        self.scope.enter(key, window, merge.result)
        context.merged = merge.merged
        self.trigger.on_merge(window, context)
        context.merged = ()
        for namespace in merge.merged:
            merged = self.namespaces.window(namespace)
            self.scope.enter(key, merged, namespace)
            self.trigger.clear(merged, context)

    def _check_end(self, namespace: Any) -> None:
        """Refuse a merged window that lies in the past, as Flink does."""
        end = self.namespaces.last_instant(namespace)
        if self.event_time:
            if end + self.lateness_ms > self.current_watermark:
                return
            clock = f"watermark {self.current_watermark}"
        else:
            now_ms = self.environment.now_ms()
            if end > now_ms:
                return
            clock = f"processing time {now_ms}"
        raise UserError(
            f"could not merge windows into {self.namespaces.window(namespace)!r}",
            where=f'operator "{self.name}"',
            why=f"its end is not behind the {clock}, so it would never fire",
            do="have merge_windows() of the assigner give windows that cover those which they are made of",
        )

    def _keep_set(self, key: Any, mapping: dict) -> None:
        if mapping:
            self.window_sets[key] = mapping
        else:
            self.window_sets.pop(key, None)

    # ---- cleanup --------------------------------------------------------------------------------

    def _cleanup_time(self, window: Any) -> int:
        """When a window goes; MAX_WATERMARK_MS: never."""
        if not self.event_time:
            return window.max_timestamp()
        return min(window.max_timestamp() + self.lateness_ms, MAX_WATERMARK_MS)

    def _clean_up(self, key: Any, window: Any, namespace: Any, entry: tuple, about: FiredWindow) -> None:
        self.contents.table.pop(entry, None)
        if not self.fires_at_end:  # else its timer has fired
            self.call(self.trigger.clear, window, self.trigger_context, record=about, role="trigger")
        if self.clear is not None:
            self.call(self.clear, self.context, record=about)
        if self.merging is not None:
            mapping = self.window_sets[key]
            del mapping[namespace]
            self._keep_set(key, mapping)

    # ---- timers ---------------------------------------------------------------------------------

    def fire_event_timers(self, watermark: int) -> Iterator[Item]:
        return self._fire_timers(self.timers.event_time, watermark, True)

    def fire_processing_timers(self, limit: int) -> Iterator[Item]:
        return self._fire_timers(self.timers.processing_time, limit, False)

    def _fire_timers(self, queue: TimerQueue, limit: int, event_time: bool) -> Iterator[Item]:
        role = "on_event_time" if event_time else "on_processing_time"
        ask = getattr(self.trigger, role)
        for time, (namespace, key) in queue.fire(limit):
            yield None
            state_window = namespace
            if self.merging is not None:
                mapping = self.window_sets.get(key)
                state_window = None if mapping is None else mapping.get(namespace)
                if state_window is None:  # merged since, by a trigger that did not delete its timer
                    continue
            window = self.namespaces.window(namespace)
            entry = state_window, key
            about = FiredWindow(key, window)
            self.backend.current_key = key
            self.scope.enter(key, window, namespace)
            result = self.call(ask, time, window, self.trigger_context, record=about, role="trigger")
            if result is not _CONTINUE:
                self.call(self._check_result, result, role, record=about, role="trigger")
                if result in _FIRES:
                    yield from self._emit(key, window, entry)
                if result in _PURGES:
                    self.contents.table.pop(entry, None)
            if event_time is self.event_time and time >= self._cleanup_time(window):
                self._clean_up(key, window, namespace, entry, about)

    def _check_result(self, result: Any, method: str) -> None:
        if type(result) is not TriggerResult:
            raise TypeError(f"{type(self.trigger).__name__}.{method}() must return a TriggerResult, not {result!r}")

    # ---- results --------------------------------------------------------------------------------

    def _emit(self, key: Any, window: Any, entry: tuple) -> Iterator[Any]:
        """Results of a window, unless it is empty."""
        content = self.contents.table.get(entry, MISSING)
        if content is MISSING:
            return
        time, about = window.max_timestamp(), FiredWindow(key, window)
        if self.evictor is not None:
            yield from self._emit_kept(key, window, entry, content, time, about)
            return
        if self.kind == "aggregate":
            content = self.call(self.get_result, content, record=about)
        if self.window_function is None:
            yield content, time
            return
        elements = [content] if self.kind in ("reduce", "aggregate") else list(content)
        for result in self.results_of(key, window, elements, about):
            yield result, time

    def _emit_kept(
        self, key: Any, window: Any, entry: tuple, content: list, time: int, about: FiredWindow
    ) -> Iterator[Any]:
        """Of what the evictor leaves."""
        evictor, context = self.evictor, self.evictor_context
        kept = [TimestampedValue(value, timestamp) for value, timestamp in content]
        self.call(evictor.evict_before, kept, len(kept), window, context, record=about, role="evictor")
        elements = [value for value, _ in self.call(_content_of, kept, evictor, record=about, role="evictor")]
        if self.kind == "reduce":
            elements = self.call(self._reduce_all, elements, record=about)
        elif self.kind == "aggregate":
            elements = [self.call(self._aggregate_all, elements, record=about)]
        if self.window_function is None or (self.kind == "reduce" and not elements):
            for result in elements:
                yield result, time
        else:
            for result in self.results_of(key, window, elements, about):
                yield result, time
        self.call(evictor.evict_after, kept, len(kept), window, context, record=about, role="evictor")
        if kept:
            self.contents.table[entry] = self.call(_content_of, kept, evictor, record=about, role="evictor")
        else:
            self.contents.table.pop(entry, None)

    def _reduce_all(self, elements: list) -> list:
        """The one reduced value, or nothing."""
        if not elements:
            return []
        reduced = freeze(elements[0]) if self.copies else elements[0]  # it stays in the state
        for element in elements[1:]:
            reduced = self.reduce(reduced, element)
        return [reduced]

    def _aggregate_all(self, elements: list) -> Any:
        accumulator = self.create_accumulator()
        for element in elements:
            accumulator = self.add(element, accumulator)
        return self.get_result(accumulator)


def _content_of(kept: list, evictor: Any) -> list[tuple[Any, Optional[int]]]:
    """What an evictor has left, as it is kept."""
    for element in kept:
        if not isinstance(element, TimestampedValue):
            raise TypeError(f"{type(evictor).__name__} has put {element!r} among the elements, no TimestampedValue")
    return [(element.get_value(), element.get_timestamp()) for element in kept]
