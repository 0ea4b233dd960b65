"""The metadata document: all of a checkpoint, movable, and refused when it is not whole."""

import dataclasses
import json
from zlib import crc32

import pytest

from flinkish.errors import CorruptSnapshotError
from flinkish.messages.checkpoints import (
    CompletedCheckpoint,
    FileHandle,
    IncrementalKeyedStateHandle,
    InlineBytes,
    KeyedStateHandle,
    KeyGroupRange,
    OperatorSnapshot,
    OperatorSubtaskState,
    SnapshotKind,
)
from flinkish.storage.metadata import decode_metadata, encode_metadata

ALL = KeyGroupRange(0, 127)


def checkpoint(*handles, location="/c/job/chk-1"):
    operator = OperatorSnapshot("op", "uid", "name", 1, 128, {0: OperatorSubtaskState(handles)})
    return CompletedCheckpoint(
        "job", "name", "run", 1, 10, 20, SnapshotKind.SAVEPOINT, location, {"op": operator}
    )


def sealed(document):
    """The file of a document, with its checksum."""
    document.pop("crc32", None)
    data = json.dumps(document, separators=(",", ":")).encode()[:-1]
    return data + b',"crc32":"%08x"}' % crc32(data)


def handles_of(found):
    return found.operators["op"].subtasks[0].keyed


def test_files_in_the_folder_move_with_it_and_others_stay_where_they_are():
    own, shared = FileHandle("/c/job/chk-1/a", 5), FileHandle("/c/job/shared/b", 6)
    private = {"M": own, "C": InlineBytes(b"\0")}
    incremental = IncrementalKeyedStateHandle(ALL, "rocksdb", "id", 1, {"1.sst": shared}, private)
    data = encode_metadata(checkpoint(KeyedStateHandle(ALL, own), incremental))
    moved = decode_metadata(data, "s3://bucket/elsewhere/")
    own = FileHandle("s3://bucket/elsewhere/a", 5)
    assert moved.location == "s3://bucket/elsewhere"
    assert handles_of(moved) == (
        KeyedStateHandle(ALL, own),
        dataclasses.replace(incremental, private={"M": own, "C": InlineBytes(b"\0")}),
    )


def test_a_newer_version_is_refused_with_both_numbers():
    document = json.loads(encode_metadata(checkpoint()))
    document["version"] = 9
    with pytest.raises(CorruptSnapshotError, match="version 9, this flinkish reads up to 2") as caught:
        decode_metadata(sealed(document), "/c/job/chk-1")
    assert caught.value.where == "/c/job/chk-1/_metadata" and len(str(caught.value).splitlines()) == 4


def test_fields_of_a_later_program_are_passed_over():
    document = json.loads(encode_metadata(checkpoint()))
    document["novel"] = document["operators"][0]["novel"] = 1
    assert decode_metadata(sealed(document), "/c/job/chk-1") == checkpoint()


def test_every_cut_is_refused():
    data = encode_metadata(checkpoint(KeyedStateHandle(ALL, InlineBytes(b"abc"))))
    for size in range(len(data)):
        with pytest.raises(CorruptSnapshotError):
            decode_metadata(data[:size], "/c/job/chk-1")


@pytest.mark.parametrize("flip", [1, 2, 3, 0x20, 0x80, 0xFF])
def test_every_changed_byte_is_refused(flip):
    data = encode_metadata(checkpoint(KeyedStateHandle(ALL, InlineBytes(bytes(range(200))))))
    for at in range(len(data)):
        damaged = bytearray(data)
        damaged[at] ^= flip
        with pytest.raises(CorruptSnapshotError) as caught:
            decode_metadata(bytes(damaged), "/c/job/chk-1")
        assert caught.value.where == "/c/job/chk-1/_metadata"


@pytest.mark.parametrize("more", [b" ", b"\n", b"}", b"\0"])
def test_what_is_longer_than_its_document_is_refused(more):
    with pytest.raises(CorruptSnapshotError, match="cut off or damaged"):
        decode_metadata(WHOLE + more, "/c/job/chk-1")


