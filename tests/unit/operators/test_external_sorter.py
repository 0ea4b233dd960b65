"""Sorting in memory and in a file."""

import itertools
import os
import random
import tempfile

import pytest

from flinkish.errors import ExternalError, UserError
from flinkish.operators import external_sorter
from flinkish.operators.external_sorter import ExternalSorter


def fill(sorter, records):
    """(key, order, value); compacts as soon as asked to."""
    for number, (key, order, value) in enumerate(records):
        sorter.extend([(key, order, number, value, order)])
        if sorter.must_compact:
            for _ in sorter.compact():
                pass


def values(sorter):
    return [entry[3] for entry in sorter.entries()]


@pytest.mark.parametrize("seed", range(20))
def test_what_comes_out_is_sorted_and_stable(seed, monkeypatch):
    """Whatever lies in memory, in the file, and in a file that took the place of another."""
    monkeypatch.setattr(external_sorter, "BLOCKS_PER_RUN", 2)
    monkeypatch.setattr(external_sorter, "BLOCK_RECORDS_FIRST", 2)
    monkeypatch.setattr(external_sorter, "BLOCK_RECORDS_MAX", 3)
    rng = random.Random(seed)
    monkeypatch.setattr(external_sorter, "RUNS_IN_FILE_MAX", rng.randint(1, 3))
    memory_bytes = (0, 200, 10**9)[seed % 3]
    records = []
    for number in range(rng.randint(0, 120)):
        key, order = rng.choice([b"", b"a", b"b"]), rng.randint(-2, 2)
        records.append((key, order, (key, order, number)))
    sorter = ExternalSorter(memory_bytes)
    fill(sorter, records)
    assert values(sorter) == sorted(value for _, _, value in records)
    if memory_bytes > 1_000:
        assert sorter.spilled_bytes == 0
    elif len(records) > 30:
        assert sorter.spilled_bytes > 0
    sorter.close()


def test_values_that_cannot_be_compared_are_sorted_all_the_same():
    sorter = ExternalSorter(0)
    mixed = [{"a": 1}, None, 3, "x", float("nan"), object]
    fill(sorter, [(b"k", 0, value) for value in mixed])
    assert list(map(repr, values(sorter))) == list(map(repr, mixed))
    sorter.close()


def test_only_what_exceeds_the_memory_goes_to_a_file_without_a_name(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    sorter = ExternalSorter(10**9)
    fill(sorter, [(b"%d" % (n % 7), n, f"{n:100}") for n in range(20_000)])
    assert sorter.spilled_bytes == 0
    sorter.close()
    sorter = ExternalSorter(100_000)
    before = len(os.listdir("/proc/self/fd"))
    fill(sorter, [(b"%d" % (n % 7), n, f"{n:100}") for n in range(20_000)])
    assert sorter.spilled_bytes > 1_500_000
    assert os.listdir(tmp_path) == []
    assert len(values(sorter)) == 20_000
    sorter.close()
    assert len(os.listdir("/proc/self/fd")) == before


def test_large_records_are_kept_in_small_blocks():
    """After the first run, memory holds about a megabyte of records that are not pickled."""
    sorter = ExternalSorter(1)
    most = 0
    for number in range(60):
        sorter.extend([(b"k", -number, number, bytes(100_000), None)])
        most = max(most, len(sorter._open))
        if sorter.must_compact:
            for _ in sorter.compact():
                pass
    assert len(list(sorter.entries())) == 60
    assert most <= external_sorter.BLOCKS_PER_RUN * external_sorter.BLOCK_RECORDS_FIRST
    assert sorter._block_records == 1
    sorter.close()


def test_spilling_and_merging_gives_the_turn_back_after_each_block():
    sorter = ExternalSorter(0)
    for number in range(20_000):
        sorter.extend([(b"%d" % (number % 10), 0, number, number, None)])
    assert sum(1 for _ in sorter.compact()) >= 20_000 // external_sorter.BLOCK_RECORDS_MAX
    sorter.close()


def test_a_record_that_cannot_be_pickled_is_named():
    sorter = ExternalSorter(0)
    with pytest.raises(UserError, match="could not sort the record <function") as refused:
        fill(sorter, [(b"k", 0, value) for value in itertools.chain(range(20), [lambda: 1], range(300))])
    assert "cannot be pickled" in refused.value.why and "key_by()" in refused.value.do
    sorter.close()


def test_a_folder_that_cannot_be_written_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "gone"))
    sorter = ExternalSorter(0)
    with pytest.raises(ExternalError, match="could not be written to") as failed:
        fill(sorter, [(b"k", 0, value) for value in range(1_000)])
    assert failed.value.where == str(tmp_path / "gone")
    assert "execution.sorted-inputs.memory" in failed.value.do


def test_closing_it_in_the_middle_lets_everything_go():
    sorter = ExternalSorter(0)
    fill(sorter, [(b"k", 0, value) for value in range(1_000)])
    entries = sorter.entries()
    assert next(entries)[3] == 0
    entries.close()
    sorter.close()
    sorter.close()
