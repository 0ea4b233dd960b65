"""Savepoints without their job: what is listed, what is deleted, and what the command says when one is not whole."""

import pytest

from flinkish.cli import main
from flinkish.errors import CheckpointStorageError, CorruptSnapshotError
from flinkish.messages.checkpoints import CompletedCheckpoint, SnapshotKind
from flinkish.shell.savepoints import describe_savepoint, dispose_savepoint, list_savepoints
from flinkish.storage.checkpoint_storage import CheckpointStorage

FILE = "0123456789abcdef" * 2


@pytest.fixture
def folder(tmp_path):
    """With a savepoint and a checkpoint that are whole, and others that are not."""
    storage = CheckpointStorage(tmp_path)
    for name, kind, completed_ms in (("savepoint-a-1", SnapshotKind.SAVEPOINT, 20), ("chk-7", SnapshotKind.CHECKPOINT, 10)):
        location = f"{storage.directory}/{name}"
        storage.create_folder(location)
        storage.store_metadata(CompletedCheckpoint("j", "job", "run", 7, 1, completed_ms, kind, location, {}))
    for name in ("savepoint-b-2", "chk-8"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "_metadata").write_bytes(b"\xff garbage")
        (tmp_path / name / FILE).write_bytes(b"x")
    (tmp_path / "others").mkdir()
    return tmp_path


def test_savepoints_and_checkpoints_are_listed_and_those_that_are_not_whole_too(folder, capsys):
    found = list_savepoints(folder)
    assert [one.location.rpartition("/")[2] for one in found] == ["savepoint-a-1", "chk-7", "savepoint-b-2", "chk-8"]
    assert [one.savepoint is None for one in found] == [False, False, True, True]
    assert all("not whole: it is not a metadata file of flinkish" in describe_savepoint(one) for one in found[2:])
    assert main(["savepoint", "list", str(folder)]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 4
    assert main(["savepoint", "list", str(folder / "others")]) == 0
    assert "there are no savepoints or checkpoints in" in capsys.readouterr().err


def test_checkpoints_of_jobs_are_listed_from_the_folder_that_all_jobs_share(tmp_path, capsys):
    storage = CheckpointStorage(tmp_path)
    location = f"{storage.directory}/{'ab' * 16}/chk-3"
    storage.create_folder(location)
    storage.store_metadata(CompletedCheckpoint("ab" * 16, "job", "run", 3, 1, 20, SnapshotKind.CHECKPOINT, location, {}))
    (tmp_path / ("cd" * 16) / "chk-9").mkdir(parents=True)
    (tmp_path / ("cd" * 16) / "shared").mkdir()
    assert [one.location.removeprefix(storage.directory) for one in list_savepoints(tmp_path)] == [
        f"/{'ab' * 16}/chk-3",
        f"/{'cd' * 16}/chk-9",
    ]
    assert main(["savepoint", "list", str(tmp_path)]) == 0
    assert f'{location}  job "job"' in capsys.readouterr().out


@pytest.mark.parametrize("name, why", [("nope", "there is no such folder"), ("chk-8/_metadata", "it is no folder")])
def test_a_folder_to_list_that_is_none_is_an_error(folder, capsys, name, why):
    assert main(["savepoint", "list", str(folder / name)]) == 1
    shown = capsys.readouterr().err
    assert "could not list savepoints" in shown and str(folder / name) in shown and f"why: {why}" in shown
    assert "do: name the folder that savepoints are written into" in shown


@pytest.mark.parametrize("name", ["savepoint-a-1", "chk-7", "chk-7/_metadata"])
def test_a_whole_one_is_deleted(folder, name):
    location = dispose_savepoint(folder / name)
    assert location == str(folder / name.removesuffix("/_metadata"))
    assert not (folder / name.removesuffix("/_metadata")).exists() and (folder / "savepoint-b-2").exists()


@pytest.mark.parametrize("name", ["savepoint-b-2", "chk-8", "chk-8/_metadata"])
def test_one_that_is_not_whole_is_deleted_by_force_and_only_then(folder, capsys, name):
    target = folder / name.removesuffix("/_metadata")
    assert main(["savepoint", "dispose", str(folder / name)]) == 1
    shown = capsys.readouterr().err
    assert "why: it is not a metadata file of flinkish" in shown and "(2 files)" in shown
    assert f"flinkish savepoint dispose --force {target}" in shown and "restore" not in shown
    assert len(list(target.iterdir())) == 2
    assert main(["savepoint", "dispose", "--force", str(folder / name)]) == 0
    assert capsys.readouterr().out == f"deleted {target}\n" and not target.exists()


def test_one_that_was_never_completed_can_be_deleted_by_force(folder):
    (folder / "chk-8" / "_metadata").rename(folder / "chk-8" / "._metadata.0a.inprogress")
    with pytest.raises(CorruptSnapshotError, match="not whole") as refused:
        dispose_savepoint(folder / "chk-8")
    assert "it was not completed" in refused.value.why
    dispose_savepoint(folder / "chk-8", force=True)
    assert not (folder / "chk-8").exists()


def test_force_deletes_nothing_that_is_no_savepoint(folder):
    (folder / "savepoint-b-2" / "thesis.txt").write_text("x")
    (folder / "chk-8" / "folder").mkdir()
    for name, why in [
        ("savepoint-b-2", "thesis.txt"),
        ("chk-8", "folder"),
        ("others", "its name is not that of a savepoint"),
        ("chk-9", "there is no such folder"),
        (f"savepoint-b-2/{FILE}", "it is no folder"),
    ]:
        with pytest.raises(CheckpointStorageError) as refused:
            dispose_savepoint(folder / name, force=True)
        assert why in refused.value.why and refused.value.where == str(folder / name) and refused.value.do
    assert len(list(folder.iterdir())) == 5 and (folder / "savepoint-b-2" / "_metadata").exists()
