"""Types, time, watermarks, settings and job handles; PyFlink's ``pyflink.common``."""

from typing import TYPE_CHECKING

from flinkish.common._lazy import lazy_exports

if TYPE_CHECKING:  # what `lazy_exports` does, for type checkers and editors
    from flinkish.common.completable_future import CompletableFuture as CompletableFuture
    from flinkish.common.config_options import (
        ConfigOption as ConfigOption,
        ConfigOptions as ConfigOptions,
    )
    from flinkish.common.configuration import Configuration as Configuration
    from flinkish.common.execution_config import ExecutionConfig as ExecutionConfig
    from flinkish.common.input_dependency_constraint import (
        InputDependencyConstraint as InputDependencyConstraint,
    )
    from flinkish.common.job_client import JobClient as JobClient
    from flinkish.common.job_execution_result import JobExecutionResult as JobExecutionResult
    from flinkish.common.job_id import JobID as JobID
    from flinkish.common.job_listener import JobListener as JobListener
    from flinkish.common.job_status import JobStatus as JobStatus
    from flinkish.common.restart_strategy import (
        RestartStrategies as RestartStrategies,
        RestartStrategyConfiguration as RestartStrategyConfiguration,
    )
    from flinkish.common.serialization import (
        BulkWriterFactory as BulkWriterFactory,
        ByteArraySchema as ByteArraySchema,
        DeserializationSchema as DeserializationSchema,
        Encoder as Encoder,
        SerializationSchema as SerializationSchema,
        SimpleStringSchema as SimpleStringSchema,
    )
    from flinkish.common.serializer import TypeSerializer as TypeSerializer
    from flinkish.common.time import Duration as Duration, Instant as Instant, Time as Time
    from flinkish.common.typeinfo import TypeInformation as TypeInformation, Types as Types
    from flinkish.common.types import Row as Row, RowKind as RowKind
    from flinkish.common.watermark_strategy import (
        TimestampAssigner as TimestampAssigner,
        WatermarkGenerator as WatermarkGenerator,
        WatermarkStrategy as WatermarkStrategy,
    )

_EXPORTS = {
    "completable_future": ["CompletableFuture"],
    "config_options": ["ConfigOption", "ConfigOptions"],
    "configuration": ["Configuration"],
    "execution_config": ["ExecutionConfig"],
    "input_dependency_constraint": ["InputDependencyConstraint"],
    "job_client": ["JobClient"],
    "job_execution_result": ["JobExecutionResult"],
    "job_id": ["JobID"],
    "job_listener": ["JobListener"],
    "job_status": ["JobStatus"],
    "restart_strategy": ["RestartStrategies", "RestartStrategyConfiguration"],
    "serialization": [
        "BulkWriterFactory",
        "ByteArraySchema",
        "DeserializationSchema",
        "Encoder",
        "SerializationSchema",
        "SimpleStringSchema",
    ],
    "serializer": ["TypeSerializer"],
    "time": ["Duration", "Instant", "Time"],
    "typeinfo": ["TypeInformation", "Types"],
    "types": ["Row", "RowKind"],
    "watermark_strategy": ["TimestampAssigner", "WatermarkGenerator", "WatermarkStrategy"],
}

__all__, __getattr__, __dir__ = lazy_exports(__name__, _EXPORTS)
