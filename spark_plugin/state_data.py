"""State of savepoints as DataFrames, and savepoints from DataFrames.

With pyspark 4 as a data source, registered by one line (a `SessionCluster` does it for its session)::

    from spark_plugin.state_data import register_state_sources
    register_state_sources(spark)

    spark.read.format("flinkish-state-metadata").load(savepoint)      # which states there are
    spark.read.format("flinkish-state").load(savepoint)               # the rows of all, keys and values as text
    (spark.read.format("flinkish-state")
        .option("operatorUid", "counts").option("stateName", "count")
        .load(savepoint))                                             # of one, typed

With any pyspark from 3.5 on as functions: `read_state`, `read_state_metadata`; and `write_savepoint`.

Executors read and write the files themselves, so they must reach the folder.  Columns and types:
`flinkish.state_processor.savepoint_reader`.
"""

from __future__ import annotations

import pickle
from typing import Any, Iterator, Mapping, Optional

import cloudpickle
import pyarrow as pa
import pyarrow.compute as pc

from flinkish.common.arguments import check_argument
from flinkish.common.file_system import absolute_uri
from flinkish.errors import InvalidJobError, UnsupportedSparkError
from flinkish.graph.chain_pickling import install_main_classes, main_module_classes, unpickle_main_classes
from flinkish.state_processor.columns import is_made_text, made_text
from flinkish.state_processor.savepoint_reader import (
    COLUMNS,
    PART_BYTES,
    SavepointReader,
    StateInfo,
    read_part,
    storage_settings,
)
from flinkish.state_processor.savepoint_writer import (
    KeyedStateBootstrap,
    OperatorIdentifier,
    SavepointWriter,
    SubtaskFiles,
    check_bootstraps,
    check_columns,
    check_free,
    check_selector,
    key_type_of,
    warn_of_untyped,
)

STATE_FORMAT = "flinkish-state"
METADATA_FORMAT = "flinkish-state-metadata"

#: Options of the data source, as users write them, and what they are here.
_OPTIONS = {"operatorUid": "operator_uid", "operatorName": "operator_name", "stateName": "state_name"}
_PART_BYTES = "partBytes"
_SUBTASK = "__flinkish_subtask"
#: Metadata of a DataFrame's column of which `is_made_text` is true.
_MADE_TEXT = "flinkish.text"


# ---- functions ----------------------------------------------------------------------------------


