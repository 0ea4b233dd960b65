import datetime as dt
import decimal

import pytest

from flinkish.common import Instant, Row, RowKind, Types
from flinkish.common.flink_text import flink_text, printed_text


@pytest.mark.parametrize(
    "type_info, value, text",
    [
        (None, ("a", None), "('a', None)"),
        (Types.STRING(), "a b", "a b"),
        (Types.STRING(), None, "null"),
        (Types.BOOLEAN(), True, "true"),
        (Types.DOUBLE(), 100, "100.0"),
        (Types.DOUBLE(), 123456789012.5, "1.234567890125E11"),
        (Types.DOUBLE(), -0.0001234, "-1.234E-4"),
        (Types.DOUBLE(), 1e22, "1.0E22"),
        (Types.FLOAT(), 110.1, "110.1"),
        (Types.FLOAT(), 110.0999984741211, "110.1"),
        (Types.FLOAT(), 1 / 3, "0.33333334"),
        (Types.BIG_DEC(), decimal.Decimal("1.50"), "1.50"),
        (Types.SQL_DATE(), dt.date(2021, 1, 9), "2021-01-09"),
        (Types.SQL_TIME(), dt.time(12, 0, 0, 123_000), "12:00:00"),
        (Types.SQL_TIMESTAMP(), dt.datetime(2021, 1, 9, 12, 0, 0, 11_000), "2021-01-09 12:00:00.011"),
        (Types.SQL_TIMESTAMP(), dt.datetime(2021, 1, 9, 12), "2021-01-09 12:00:00.0"),
        (Types.SQL_TIMESTAMP(), dt.datetime(33, 1, 9, 12), "0033-01-09 12:00:00.0"),
        (Types.SQL_TIMESTAMP(), dt.datetime.fromisoformat("2021-01-09 12:00:00+02:00"), "2021-01-09 10:00:00.0"),
        (Types.INSTANT(), Instant(1, 5_000_000), "1970-01-01T00:00:01.005Z"),
        (Types.FLOAT(), 2.802596928649634e-45, "2.8E-45"),
        (Types.LIST(Types.BOOLEAN()), [True, None], "[true, null]"),
        (Types.MAP(Types.STRING(), Types.INT()), {"a": 1, "b": None}, "{a=1, b=null}"),
        (Types.TUPLE([Types.STRING(), Types.LIST(Types.INT())]), ("a", [1, 2]), "(a,[1, 2])"),
        (Types.ROW([Types.STRING(), Types.INT()]), Row("a", None), "+I[a, null]"),
        (Types.ROW([Types.INT()]), Row.of_kind(RowKind.DELETE, 1), "-D[1]"),
        (Types.TUPLE([Types.PICKLED_BYTE_ARRAY()]), ([1, "a"],), "([1, 'a'])"),
    ],
)
def test_a_record_of_a_declared_type_has_flinks_text(type_info, value, text):
    assert flink_text(type_info)(value) == text


def test_a_row_is_printed_as_pyflink_does_it():
    text = printed_text(Types.ROW([Types.STRING(), Types.BOOLEAN()]))
    assert text(Row("a", True)) == "+I[a,True]" and text(("a", None)) == "+I[a,None]"
    assert printed_text(Types.TUPLE([Types.BOOLEAN()]))((True,)) == "(true)"
