"""CSV lines and JSON messages as Rows and back.  The expected texts are those that Flink's formats give."""

import datetime as dt
import decimal
import json
import math

import cloudpickle
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from flinkish.common import Row, Types
from flinkish.datastream.formats.csv import (
    CsvRowDeserializationSchema,
    CsvRowSerializationSchema,
    CsvSchema,
)
from flinkish.datastream.formats.json import JsonRowDeserializationSchema, JsonRowSerializationSchema
from flinkish.errors import InvalidJobError, UserError


def csv_schemas(row_type, **settings):
    """A serialization and a deserialization schema with the same settings."""
    writer, reader = CsvRowSerializationSchema.Builder(row_type), CsvRowDeserializationSchema.Builder(row_type)
    for name, value in settings.items():
        for builder in (writer, reader):
            getattr(builder, name)(value)
    return travelled(writer.build()), travelled(reader.build())


def travelled(schema):
    """As it comes to a slot."""
    return cloudpickle.loads(cloudpickle.dumps(schema))


@pytest.mark.parametrize(
    "kind, text, value",
    [
        (Types.STRING(), "'123''4**'", "123'4*"),
        (Types.STRING(), "'a;b''c'", "a;b'c"),
        (Types.STRING(), "null", "null"),
        (Types.STRING(), "'12'", "12"),
        (Types.STRING(), "'a longer text than 24 characters'", "a longer text than 24 characters"),
        (Types.INT(), "12", 12),
        (Types.DOUBLE(), "1.0E7", 1e7),
        (Types.FLOAT(), "3.0E38", 3.0000000054977558e38),
        (Types.BOOLEAN(), "true", True),
        (Types.BIG_DEC(), "1.50", decimal.Decimal("1.50")),
        (Types.SQL_DATE(), "'2021-01-09'", dt.date(2021, 1, 9)),
        (Types.SQL_TIME(), "'12:00:01'", dt.time(12, 0, 1)),
        (Types.SQL_TIMESTAMP(), "'2021-01-09 12:00:00.011'", dt.datetime(2021, 1, 9, 12, 0, 0, 11_000)),
        (Types.PRIMITIVE_ARRAY(Types.BYTE()), "aGk=", b"hi"),
        (Types.BASIC_ARRAY(Types.INT()), "'1:2:3'", [1, 2, 3]),
        (Types.ROW([Types.STRING(), Types.STRING()]), "'1:hello world'", Row(f0="1", f1="hello world")),
    ],
    ids=str,
)
def test_a_csv_field_has_flinks_text_and_comes_back(kind, text, value):
    row_type = Types.ROW([Types.STRING(), kind, Types.STRING()])
    writer, reader = csv_schemas(
        row_type,
        set_escape_character="*",
        set_quote_character="'",
        set_array_element_delimiter=":",
        set_field_delimiter=";",
    )
    message = writer.serialize(Row("BEGIN", value, "END"))
    assert message == f"BEGIN;{text};END\n".encode()
    row = reader.deserialize(message)
    assert row == Row(f0="BEGIN", f1=value, f2="END") and reader.get_produced_type() == row_type


@settings(max_examples=40)
@given(st.lists(st.text(st.characters(exclude_categories=("Cs",))), min_size=2, max_size=4))
@example(["a\u2028b", "c\x85d", "\r", "e\r\nf\n"])
def test_any_texts_come_back_from_csv(texts):
    texts = [text.replace("\0", "") for text in texts]
    writer, reader = csv_schemas(Types.ROW([Types.STRING()] * len(texts)))
    assert list(reader.deserialize(writer.serialize(tuple(texts)))) == texts


def test_csv_nulls_comments_and_line_ends():
    pair = Types.ROW_NAMED(["a", "b"], [Types.INT(), Types.STRING()])
    writer, reader = csv_schemas(pair, set_null_literal="-")
    assert writer.serialize({"a": None}) == b"-,-\n"
    assert reader.deserialize(b"-,-") == Row(a=None, b=None)
    assert CsvRowSerializationSchema.Builder(pair).build().serialize((None, None)) == b",\n"
    bare = CsvRowSerializationSchema.Builder(pair).set_line_delimiter("").disable_quote_character().build()
    assert bare.serialize((1, 'a,"b"')) == b'1,a,"b"'
    commented = CsvRowDeserializationSchema.Builder(pair).set_allow_comments(True).build()
    assert commented.deserialize(b"# nothing\n 1 ,x") == Row(a=1, b="x")
    assert commented.deserialize(b"") is None


