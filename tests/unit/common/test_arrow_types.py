import pyarrow as pa
import pytest

from flinkish.common import Types
from flinkish.common.arrow_types import arrow_schema_of, arrow_type_of, row_type_of_schema, type_of_arrow
from flinkish.errors import InvalidJobError

ROW = Types.ROW_NAMED(
    ["s", "b", "i8", "i16", "i32", "i64", "f", "d", "dec", "day", "time", "at", "raw", "list", "map", "row"],
    [
        Types.STRING(),
        Types.BOOLEAN(),
        Types.BYTE(),
        Types.SHORT(),
        Types.INT(),
        Types.LONG(),
        Types.FLOAT(),
        Types.DOUBLE(),
        Types.BIG_DEC(),
        Types.SQL_DATE(),
        Types.SQL_TIME(),
        Types.SQL_TIMESTAMP(),
        Types.PRIMITIVE_ARRAY(Types.BYTE()),
        Types.LIST(Types.LONG()),
        Types.MAP(Types.STRING(), Types.DOUBLE()),
        Types.ROW_NAMED(["x"], [Types.INT()]),
    ],
)


def test_a_row_type_goes_to_arrow_and_back():
    assert row_type_of_schema(arrow_schema_of(ROW)) == ROW


def test_the_fields_of_a_tuple_become_f0_f1():
    schema = arrow_schema_of(Types.TUPLE([Types.LONG(), Types.STRING()]))
    assert schema == pa.schema([("f0", pa.int64()), ("f1", pa.string())])


def test_an_unsigned_column_takes_the_next_larger_signed_type():
    assert type_of_arrow(pa.uint32()) == Types.LONG()
    assert type_of_arrow(pa.uint64()) == Types.BIG_INT()


def test_a_type_that_arrow_has_no_column_for_is_refused_by_name():
    with pytest.raises(InvalidJobError, match="object"):
        arrow_type_of(Types.PICKLED_BYTE_ARRAY())
