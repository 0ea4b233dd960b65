"""StreamExecutionEnvironment: where a program begins, and what runs it."""

from __future__ import annotations

import os
import reprlib
import warnings
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Callable, ClassVar, Iterable, NoReturn, Optional, Union

from flinkish.common import options
from flinkish.common.arguments import check_argument
from flinkish.common.configuration import Configuration
from flinkish.common.configuration_check import check_configuration
from flinkish.common.driver_only import check_in_driver
from flinkish.common.execution_config import ExecutionConfig, check_parallelism
from flinkish.common.io import InputFormat
from flinkish.common.job_listener import JobListener
from flinkish.common.notices import warn_user
from flinkish.common.restart_strategy import RestartStrategyConfiguration
from flinkish.common.time import TimeLike, to_milliseconds
from flinkish.common.typeinfo import TypeInformation
from flinkish.common.uncaught_errors import fold_engine_frames
from flinkish.common.watermark_strategy import WatermarkStrategy
from flinkish.datastream.checkpoint_config import CheckpointConfig
from flinkish.datastream.checkpoint_storage import CheckpointStorage
from flinkish.datastream.checkpointing_mode import CheckpointingMode
from flinkish.datastream.data_stream import DataStream, check_watermark_strategy
from flinkish.datastream.execution_mode import RuntimeExecutionMode
from flinkish.datastream.forgotten_sinks import SinksToRun
from flinkish.datastream.function_adapters import check_type
from flinkish.datastream.slot_sharing_group import SlotSharingGroup
from flinkish.datastream.state_backend import StateBackend
from flinkish.datastream.transformations import (
    SinkTransformation,
    SourceOperator,
    SourceTransformation,
    Transformation,
)
from flinkish.errors import FlinkishError, InvalidJobError

if TYPE_CHECKING:
    from flinkish.common.job_client import JobClient
    from flinkish.common.job_execution_result import JobExecutionResult
    from flinkish.datastream.cached_data_stream import CachedDataStream
    from flinkish.datastream.functions import SourceFunction
    from flinkish.graph.stream_graph import StreamGraph

__all__ = ["StreamExecutionEnvironment"]

#: How long Ctrl-C waits for the job to end before it is raised anyway.
_INTERRUPT_WAIT_MS = 30_000

_SETTINGS = 'give a Configuration or a dict such as {"parallelism.default": "2"}'