def test_csv_that_cannot_be_read_fails_with_the_column_or_is_null():
    pair = Types.ROW_NAMED(["a", "b"], [Types.SHORT(), Types.STRING()])
    reader = CsvRowDeserializationSchema.Builder(pair).build()
    with pytest.raises(UserError, match='column "a"'):
        reader.deserialize(b"x,y")
    with pytest.raises(UserError, match="40000 does not fit into 16 bits"):
        reader.deserialize(b"40000,y")
    with pytest.raises(UserError, match="has 3 fields, the declared row 2"):
        reader.deserialize(b"1,2,3")
    lenient = CsvRowDeserializationSchema.Builder(pair).set_ignore_parse_errors(True).build()
    assert lenient.deserialize(b"x,y") == Row(a=None, b="y")
    assert lenient.deserialize(b"1") == Row(a=1, b=None)
    assert lenient.deserialize(b"\xff") is None
    with pytest.raises(UserError, match="could not write a record as CSV"):
        CsvRowSerializationSchema.Builder(pair).build().serialize(("x", "y"))


@pytest.mark.parametrize(
    "kind, text",
    [
        (Types.INT(), "1_000"),
        (Types.DOUBLE(), "1_0.5"),
        (Types.DOUBLE(), "inf"),
        (Types.BIG_DEC(), "NaN"),
        (Types.BIG_DEC(), "1_0"),
        (Types.SQL_TIMESTAMP(), "2021-01-09 12:00:00+01:00"),
        (Types.SQL_TIME(), "12:00:00+01:00"),
    ],
)
def test_what_only_python_reads_as_a_value_is_refused_as_in_java(kind, text):
    _, csv_reader = csv_schemas(Types.ROW([kind]))
    with pytest.raises(UserError, match="could not read a CSV row"):
        csv_reader.deserialize(text.encode())
    with pytest.raises(UserError, match="could not read a message as JSON"):
        json_reader(Types.ROW_NAMED(["a"], [kind])).build().deserialize(json.dumps({"a": text}).encode())


def test_a_csv_field_may_be_long_and_no_message_is_an_error_or_dropped():
    pair = Types.ROW_NAMED(["a", "b"], [Types.STRING(), Types.INT()])
    _, reader = csv_schemas(pair)
    assert reader.deserialize(b"x" * 200_000 + b",1") == Row(a="x" * 200_000, b=1)
    with pytest.raises(UserError, match="could not read a CSV row"):
        reader.deserialize(None)
    assert CsvRowDeserializationSchema.Builder(pair).set_ignore_parse_errors(True).build().deserialize(None) is None


def test_the_csv_builders_refuse_what_is_no_csv():
    builder = CsvRowDeserializationSchema.Builder(Types.ROW([Types.INT()]))
    for refused in (
        lambda: builder.set_field_delimiter("\n"),
        lambda: builder.set_field_delimiter('"'),
        lambda: builder.set_null_literal(5),
        lambda: builder.set_array_element_delimiter(5),
    ):
        with pytest.raises(InvalidJobError, match="CSV"):
            refused()
    with pytest.raises(InvalidJobError, match="one character"):
        CsvRowSerializationSchema.Builder(Types.ROW([Types.INT()])).set_field_delimiter(";;")
    with pytest.raises(InvalidJobError, match="line separator"):
        CsvRowSerializationSchema.Builder(Types.ROW([Types.INT()])).set_line_delimiter("|")
    with pytest.raises(InvalidJobError, match="type_info"):
        CsvRowDeserializationSchema.Builder(Types.INT())
    with pytest.raises(InvalidJobError, match="as CSV"):
        CsvRowSerializationSchema.Builder(Types.ROW([Types.MAP(Types.INT(), Types.INT())])).build()
    builder = CsvSchema.builder().add_string_column("a")
    with pytest.raises(InvalidJobError, match="one of that name"):
        builder.add_boolean_column("a")
    with pytest.raises(InvalidJobError, match="no type of numbers"):
        builder.add_number_column("b", Types.STRING())
    with pytest.raises(InvalidJobError, match="no array column"):
        builder.remove_array_element_separator(0)
    with pytest.raises(InvalidJobError, match="no columns"):
        builder.clear_columns().build()
    schema = builder.add_array_column("x", ":", Types.INT()).add_number_column("y").build()
    copied = CsvSchema.builder().add_columns_from(schema)
    assert (len(schema), schema.size(), len(copied), copied.size()) == (2, 2, 2, 2)
    assert str(copied.build()) == "CsvSchema(x: list<int>, y: long)"


# ---- JSON ---------------------------------------------------------------------------------------

