"""Files by which drivers are found: of this user alone, and of those that live."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from flinkish.errors import ExternalError
from flinkish.rest.registration import DriverAddress, Registration, find_drivers

CHECKOUT = Path(__file__).resolve().parents[3]
DRIVER = DriverAddress("127.0.0.1", 4711, "a token", 12)


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("FLINKISH_RUN_DIR", str(tmp_path / "run"))
    return tmp_path / "run"


def test_a_driver_is_found_while_it_lives_and_leaves_nothing(folder):
    assert find_drivers() == [] and not folder.exists()
    first, second = Registration(DRIVER), Registration(DRIVER)
    assert find_drivers() == [DRIVER, DRIVER]
    modes = {oct(path.stat().st_mode & 0o777) for path in folder.iterdir()}
    assert (oct(folder.stat().st_mode & 0o777), modes) == ("0o700", {"0o600"})
    first.close()
    assert find_drivers() == [DRIVER]
    second.close()
    assert find_drivers() == [] and not folder.exists()


def test_what_a_killed_driver_has_left_is_removed(folder):
    program = (
        "import os, signal\n"
        "from flinkish.rest.registration import *\n"
        "Registration(DriverAddress('127.0.0.1', 1, 'x'))\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    subprocess.run([sys.executable, "-c", program], env={**os.environ, "PYTHONPATH": str(CHECKOUT)}, timeout=60)
    assert len(list(folder.iterdir())) == 1
    living = Registration(DRIVER)
    assert find_drivers() == [DRIVER] and len(list(folder.iterdir())) == 1
    living.close()
    assert not folder.exists()
    folder.mkdir(0o700)  # as when the last driver was killed before it had written
    assert find_drivers() == [] and not folder.exists()


def test_a_child_that_outlives_its_driver_does_not_keep_its_file(folder):
    registration = Registration(DRIVER)
    hold, release = os.pipe()
    child = os.fork()
    if not child:
        registration.leave_to_parent()
        os.close(release)
        os.read(hold, 1)
        os._exit(0)
    try:
        os.close(hold)
        assert find_drivers() == [DRIVER]
        os.close(registration._descriptor)  # as when the driver is killed
        deadline_s = time.monotonic() + 10
        while find_drivers():  # until the child has let go
            assert time.monotonic() < deadline_s
        assert not folder.exists()
    finally:
        os.close(release)
        os.waitpid(child, 0)


def test_a_folder_that_others_may_enter_or_that_is_a_link_is_not_used(folder):
    folder.mkdir(0o755)
    for act in (find_drivers, lambda: Registration(DRIVER)):
        with pytest.raises(ExternalError, match="could not use the folder in which drivers are found"):
            act()
    folder.rmdir()
    elsewhere = folder.parent / "elsewhere"
    elsewhere.mkdir(0o700)
    folder.symlink_to(elsewhere)
    with pytest.raises(ExternalError, match="mode 0700"):
        find_drivers()


def test_files_that_are_not_a_living_drivers_are_not_trusted(folder):
    living = Registration(DRIVER)
    (name,) = folder.iterdir()
    good = name.read_text()
    strangers = {"open.json": good, "link.json": None, "other.txt": good}
    for stranger, text in strangers.items():
        if text is None:
            (folder / stranger).symlink_to(name)
        else:
            (folder / stranger).write_text(text)
            (folder / stranger).chmod(0o644)
    os.mkfifo(folder / "pipe.json", 0o600)
    assert find_drivers() == [DRIVER]
    for text in ("", "{", "[]", json.dumps({**json.loads(good), "version": 2}), good.replace("host", "hots")):
        os.ftruncate(living._descriptor, 0)
        os.pwrite(living._descriptor, text.encode(), 0)
        assert find_drivers() == []
    living.close()
