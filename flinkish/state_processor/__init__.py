"""State as data: the state of savepoints as tables, and savepoints from tables (Flink's State Processor API).

Spark DataFrames by the same rules: ``spark_plugin.state_data``.
"""

from flinkish.state_processor.savepoint_reader import SavepointReader, StateInfo
from flinkish.state_processor.savepoint_writer import (
    KeyedStateBootstrap,
    OperatorIdentifier,
    OperatorTransformation,
    SavepointWriter,
)

__all__ = [
    "KeyedStateBootstrap",
    "OperatorIdentifier",
    "OperatorTransformation",
    "SavepointReader",
    "SavepointWriter",
    "StateInfo",
]
