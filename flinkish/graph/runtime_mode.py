"""Whether a program runs as a stream or as a batch.

Source: Flink's ``StreamGraphGenerator.determineExecutionMode``."""

from __future__ import annotations

from typing import Any, Iterable, Mapping

from flinkish.common import options
from flinkish.datastream.execution_mode import RuntimeExecutionMode
from flinkish.datastream.transformations import Operator, SourceOperator, SourceTransformation, Transformation
from flinkish.errors import InvalidJobError


def determine_execution_mode(
    transformations: Iterable[Transformation], configuration: Mapping[str, Any]
) -> RuntimeExecutionMode:
    """BATCH or STREAMING; AUTOMATIC is BATCH where every source ends.

    Args:
        transformations: the sinks, or all; what they read from is found from them.
    Raises:
        InvalidJobError: a source of a batch job does not end.
    """
    mode = RuntimeExecutionMode[options.read(configuration, options.EXECUTION_RUNTIME_MODE)]
    if mode is RuntimeExecutionMode.STREAMING:
        return mode
    unbounded = [source for source in _sources_of(transformations) if not _is_bounded(source.operator)]
    if not unbounded:
        return RuntimeExecutionMode.BATCH
    if mode is RuntimeExecutionMode.AUTOMATIC:
        return RuntimeExecutionMode.STREAMING
    raise InvalidJobError(
        "could not run the job in BATCH mode",
        where=f'source "{unbounded[0].name}"',
        why="it is unbounded, and a batch gives its results when the input has ended",
        do="give the source an end, or set the runtime mode to STREAMING or AUTOMATIC",
    )


def _sources_of(transformations: Iterable[Transformation]) -> list[SourceTransformation]:
    found: dict[int, Transformation] = {}
    waiting = list(transformations)
    while waiting:
        transformation = waiting.pop()
        if transformation.id not in found:
            found[transformation.id] = transformation
            waiting += transformation.inputs
    return [found[number] for number in sorted(found) if isinstance(found[number], SourceTransformation)]  # type: ignore[misc]


def _is_bounded(operator: Operator) -> bool:
    # By name, because the graph knows nothing of connectors.
    return isinstance(operator, SourceOperator) and operator.source.boundedness().name == "BOUNDED"