def test_a_document_of_the_first_version_which_has_no_checksum_is_read():
    document = json.loads(WHOLE)
    document.pop("crc32")
    document.update(version=1, end=True)
    assert decode_metadata(json.dumps(document).encode(), "/c/job/chk-1") == checkpoint()
    document["end"] = False
    with pytest.raises(CorruptSnapshotError, match="it has no end"):
        decode_metadata(json.dumps(document).encode(), "/c/job/chk-1")


@pytest.mark.parametrize(
    "change",
    [
        lambda d: d.update(format="other"),
        lambda d: d.pop("commits"),
        lambda d: d.update(kind="NOVEL"),
        lambda d: d.update(checkpoint_id="1"),
        lambda d: d.update(checkpoint_id=True),
        lambda d: d.update(version="1"),
        lambda d: d["operators"][0].update(subtasks=[1]),
        lambda d: d["operators"][0].update(coordinator="not base64!"),
        lambda d: content(d).update(file="../../etc/passwd"),
        lambda d: content(d).update(file=".."),
        lambda d: content(d).update(file=""),
        lambda d: content(d).update(size=-1),
        lambda d: (content(d).pop("file"), content(d).update(uri="/c/../../x")),
    ],
)
def test_what_cannot_be_is_refused(change):
    document = json.loads(encode_metadata(checkpoint(KeyedStateHandle(ALL, FileHandle("/c/job/chk-1/a", 5)))))
    change(document)
    with pytest.raises(CorruptSnapshotError, match="could not read the metadata") as caught:
        decode_metadata(sealed(document), "/c/job/chk-1")
    assert "checksum" not in str(caught.value)


def content(document):
    return document["operators"][0]["subtasks"][0][1]["keyed"][0]["content"]


@pytest.mark.parametrize("data", [b"", b"[]", b"null", b"\xff\xfe", b"[" * 100_000])
def test_what_is_no_document_is_refused(data):
    with pytest.raises(CorruptSnapshotError):
        decode_metadata(data, "/c/job/chk-1")


WHOLE = encode_metadata(checkpoint())


@pytest.mark.parametrize(
    "data, why",
    [
        (b"", "it is not a metadata file of flinkish: it is empty"),
        (b"\xff\xfe\0\1", "it is not a metadata file of flinkish: it begins with b'\\xff\\xfe\\x00\\x01'"),
        (b"garbage", "it is not a metadata file of flinkish: it begins with b'garbage'"),
        (b"[" * 100_000, "it is not a metadata file of flinkish: it begins with"),
        (b'{"a": 1}', "it is not a metadata file of flinkish: it is JSON without format"),
        (b"null", "it is not a metadata file of flinkish: it is JSON without format"),
        (b"\x49\x60\x67\x2d\0\0\0\4\0\0", "it is not a metadata file of flinkish but of Apache Flink"),
        (WHOLE[:10], "it is cut off or damaged, it has 10 bytes"),
        (WHOLE[:-5], f"it is cut off or damaged, it has {len(WHOLE) - 5} bytes"),
        (WHOLE[:50] + b"\xff" + WHOLE[51:], f"it is cut off or damaged, it has {len(WHOLE)} bytes"),
        (WHOLE.replace(b'"name"', b'"game"'), f"it is cut off or damaged, it has {len(WHOLE)} bytes: its checksum is"),
        (b'{"format":"flinkish-checkpoint"}', "it has the unknown version None"),
        (b'{"format":"flinkish-checkpoint","version":0}', "it has the unknown version 0"),
        (b'{"format":"flinkish-checkpoint","version":1}', "it is damaged: 'end' is missing"),
    ],
)
def test_what_is_no_metadata_says_what_it_is(data, why):
    with pytest.raises(CorruptSnapshotError) as caught:
        decode_metadata(data, "/c/job/chk-1")
    assert caught.value.why.startswith(why) and "Error" not in caught.value.why
    assert caught.value.where == "/c/job/chk-1/_metadata" and caught.value.do
