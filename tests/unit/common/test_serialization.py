import io

import pytest

from flinkish.common import ByteArraySchema, Encoder, Row, SimpleStringSchema
from flinkish.common.serialization import RowFieldExtractorSchema
from flinkish.errors import InvalidJobError


def test_text_goes_to_bytes_and_back_in_its_charset():
    schema = SimpleStringSchema("latin-1")
    assert schema.serialize("é") == b"\xe9" and schema.deserialize(b"\xe9") == "é"
    with pytest.raises(InvalidJobError, match="klingon"):
        SimpleStringSchema("klingon")


def test_bytes_stay_as_they_are():
    assert ByteArraySchema().deserialize(ByteArraySchema().serialize(bytearray(b"ab"))) == b"ab"


def test_the_string_encoder_writes_a_line_for_each_record():
    stream = io.BytesIO()
    encoder = Encoder.simple_string_encoder()
    encoder.encode(1, stream)
    encoder.encode("ü", stream)
    assert stream.getvalue() == "1\nü\n".encode()


def test_one_field_of_a_row_is_extracted_as_bytes():
    schema = RowFieldExtractorSchema(1)
    assert schema.serialize(Row("k", b"v")) == b"v"
    assert schema.serialize(Row("k", None)) == b""