EVERYTHING = Types.ROW_NAMED(
    ["n", "f", "d", "dec", "s", "flag", "day", "time", "at", "raw", "list", "map", "row"],
    [
        Types.LONG(),
        Types.FLOAT(),
        Types.DOUBLE(),
        Types.BIG_DEC(),
        Types.STRING(),
        Types.BOOLEAN(),
        Types.SQL_DATE(),
        Types.SQL_TIME(),
        Types.SQL_TIMESTAMP(),
        Types.PRIMITIVE_ARRAY(Types.BYTE()),
        Types.OBJECT_ARRAY(Types.INT()),
        Types.MAP(Types.STRING(), Types.INT()),
        Types.ROW_NAMED(["x"], [Types.INT()]),
    ],
)
ROW = Row(
    n=1, f=0.10000000149011612, d=1e-7, dec=decimal.Decimal("1.50"), s='é"', flag=True, day=dt.date(2021, 1, 9),
    time=dt.time(12, 0, 1), at=dt.datetime(2021, 1, 9, 12, 0, 0, 11_000), raw=b"hi", list=[1, None], map={"a": 2},
    row=Row(x=3),
)  # fmt: skip
TEXT = (
    '{"n":1,"f":0.1,"d":1.0E-7,"dec":1.50,"s":"é\\"","flag":true,"day":"2021-01-09","time":"12:00:01Z",'
    '"at":"2021-01-09T12:00:00.011Z","raw":"aGk=","list":[1,null],"map":{"a":2},"row":{"x":3}}'
)


def json_reader(row_type):
    return JsonRowDeserializationSchema.builder().type_info(row_type)


def test_a_row_has_flinks_json_and_comes_back():
    writer = travelled(JsonRowSerializationSchema.builder().with_type_info(EVERYTHING).build())
    assert writer.serialize(ROW).decode() == TEXT
    assert travelled(json_reader(EVERYTHING).build()).deserialize(TEXT.encode()) == ROW
    assert json.loads(writer.serialize(tuple([None] * 13))) == dict.fromkeys(EVERYTHING.get_field_names())


@settings(max_examples=40)
@given(
    st.builds(
        dict,
        a=st.none() | st.integers(-(2**63), 2**63 - 1),
        b=st.none() | st.floats(allow_nan=False, allow_infinity=False),
        c=st.none() | st.text(st.characters(exclude_categories=("Cs",))),
        d=st.none() | st.dictionaries(st.text(max_size=3), st.lists(st.booleans(), max_size=2), max_size=2),
    )
)
def test_what_is_written_is_json_of_the_same_values(record):
    row_type = Types.ROW_NAMED(
        list("abcd"),
        [Types.LONG(), Types.DOUBLE(), Types.STRING(), Types.MAP(Types.STRING(), Types.LIST(Types.BOOLEAN()))],
    )
    message = JsonRowSerializationSchema.builder().with_type_info(row_type).build().serialize(record)
    assert json.loads(message) == record
    assert json_reader(row_type).build().deserialize(message).as_dict() == record


def test_json_values_of_other_kinds_are_read_as_jackson_does():
    kinds = {"a": Types.INT(), "b": Types.STRING(), "c": Types.BOOLEAN(), "d": Types.DOUBLE(), "e": Types.STRING()}
    reader = json_reader(Types.ROW_NAMED(list(kinds), list(kinds.values()))).build()
    row = reader.deserialize(b'{"a": 1.9, "b": 1.50, "c": " TRUE ", "d": " 2 ", "e": {"x": [1, 2.5]}}')
    assert row == Row(a=1, b="1.50", c=True, d=2.0, e='{"x":[1,2.5]}')
    assert math.isnan(reader.deserialize(b'{"d": "NaN"}').d)
    with pytest.raises(UserError, match="does not fit into 64 bits"):  # at once: it has a billion digits
        reader.deserialize(b'{"a": 1e999999999}')


def test_json_is_in_utc_and_has_only_values_of_the_declared_types():
    at = Types.ROW_NAMED(["at"], [Types.SQL_TIMESTAMP()])
    writer = JsonRowSerializationSchema.builder().with_type_info(at).build()
    assert writer.serialize((dt.datetime.fromisoformat("2021-01-09T01:00:00+02:00"),)) == b'{"at":"2021-01-08T23:00:00Z"}'
    assert writer.serialize((dt.datetime(33, 1, 9),)) == b'{"at":"0033-01-09T00:00:00Z"}'
    flags = Types.MAP(Types.BOOLEAN(), Types.INT())
    for kind, value in [(Types.STRING(), 5), (Types.BIG_DEC(), decimal.Decimal("NaN")), (flags, {None: 1})]:
        writer = JsonRowSerializationSchema.builder().with_type_info(Types.ROW([kind])).build()
        with pytest.raises(UserError, match="could not write a record as JSON"):
            writer.serialize((value,))
    assert JsonRowSerializationSchema.builder().with_type_info(Types.ROW([flags])).build().serialize(({True: 1},)) == (
        b'{"f0":{"true":1}}'
    )