class StreamExecutionEnvironment:
    """Collects a program, then runs it.

    >>> env = StreamExecutionEnvironment.get_execution_environment()
    >>> env.from_collection([1, 2, 3]).map(lambda n: n * 2).get_name()
    'Map'

    Args:
        configuration: settings; copied.
        spark: the SparkSession to run in; None: the active one, else one is made.
        cluster: a ``MiniCluster`` or ``SessionCluster`` to run on, instead of Spark slots of its own.
    """

    _default_local_parallelism: ClassVar[int] = os.cpu_count() or 1
    _context: ClassVar[dict[str, Any]] = {}

    def __init__(
        self, configuration: Optional[Mapping[str, Any]] = None, spark: Any = None, cluster: Any = None
    ):
        self._configuration = Configuration(configuration)
        self._config = ExecutionConfig(self._configuration)
        self._checkpoint_config = CheckpointConfig(self._configuration)
        self._spark = spark
        self._cluster = cluster
        self._transformations: list[Transformation] = []
        self._sinks_to_run = SinksToRun.of_caller()
        self._slot_sharing_groups: dict[str, SlotSharingGroup] = {}
        self._job_listeners: list[JobListener] = []
        self._caches: list[CachedDataStream] = []
        self._before_job: list[Callable[[JobClient], None]] = []

    @staticmethod
    def get_execution_environment(
        configuration: Optional[Mapping[str, Any]] = None, spark: Any = None, cluster: Any = None
    ) -> "StreamExecutionEnvironment":
        """A new environment.

        Settings come, the later ones before the earlier, from the folder that FLINKISH_CONF_DIR
        names, from the command line (``flinkish run``), and from ``configuration``.
        """
        fold_engine_frames()
        if configuration is not None:
            call = "get_execution_environment()"
            check_argument(configuration, Mapping, call, "configuration", _SETTINGS)
        context = StreamExecutionEnvironment._context
        merged = Configuration.load_global()
        merged.add_all(context.get("configuration") or {})
        merged.add_all(configuration or {})
        return StreamExecutionEnvironment(
            merged,
            context.get("spark") if spark is None else spark,
            context.get("cluster") if cluster is None else cluster,
        )

    @staticmethod
    def set_context(
        configuration: Optional[Mapping[str, Any]] = None, spark: Any = None, cluster: Any = None
    ) -> None:
        """What ``get_execution_environment`` uses where a program says nothing; for launchers."""
        StreamExecutionEnvironment._context = {
            "configuration": configuration,
            "spark": spark,
            "cluster": cluster,
        }

    @staticmethod
    def reset_context() -> None:
        StreamExecutionEnvironment._context = {}

    # ---- settings -------------------------------------------------------------------------------

    @property
    def configuration(self) -> Configuration:
        """The settings of the jobs of this environment; changes count from the next job on."""
        return self._configuration

    def get_configuration(self) -> Configuration:
        return self._configuration

    def get_config(self) -> ExecutionConfig:
        return self._config

    def configure(self, configuration: Mapping[str, Any]) -> "StreamExecutionEnvironment":
        """Take over these settings; a known key with a bad value is refused."""
        check_argument(configuration, Mapping, "configure()", "configuration", _SETTINGS)
        for key, value in configuration.items():
            option = options.ALL_OPTIONS.get(key)
            self._configuration.set(key if option is None else option, value)
        return self

    def set_parallelism(self, parallelism: int) -> "StreamExecutionEnvironment":
        """Default number of subtasks of an operator."""
        self._config.set_parallelism(parallelism)
        return self

    def get_parallelism(self) -> int:
        return self._config.get_parallelism()

    def set_max_parallelism(self, max_parallelism: int) -> "StreamExecutionEnvironment":
        """Number of key groups: the most subtasks that keyed operators can ever have."""
        self._config.set_max_parallelism(max_parallelism)
        return self

    def get_max_parallelism(self) -> int:
        """-1: derived from the parallelism."""
        return self._config.get_max_parallelism()

    def register_slot_sharing_group(
        self, slot_sharing_group: SlotSharingGroup
    ) -> "StreamExecutionEnvironment":
        call = "register_slot_sharing_group()"
        check_argument(slot_sharing_group, SlotSharingGroup, call, "slot_sharing_group")
        if slot_sharing_group._resources:
            warnings.warn(
                f"slot sharing group {slot_sharing_group.get_name()!r} asks for resources; slots are all "
                "alike, so it gets slots of the usual size",
                stacklevel=2,
            )
        self._slot_sharing_groups[slot_sharing_group.get_name()] = slot_sharing_group
        return self

    def set_runtime_mode(self, execution_mode: RuntimeExecutionMode) -> "StreamExecutionEnvironment":
        """How the jobs of this environment run; also ``execution.runtime-mode``."""
        check_argument(execution_mode, RuntimeExecutionMode, "set_runtime_mode()", "execution_mode")
        self._configuration.set(options.EXECUTION_RUNTIME_MODE, execution_mode.name)
        return self

    def set_buffer_timeout(self, timeout_millis: TimeLike) -> "StreamExecutionEnvironment":
        """Longest wait of a record in an open batch; -1: only full batches are sent."""
        self._configuration.set(options.EXECUTION_BUFFER_TIMEOUT, to_milliseconds(timeout_millis))
        return self

    def get_buffer_timeout(self) -> int:
        return self._configuration.get(options.EXECUTION_BUFFER_TIMEOUT)

    def disable_operator_chaining(self) -> "StreamExecutionEnvironment":
        self._configuration.set(options.PIPELINE_OPERATOR_CHAINING, False)
        return self

    def is_chaining_enabled(self) -> bool:
        return self._configuration.get(options.PIPELINE_OPERATOR_CHAINING)

    def is_chaining_of_operators_with_different_max_parallelism_enabled(self) -> bool:
        return self._configuration.get(options.PIPELINE_CHAINING_DIFFERENT_MAX_PARALLELISM)

    def get_default_local_parallelism(self) -> int:
        return StreamExecutionEnvironment._default_local_parallelism

    def set_default_local_parallelism(self, parallelism: int) -> None:
        StreamExecutionEnvironment._default_local_parallelism = check_parallelism(parallelism)

    # ---- checkpoints and state ------------------------------------------------------------------

    def get_checkpoint_config(self) -> CheckpointConfig:
        return self._checkpoint_config

    def enable_checkpointing(
        self, interval: TimeLike, mode: Optional[CheckpointingMode] = None
    ) -> "StreamExecutionEnvironment":
        self._checkpoint_config.set_checkpoint_interval(interval)
        if mode is not None:
            self._checkpoint_config.set_checkpointing_mode(mode)
        return self

    def get_checkpoint_interval(self) -> int:
        return self._checkpoint_config.get_checkpoint_interval()

    def get_checkpointing_mode(self) -> CheckpointingMode:
        return self._checkpoint_config.get_checkpointing_mode()

    def get_checkpointing_consistency_mode(self) -> CheckpointingMode:
        return self._checkpoint_config.get_checkpointing_mode()

    def is_unaligned_checkpoints_enabled(self) -> bool:
        return self._checkpoint_config.is_unaligned_checkpoints_enabled()

    def is_force_unaligned_checkpoints(self) -> bool:
        return self._checkpoint_config.is_force_unaligned_checkpoints()

    def _set_all(self, settings: Mapping[Any, Any]) -> "StreamExecutionEnvironment":
        for option, value in settings.items():
            self._configuration.set(option, value)
        return self

    def set_state_backend(self, state_backend: "StateBackend") -> "StreamExecutionEnvironment":
        check_argument(
            state_backend,
            StateBackend,
            "set_state_backend()",
            "state_backend",
            "give HashMapStateBackend() or EmbeddedRocksDBStateBackend()",
        )
        return self._set_all(state_backend.settings())

    def set_checkpoint_storage(self, storage: "CheckpointStorage") -> "StreamExecutionEnvironment":
        self.get_checkpoint_config().set_checkpoint_storage(storage)
        return self

    def set_restart_strategy(
        self, restart_strategy: RestartStrategyConfiguration
    ) -> "StreamExecutionEnvironment":
        check_argument(
            restart_strategy,
            RestartStrategyConfiguration,
            "set_restart_strategy()",
            "restart_strategy",
            "give for example RestartStrategies.no_restart()",
        )
        return self._set_all(restart_strategy.settings())

    def enable_changelog_state_backend(self, enabled: bool) -> "StreamExecutionEnvironment":
        """Store changes at each checkpoint, and a base between them; with rocksdb (``state.changelog.enabled``)."""
        self._configuration.set(options.CHANGELOG_ENABLED, bool(enabled))
        return self

    def is_changelog_state_backend_enabled(self) -> bool:
        return self._configuration.get(options.CHANGELOG_ENABLED)

    def set_default_savepoint_directory(self, directory: str) -> "StreamExecutionEnvironment":
        check_argument(directory, str, "set_default_savepoint_directory()", "directory")
        self._configuration.set(options.SAVEPOINT_DIRECTORY, directory)
        return self

    def get_default_savepoint_directory(self) -> Optional[str]:
        return self._configuration.get(options.SAVEPOINT_DIRECTORY)

    # ---- Python files ---------------------------------------------------------------------------

    def add_python_file(self, file_path: str) -> None:
        """A Python file, package folder or zip that slots need on their path."""
        check_argument(file_path, (str, os.PathLike), "add_python_file()", "file_path")
        if not os.path.exists(file_path):
            raise InvalidJobError(f"there is no file {file_path!r} to add")
        files = self._configuration.get(options.PYTHON_FILES) or []
        self._configuration.set(options.PYTHON_FILES, [*files, os.path.abspath(file_path)])

    def set_python_executable(self, python_exec: str) -> None:
        _no_shipping(
            "set_python_executable", "start the driver with this interpreter; slots use the driver's"
        )

    def set_python_requirements(
        self, requirements_file_path: str, requirements_cache_dir: Optional[str] = None
    ) -> None:
        _no_shipping("set_python_requirements", "install the packages where Spark's executors run")

    def add_python_archive(self, archive_path: str, target_dir: Optional[str] = None) -> None:
        _no_shipping("add_python_archive", "give Spark the archive: spark-submit --archives")

    def register_cached_file(self, file_path: str, name: str, executable: bool = False) -> None:
        _no_shipping("register_cached_file", "read the file in open() from storage that all hosts reach")

    def add_jars(self, *jars_path: str) -> None:
        _no_jvm("add_jars")

    def add_classpaths(self, *classpaths: str) -> None:
        _no_jvm("add_classpaths")

    # ---- sources --------------------------------------------------------------------------------

    def from_source(
        self,
        source: Any,
        watermark_strategy: WatermarkStrategy,
        source_name: str,
        type_info: Optional[TypeInformation] = None,
    ) -> DataStream:
        """Records of a ``flinkish.connectors.spi.Source``.

        ``type_info`` None: what the source itself declares."""
        from flinkish.connectors.spi import Source

        if not isinstance(source, Source):
            raise InvalidJobError(
                f"from_source() takes a Source, not a {type(source).__name__}",
                do="use add_source() for a SourceFunction, from_collection() for a list",
            )
        check_argument(source_name, str, "from_source()", "source_name")
        check_type(type_info, "the source")
        type_info = type_info or source.produced_type()
        check_watermark_strategy(watermark_strategy, type_info)
        fixed = source.fixed_parallelism
        return DataStream(
            self,
            SourceTransformation(
                source_name,
                type_info,
                parallelism=fixed,
                max_parallelism=fixed,
                operator=SourceOperator(source, watermark_strategy),
            ),
        )

    def from_collection(
        self, collection: Iterable[Any], type_info: Optional[TypeInformation] = None
    ) -> DataStream:
        """The elements of a list or other iterable, in order, with parallelism 1.

        With ``type_info`` each element is checked, and converted to the type's own form (a tuple to
        a Row)."""
        from flinkish.connectors.collection import CollectionSource, items_of

        items = items_of(collection, "from_collection()")
        if check_type(type_info, "the collection") is not None:
            for position, item in enumerate(items):
                type_info.check(item, f"element {position} of the collection")  # type: ignore[union-attr]
            items = [type_info.convert(item) for item in items]  # type: ignore[union-attr]
        source: CollectionSource = CollectionSource(items, type_info, fixed_parallelism=1)
        return self.from_source(source, WatermarkStrategy.no_watermarks(), "Collection Source", type_info)

    def from_sequence(self, start: int, end: int) -> DataStream:
        """The ints from ``start`` to ``end``, both included, spread over the subtasks."""
        from flinkish.connectors.sequence import NumberSequenceSource

        return self.from_source(
            NumberSequenceSource(start, end), WatermarkStrategy.no_watermarks(), "Sequence Source"
        )

    def create_input(self, input_format: Any, type_info: Optional[TypeInformation] = None) -> DataStream:
        """Records of an ``InputFormat``, for example ``AvroInputFormat``."""
        do = "give for example AvroInputFormat (flinkish.datastream.formats.avro)"
        check_argument(input_format, InputFormat, "create_input()", "input_format", do)
        source = input_format.create_source()
        return self.from_source(source, WatermarkStrategy.no_watermarks(), "Custom Source", type_info)

    def read_text_file(self, file_path: Any, charset_name: str = "UTF-8") -> DataStream:
        """The lines of a text file, of the files of a folder, or of those that match a pattern."""
        from flinkish.connectors.files.formats import TextLineFormat

        return self.read_file(TextLineFormat(charset_name), file_path)

    def read_file(self, file_format: Any, file_path: Any) -> DataStream:
        """The records of files as they are when the job starts; as ``FileSource(file_path, file_format)``.

        Args:
            file_format: "text", "csv", "parquet", "avro" or a ``FileFormat``.
            file_path: one or several; local or a URI.
        """
        from flinkish.connectors.files.file_source import FileSource

        source = FileSource(file_path, file_format)
        return self.from_source(source, WatermarkStrategy.no_watermarks(), "Custom File Source")

    def from_elements(self, *elements: Any) -> DataStream:
        return self.from_collection(elements)

    def add_source(
        self,
        source_func: "Union[SourceFunction, Any]",
        source_name: str = "Custom Source",
        type_info: Optional[TypeInformation] = None,
    ) -> DataStream:
        """Records of a SourceFunction (or of a callable of ``(ctx)``); parallelism 1 unless it is a
        ParallelSourceFunction."""
        from flinkish.connectors.function_source import FunctionSource
        from flinkish.connectors.spi import Source

        if isinstance(source_func, Source):
            return self.from_source(source_func, WatermarkStrategy.no_watermarks(), source_name, type_info)
        source: FunctionSource = FunctionSource(source_func, type_info=check_type(type_info, "the source"))
        return self.from_source(source, WatermarkStrategy.no_watermarks(), source_name, type_info)

    def from_dataframe(
        self,
        df: Any,
        watermark_strategy: Optional[WatermarkStrategy] = None,
        source_name: str = "DataFrame",
        type_info: Optional[TypeInformation] = None,
        *,
        timestamp_column: Optional[str] = None,
        staging_dir: Optional[str] = None,
    ) -> DataStream:
        """The rows of a bounded Spark DataFrame: columns where operators take columns, else Rows.

        Args:
            timestamp_column: the column that gives the event times.
            staging_dir: a folder that driver and executors share, where they are not one machine.
        """
        if not hasattr(df, "sparkSession") or isinstance(df, type):
            raise InvalidJobError(
                f"from_dataframe() cannot use {reprlib.repr(df)}",
                why=f"it is of type {type(df).__name__}, not a DataFrame of Spark",
                do="give a list to from_collection(), a DataFrame of pandas to spark.createDataFrame(df) first",
            )
        if timestamp_column is not None:
            check_argument(timestamp_column, str, "from_dataframe()", "timestamp_column")
        from spark_plugin.dataframe import dataframe_source

        source = dataframe_source(df, timestamp_column, staging_dir)
        strategy = watermark_strategy or WatermarkStrategy.no_watermarks()
        return self.from_source(source, strategy, source_name, type_info)

    def socket_text_stream(
        self, host: str, port: int, delimiter: str = "\n", max_retries: int = 0
    ) -> DataStream:
        """Lines of text from a TCP server.

        ``max_retries``: how often to connect again after the connection was lost; -1: for ever."""
        from flinkish.connectors.socket_text import SocketTextSource

        source = SocketTextSource(host, port, delimiter, max_retries)
        return self.from_source(source, WatermarkStrategy.no_watermarks(), "Socket Stream")

    # ---- running --------------------------------------------------------------------------------

    def add_operator(self, transformation: Transformation) -> None:
        """Make ``transformation``, and what it reads from, part of the next job."""
        self._transformations.append(transformation)
        if isinstance(transformation, SinkTransformation):
            self._sinks_to_run.add()

    def add_cache(self, stream: "CachedDataStream") -> "CachedDataStream":
        """Keep the records of ``stream`` when a job computes them."""
        self._caches.append(stream)
        return stream

    def before_job(self, begin: "Callable[[JobClient], None]") -> None:
        """Call ``begin`` with the next job, when it has been submitted."""
        self._before_job.append(begin)

    def get_stream_graph(
        self, job_name: Optional[str] = None, clear_transformations: bool = False
    ) -> "StreamGraph":
        """The program so far as a graph.

        Raises:
            InvalidJobError: it cannot work."""
        from flinkish.graph.stream_graph_generator import StreamGraphGenerator

        if job_name is not None:
            check_argument(job_name, str, "execute()", "job_name")
        if not self._transformations:
            raise InvalidJobError(
                "there is nothing to run",
                why="the program has no operators or sinks, or they ran with an earlier execute()",
                do="add for example stream.print() or stream.sink_to(...) before execute()",
            )
        graph = StreamGraphGenerator(
            self._transformations, self._configuration.to_dict(), job_name
        ).generate()
        if clear_transformations:
            self.close()
        return graph

    def execute(self, job_name: Optional[str] = None) -> "JobExecutionResult":
        """Run the program and wait for its end.

        Ctrl-C cancels the job.

        Raises:
            UserFunctionError: user code raised; shows its traceback.
            FlinkishError: any other reason."""
        client = self.execute_async(job_name)
        try:
            result = client.wait()
        except KeyboardInterrupt:
            self._cancel_interrupted(client)
            raise
        except FlinkishError as error:
            for listener in self._job_listeners:
                listener.on_job_executed(None, error)
            raise
        for listener in self._job_listeners:
            listener.on_job_executed(result, None)
        return result

    @staticmethod
    def _cancel_interrupted(client: "JobClient") -> None:
        try:
            client.cancel().result(_INTERRUPT_WAIT_MS)
        except Exception as error:  # the interrupt is what the caller must see
            warnings.warn(f"the job may still run after Ctrl-C: {error}", stacklevel=3)

    def execute_async(self, job_name: Optional[str] = None) -> "JobClient":
        """Start the program and return at once."""
        try:
            client = self._submit(job_name)
        except Exception as error:
            for listener in self._job_listeners:
                listener.on_job_submitted(None, error)
            raise
        for listener in self._job_listeners:
            listener.on_job_submitted(client, None)
        return client

    def _submit(self, job_name: Optional[str]) -> "JobClient":
        check_in_driver("start a job")
        if self._caches:
            from flinkish.datastream.cached_data_stream import fill_caches

            fill_caches(self, self._caches, self._transformations)
        begins = self._before_job
        for warning in check_configuration(self._configuration):
            warn_user(warning)
        graph = self.get_stream_graph(job_name, clear_transformations=True)
        has_interval = options.CHECKPOINTING_INTERVAL.text_in(graph.configuration) is not None
        if self._checkpoint_config.is_checkpointing_enabled() and not has_interval:
            warn_user("a batch job takes no checkpoints, so the interval of checkpoints has no effect")
        from flinkish.shell.executor import execute_async

        client = execute_async(graph, self._configuration.copy(), spark=self._spark, cluster=self._cluster)
        for begin in begins:
            begin(client)
        return client

    def register_job_listener(self, job_listener: JobListener) -> None:
        """Tell ``job_listener`` of the jobs that this environment starts from now on."""
        self._job_listeners.append(
            check_argument(job_listener, JobListener, "register_job_listener()", "job_listener")
        )

    def clear_job_listeners(self) -> None:
        self._job_listeners.clear()

    def get_job_listeners(self) -> list[JobListener]:
        return list(self._job_listeners)

    def get_execution_plan(self) -> str:
        """The program so far as JSON, in Flink's form."""
        from flinkish.graph.plan import execution_plan_json

        return execution_plan_json(self.get_stream_graph())

    def get_mermaid(self) -> str:
        """The program so far as a Mermaid flow chart."""
        from flinkish.graph.plan import mermaid

        return mermaid(self.get_stream_graph())

    def close(self) -> None:
        """Forget the program; jobs that run go on."""
        self._transformations = []
        self._before_job = []
        self._sinks_to_run.clear()

    # ---- notebooks ------------------------------------------------------------------------------

    def __repr__(self) -> str:
        count = len(self._transformations)
        return f"StreamExecutionEnvironment(parallelism={self.get_parallelism()}, operators={count})"

    def _repr_html_(self) -> Optional[str]:
        if not self._transformations:
            return None
        from flinkish.graph.plan import html

        return html(self.get_stream_graph())

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, str]:
        bundle = {"text/plain": repr(self)}
        if self._transformations:
            bundle["text/html"] = self._repr_html_() or ""
            bundle["text/vnd.mermaid"] = self.get_mermaid()
        return bundle


def _no_jvm(method: str) -> NoReturn:
    raise InvalidJobError(
        f"{method}() is not available",
        why="slots are Python processes, so there is no class path to add to",
        do="write the connector in Python (flinkish.connectors.spi); jars that Spark needs go to "
        "spark.jars.packages",
    )


def _no_shipping(method: str, instead: str) -> NoReturn:
    raise InvalidJobError(
        f"{method}() is not available", why="files are not shipped to slots in this form", do=instead
    )
