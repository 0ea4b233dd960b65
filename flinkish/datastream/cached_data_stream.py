"""CachedDataStream: a stream whose records are kept for the next jobs of the program."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any, Iterator, Optional

from flinkish.common.notices import warn_user
from flinkish.datastream.data_stream import DataStream, collect_sink_of
from flinkish.datastream.transformations import (
    PhysicalTransformation,
    SourceOperator,
    SourceTransformation,
    Transformation,
    UnionTransformation,
)
from flinkish.errors import FlinkishError

if TYPE_CHECKING:
    from flinkish.common.job_client import JobClient
    from flinkish.datastream.stream_execution_environment import StreamExecutionEnvironment

__all__ = ["CachedDataStream"]


class CachedDataStream(DataStream):
    """Made by ``stream.cache()``.

    The first job that uses it computes it, and brings its records to the driver beside; jobs after that job's good end
    read them from there, spread over the subtasks.  Records have no event times then (assign them behind the cache).
    They must fit into the driver's memory.  A job with an endless source keeps nothing, with a warning.  Settings
    (name, uid, parallelism ...) are those of the operator whose records are kept.
    """

    def __init__(self, original: DataStream):
        # A union of one: what it is a union of is exchanged when the records are here.
        union = UnionTransformation(
            "Cache", original.transformation.output_type, union_inputs=(original.transformation,)
        )
        super().__init__(original.environment, union)
        self._original = original.transformation
        self._filling: Optional[tuple[JobClient, threading.Thread]] = None

    def _operator(self, setting: str) -> PhysicalTransformation:
        return DataStream(self.environment, self._original)._operator(setting)

    def get_name(self) -> str:
        return self._original.name

    def invalidate(self) -> None:
        """Forget the records; the next job computes them again."""
        self._filling = None
        self._read_from(self._original)

    def _read_from(self, transformation: Transformation) -> None:
        self.transformation.union_inputs = (transformation,)  # type: ignore[attr-defined]

    # ---- filling, for the environment -----------------------------------------------------------

    @property
    def is_cached(self) -> bool:
        """Whether the next job reads the records instead of computing them.  Waits for records on their way when the
        job that computes them is over."""
        if self._filling is not None:
            client, thread = self._filling
            if client.status.is_terminal_state():
                thread.join()
        return self.transformation.inputs[0] is not self._original

    def _fill(self) -> None:
        """Have the job that is about to be submitted bring the records along."""
        if self.is_cached or self._filling is not None and self._filling[1].is_alive():
            return
        if any(source.boundedness().name != "BOUNDED" for source in _sources(self._original)):
            warn_user("cache() keeps nothing of this job, for it has a source without an end")
            return
        results = collect_sink_of(DataStream(self.environment, self._original), "Cache")
        self.environment.before_job(lambda client: self._start(client, results))

    def _start(self, client: "JobClient", results: Any) -> None:
        thread = threading.Thread(
            target=self._take, args=(client, results), name="flinkish-cache", daemon=True
        )
        self._filling = client, thread
        thread.start()

    def _take(self, client: "JobClient", results: Any) -> None:
        from flinkish.connectors.collection import CollectionSource

        try:
            records = list(results)
            client.wait()
        except FlinkishError:  # of the job, which tells it to who waits for it: the next one computes anew
            return
        if self._filling is None or self._filling[0] is not client:
            return  # it was invalidated meanwhile
        kind = self._original.output_type
        source: CollectionSource = CollectionSource(records, kind)
        self._read_from(
            SourceTransformation("Cache", kind, operator=SourceOperator(source, _no_watermarks()))
        )


def _no_watermarks() -> Any:
    from flinkish.common.watermark_strategy import WatermarkStrategy

    return WatermarkStrategy.no_watermarks()


def _ancestors(transformation: Transformation) -> Iterator[Transformation]:
    seen: set[int] = set()
    waiting = [transformation]
    while waiting:
        found = waiting.pop()
        if found.id not in seen:
            seen.add(found.id)
            yield found
            waiting.extend(found.inputs)


def _sources(transformation: Transformation) -> list[Any]:
    return [
        found.operator.source
        for found in _ancestors(transformation)
        if isinstance(found, PhysicalTransformation) and isinstance(found.operator, SourceOperator)
    ]


def fill_caches(
    environment: "StreamExecutionEnvironment", caches: list[CachedDataStream], used: list[Transformation]
) -> None:
    """Have the next job of ``environment`` bring along what ``caches`` that it uses do not have."""
    reached = {found.id for transformation in used for found in _ancestors(transformation)}
    for cache in caches:
        if cache.transformation.id in reached:
            cache._fill()