def read_state(
    spark: Any,
    path: Any,
    operator_uid: Optional[str] = None,
    operator_name: Optional[str] = None,
    state_name: Optional[str] = None,
    configuration: Optional[Mapping[str, Any]] = None,
    part_bytes: int = PART_BYTES,
) -> Any:
    """The rows of the states that fit all that is given, as a DataFrame; one task reads one part.

    Args:
        spark: a SparkSession, classic or Connect.
        configuration: with Flink's ``s3.*`` keys; default: ``flinkish-conf.yaml``.
        part_bytes: what one task reads at most, unless one key group has more.
    Raises:
        UserError: no state fits; lists what there is.  It is an incremental checkpoint.
        CorruptSnapshotError: there is no whole savepoint.
    """
    reader = SavepointReader.read(path, configuration)
    infos = reader.select(operator_uid, operator_name, state_name)
    schema = _for_spark(reader.schema(infos))
    parts = [pickle.dumps(part) for part in reader.plan(infos, _part_bytes(str(part_bytes)))]
    if not parts:
        return spark.createDataFrame([], _spark_schema(schema))

    def read(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for index in batch.column(0).to_pylist():
                yield from read_part(pickle.loads(parts[index]), schema)

    return spark.range(0, len(parts), 1, len(parts)).mapInArrow(read, _spark_schema(schema))


def read_state_metadata(spark: Any, path: Any, configuration: Optional[Mapping[str, Any]] = None) -> Any:
    """Which states there are, as a DataFrame: a row for each."""
    table = SavepointReader.read(path, configuration).states_table()
    rows = [tuple(row[name] for name in table.column_names) for row in table.to_pylist()]
    return spark.createDataFrame(rows, _spark_schema(table.schema))


def write_savepoint(
    dataframe: Any,
    path: Any,
    operator_uid: str,
    *bootstraps: KeyedStateBootstrap,
    key: Any,
    key_type: Any = None,
    max_parallelism: int = 128,
    parallelism: Optional[int] = None,
    base: Any = None,
    configuration: Optional[Mapping[str, Any]] = None,
) -> str:
    """Build a savepoint whose operator ``operator_uid`` has the keyed state that the rows give; its folder.

    Args:
        path: a folder that has no ``_metadata`` yet.
        bootstraps: which columns become which state.
        key: column, or columns (a tuple is the key) of what the job gives to ``key_by``.
        key_type: as the job gives it to ``key_by``.  Where the job has none, and its keys are objects of a frozen
            dataclass, members of an Enum or tuples: the class, ``tuple``, or another annotation
            (`flinkish.state_processor.object_types`).
        max_parallelism: of the job's operator; it cannot be changed later.
        parallelism: tasks that write, each a file; each holds its part in memory.  Default: that of Spark's shuffles.
        base: a savepoint whose other operators are taken along, copied.
        configuration: with Flink's ``s3.*`` keys; default: ``flinkish-conf.yaml``.
    Raises:
        InvalidJobError: there is no such column, or a savepoint already.
        pyspark.errors.PythonException: a key has two values, or a value is not of its type; it has the UserError's text.
    """
    if not hasattr(dataframe, "mapInArrow"):
        raise InvalidJobError(
            f"write_savepoint() cannot use {dataframe!r:.100} as dataframe",
            why=f"it is of type {type(dataframe).__name__}",
            do="give a DataFrame; without Spark there is flinkish.state_processor.SavepointWriter",
        )
    if parallelism is not None and check_argument(parallelism, int, "write_savepoint()", "parallelism") < 1:
        raise InvalidJobError(f"write_savepoint() cannot use {parallelism} as parallelism", do="give 1 or more")
    check_selector(key, "write_savepoint()", "key")
    key_type = key_type_of(key_type, "write_savepoint()")
    check_bootstraps(bootstraps, "write_savepoint()")
    selectors = [part for b in bootstraps for part in (b.value, b.map_key) if part is not None]
    check_columns(dataframe.columns, key, *selectors)
    uri, settings = absolute_uri(path), storage_settings(configuration)
    check_free(uri, settings)
    operator = OperatorIdentifier.for_uid(operator_uid)
    writer = (
        SavepointWriter.new_savepoint(max_parallelism, configuration)
        if base is None
        else SavepointWriter.from_existing_savepoint(base, configuration).remove_operator(operator)
    )
    subtasks = parallelism or int(dataframe.sparkSession.conf.get("spark.sql.shuffle.partitions"))
    subtasks = min(subtasks, max_parallelism)
    files = SubtaskFiles(
        uri, settings, operator_uid, bootstraps, key, key_type, max_parallelism, subtasks
    )
    schema = dataframe.schema
    columns = {field.name: _arrow_field(field) for field in schema.fields}
    warn_of_untyped(operator_uid, columns, key, key_type, bootstraps)
    travelling = main_module_classes(), cloudpickle.dumps(files)

    def assign(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        files = _arrived(*travelling)
        for batch in batches:
            column = pa.array(files.subtasks_of(batch), pa.int32())
            names = [*batch.schema.names, _SUBTASK]
            yield pa.RecordBatch.from_arrays([*batch.columns, column], names)

    def write(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        files = _arrived(*travelling)
        by_subtask: dict[int, list[pa.RecordBatch]] = {}
        for batch in batches:
            subtask_column = batch.column(batch.schema.names.index(_SUBTASK))
            for subtask in subtask_column.unique().to_pylist():
                own = batch.filter(pc.equal(subtask_column, subtask))
                by_subtask.setdefault(subtask, []).append(own)
        written = [
            pickle.dumps((subtask, files.write(subtask, rows))) for subtask, rows in sorted(by_subtask.items())
        ]
        yield pa.RecordBatch.from_arrays([pa.array(written, pa.binary())], ["handle"])

    from pyspark.sql.types import IntegerType, StructType

    assigned = dataframe.mapInArrow(assign, StructType([*schema.fields]).add(_SUBTASK, IntegerType()))
    handles = assigned.repartition(subtasks, _SUBTASK).mapInArrow(write, "handle binary").collect()
    parts = dict(pickle.loads(row.handle) for row in handles) or {0: files.write(0, [])}  # its states, without entries
    writer.with_keyed_files(operator, parts, max_parallelism, subtasks)
    return writer.write(path)


def _arrived(main_classes: bytes, files: bytes) -> SubtaskFiles:
    """In a task: with the classes of the driver's ``__main__``, by whose names objects are saved."""
    install_main_classes(unpickle_main_classes(main_classes, "of Spark")[0])
    return pickle.loads(files)


def _arrow_field(field: Any) -> pa.Field:
    try:
        type_ = _arrow_type(field.dataType)
    except InvalidJobError:
        type_ = pa.null()
    return made_text(field.name) if _MADE_TEXT in field.metadata else pa.field(field.name, type_)


def _for_spark(schema: pa.Schema) -> pa.Schema:
    """With Spark's types, as times in microseconds; those that it does not have become text."""
    from pyspark.errors import PySparkTypeError

    fields = []
    for field in schema:
        try:
            fields.append(field.with_type(_arrow_type(_spark_type(field.type))))
        except (PySparkTypeError, InvalidJobError):
            fields.append(made_text(field.name))
    return pa.schema(fields)


def _spark_type(type_: pa.DataType) -> Any:
    from pyspark.sql.pandas.types import from_arrow_type

    return from_arrow_type(type_, prefer_timestamp_ntz=True)


def _spark_schema(schema: pa.Schema) -> Any:
    from pyspark.sql.pandas.types import from_arrow_schema

    found = from_arrow_schema(schema, prefer_timestamp_ntz=True)
    for column, field in zip(found.fields, schema):
        column.metadata = {_MADE_TEXT: True} if is_made_text(field) else {}
    return found


_ARROW_TYPES = {
    "string": pa.string(), "binary": pa.binary(), "boolean": pa.bool_(), "date": pa.date32(),
    "byte": pa.int8(), "short": pa.int16(), "integer": pa.int32(), "long": pa.int64(),
    "float": pa.float32(), "double": pa.float64(),
    "timestamp": pa.timestamp("us", "UTC"), "timestamp_ntz": pa.timestamp("us"),
}  # fmt: skip


def _arrow_type(type_: Any) -> pa.DataType:
    """pyspark's own function wants other arguments in each of its versions."""
    name = type_.typeName()
    if name in _ARROW_TYPES:
        return _ARROW_TYPES[name]
    if name == "decimal":
        return pa.decimal128(type_.precision, type_.scale)
    if name == "array":
        return pa.list_(_arrow_type(type_.elementType))
    if name == "map":
        return pa.map_(_arrow_type(type_.keyType), _arrow_type(type_.valueType))
    if name == "struct":
        return pa.struct([(field.name, _arrow_type(field.dataType)) for field in type_.fields])
    raise InvalidJobError(f"could not read state as {type_.simpleString()}", do="ask for a string")


def _arrow_types(schema: Any) -> pa.Schema:
    return pa.schema([(field.name, _arrow_type(field.dataType)) for field in schema.fields])


def _part_bytes(text: Optional[str]) -> int:
    try:
        value = PART_BYTES if text is None else int(text)
    except ValueError:
        value = 0
    if value < 1:
        raise InvalidJobError(f"could not use {text!r} as {_PART_BYTES}", do="give a number of bytes, 1 or more")
    return value


def _arrow_schema(schema: Any) -> pa.Schema:
    unknown = [name for name in schema.names if name not in COLUMNS]
    if unknown:
        raise InvalidJobError(
            f"could not read the column {unknown[0]!r} of state", why=f"there are {', '.join(COLUMNS)}"
        )
    return _arrow_types(schema)


# ---- data sources -------------------------------------------------------------------------------


def register_state_sources(spark: Any) -> None:
    """Make ``flinkish-state`` and ``flinkish-state-metadata`` known to a session; again does no harm.

    Raises:
        UnsupportedSparkError: pyspark is older than 4.
    """
    for source in _data_sources():
        spark.dataSource.register(source)


def register_where_possible(spark: Any) -> None:
    """For sessions that flinkish makes or is given.  A SparkContext, and a session before pyspark 4, has none."""
    if hasattr(type(spark), "dataSource"):
        register_state_sources(spark)


def _data_sources() -> list[type]:
    try:
        from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
    except ImportError as error:
        import pyspark

        raise UnsupportedSparkError(
            f"could not register {STATE_FORMAT} as a data source",
            where=f"pyspark {pyspark.__version__}",
            why="data sources in Python came with pyspark 4.0",
            do="use spark_plugin.state_data.read_state(spark, path, ...), which gives the same DataFrame",
        ) from error

    class _Reader(DataSourceReader):
        def __init__(self, reader: SavepointReader, infos: list[StateInfo], schema: pa.Schema, part_bytes: int):
            self._parts = [pickle.dumps(part) for part in reader.plan(infos, part_bytes)]
            self._schema = schema

        def partitions(self) -> list[Any]:
            return [InputPartition(part) for part in self._parts] or [InputPartition(None)]

        def read(self, partition: Any) -> Iterator[pa.RecordBatch]:
            if partition.value is not None:
                yield from read_part(pickle.loads(partition.value), self._schema)

    class _Source(DataSource):
        own_options: frozenset[str] = frozenset()

        def _open(self) -> SavepointReader:
            options = dict(self.options)
            path = options.pop("path", None)
            if path is None:
                several = "paths" in options
                raise InvalidJobError(
                    "could not read state of several savepoints at once" if several else "could not read state without a path",
                    do="load one savepoint: load(savepoint)",
                )
            known = {"path", *(option.lower() for option in self.own_options)}
            for option in options:
                if option.lower() not in known and not option.startswith("s3."):
                    raise InvalidJobError(
                        f"could not use the option {option!r} of {self.name()}",
                        why="there is no such option",
                        do=f"there are {', '.join(sorted(self.own_options)) or 'none'}, and Flink's s3.* keys",
                    )
            settings = {key: value for key, value in options.items() if key.startswith("s3.")}
            return SavepointReader.read(path, settings or None)

    class StateSource(_Source):
        """Rows of states.  Options: operatorUid, operatorName, stateName, partBytes, and Flink's ``s3.*`` keys.  A
        schema of the user's picks columns and types."""

        @classmethod
        def name(cls) -> str:
            return STATE_FORMAT

        own_options = frozenset((*_OPTIONS, _PART_BYTES))

        def _chosen(self) -> tuple[SavepointReader, list[StateInfo]]:
            reader = self._open()
            chosen = {argument: self.options.get(option) for option, argument in _OPTIONS.items()}
            return reader, reader.select(**chosen)

        def schema(self) -> Any:
            reader, infos = self._chosen()
            return _spark_schema(_for_spark(reader.schema(infos)))

        def reader(self, schema: Any) -> Any:
            reader, infos = self._chosen()
            return _Reader(reader, infos, _arrow_schema(schema), _part_bytes(self.options.get(_PART_BYTES)))

        def writer(self, schema: Any, overwrite: bool) -> Any:
            raise InvalidJobError(
                f"could not write with the format {STATE_FORMAT}",
                why="which column becomes which state of which operator is more than a format's options say",
                do="call spark_plugin.state_data.write_savepoint(dataframe, path, operator_uid, ...)",
            )

    class _TableReader(DataSourceReader):
        def __init__(self, table: pa.Table):
            self._table = table

        def read(self, partition: Any) -> Iterator[pa.RecordBatch]:
            yield from self._table.to_batches()

    class MetadataSource(_Source):
        """Which states there are."""

        @classmethod
        def name(cls) -> str:
            return METADATA_FORMAT

        def schema(self) -> Any:
            return _spark_schema(self._open().states_table().schema)

        def reader(self, schema: Any) -> Any:
            table = self._open().states_table()
            unknown = [name for name in schema.names if name not in table.column_names]
            if unknown:
                raise InvalidJobError(
                    f"could not read the column {unknown[0]!r} of states", why=f"there are {', '.join(table.column_names)}"
                )
            return _TableReader(table.select(schema.names).cast(_arrow_types(schema)))

    return [StateSource, MetadataSource]