def test_json_that_cannot_be_read_fails_is_null_or_is_dropped():
    kind = Types.ROW_NAMED(["a", "b"], [Types.INT(), Types.SQL_TIMESTAMP()])
    strict = json_reader(kind).fail_on_missing_field().build()
    with pytest.raises(UserError, match='no field "b"'):
        strict.deserialize(b'{"a": 1}')
    reader = json_reader(kind).build()
    assert reader.deserialize(b'{"a": 1, "z": 2}') == Row(a=1, b=None)
    deep = b'{"a": ' + 100_000 * b"["
    for message in (b"{", b"[1]", b'{"a": "x"}', b'{"a": NaN}', b'{"b": "2021-01-09T12:00:00+01:00"}', deep):
        with pytest.raises(UserError, match="as JSON"):
            reader.deserialize(message)
    lenient = json_reader(kind).ignore_parse_errors().build()
    assert lenient.deserialize(b'{"a": "x", "b": "2021-01-09T12:00:00Z"}') == Row(a=None, b=dt.datetime(2021, 1, 9, 12))
    assert lenient.deserialize(b"{") is None and lenient.deserialize(deep) is None
    with pytest.raises(InvalidJobError, match="exclude each other"):
        json_reader(kind).fail_on_missing_field().ignore_parse_errors().build()
    with pytest.raises(InvalidJobError, match="has no type"):
        JsonRowSerializationSchema.builder().build()


def test_a_json_schema_is_a_row_type():
    schema = {
        "type": "object",
        "properties": {
            "id": {"type": ["integer", "null"]},
            "at": {"$ref": "#/definitions/time"},
            "tags": {"type": "array", "items": {"type": "string"}},
            "pair": {"type": "array", "items": [{"type": "boolean"}, {"type": "number"}]},
            "raw": {"type": "string", "contentEncoding": "base64"},
            "who": {"oneOf": [{"type": "null"}, {"type": "object", "properties": {"x": {"type": "string"}}}]},
        },
        "definitions": {"time": {"type": "string", "format": "date-time"}},
    }
    reader = JsonRowDeserializationSchema.builder().json_schema(json.dumps(schema)).build()
    assert reader.get_produced_type() == Types.ROW_NAMED(
        ["id", "at", "tags", "pair", "raw", "who"],
        [
            Types.BIG_DEC(),
            Types.SQL_TIMESTAMP(),
            Types.OBJECT_ARRAY(Types.STRING()),
            Types.ROW([Types.BOOLEAN(), Types.BIG_DEC()]),
            Types.PRIMITIVE_ARRAY(Types.BYTE()),
            Types.ROW_NAMED(["x"], [Types.STRING()]),
        ],
    )
    row = reader.deserialize(b'{"id": 7, "pair": [true, 0.1], "who": {"x": "y"}}')
    assert (row.id, row.pair, row.who) == (7, Row(f0=True, f1=decimal.Decimal("0.1")), Row(x="y"))


@pytest.mark.parametrize(
    "schema, why",
    [
        ("{", "Expecting"),
        ('{"type": "string"}', "not an object"),
        ('{"type": "object", "properties": {"a": {"anyOf": []}}}', "anyOf"),
        ('{"type": "object", "properties": {"a": {"type": ["string", "number"]}}}', "only a type or null"),
        ('{"type": "object", "properties": {"a": {"$ref": "#/x"}}}', 'no "#/x"'),
        ('{"type": "object", "properties": {"a": {"$ref": "http://x"}}}', "another document"),
        ('{"$ref": "#/a", "a": {"type": "object", "properties": {"b": {"$ref": "#/a"}}}}', "refers to itself"),
        ('{"type": "object", "properties": {"a": {"type": "array"}}}', '"items"'),
        ('{"type": "object", "additionalProperties": true}', "additionalProperties"),
        ('{"type": "object", "properties": 5}', "is no schema"),
        ('{"type": "object", "properties": {"a": {"oneOf": 5}}}', "is no schema"),
    ],
)
def test_a_json_schema_without_one_type_for_each_field_is_refused(schema, why):
    with pytest.raises(InvalidJobError, match=why):
        JsonRowDeserializationSchema.builder().json_schema(schema)
