"""Results of operations: how long they are kept, and who is waited for."""

import threading

import pytest

from flinkish.rest.messages import HttpError
from flinkish.rest.operations import KEPT_MAX, KEPT_S, Operations


def result(operations, trigger):
    while (answer := operations.status("savepoint", "job", trigger))["status"]["id"] != "COMPLETED":
        pass
    return answer["operation"]


def done(operations, number):
    """An operation that has ended."""
    trigger = operations.trigger("savepoint", "job", f"{number:x}", lambda: {"number": number})
    assert result(operations, trigger) == {"number": number}
    return trigger


def test_a_result_is_kept_for_a_while_and_the_newest_only():
    now_s = [0.0]
    operations = Operations(lambda: now_s[0])
    first = done(operations, 0)
    now_s[0] = KEPT_S - 1.0
    assert operations.status("savepoint", "job", first)["operation"] == {"number": 0}
    now_s[0] = KEPT_S + 1.0
    with pytest.raises(HttpError, match="There is no savepoint"):
        operations.status("savepoint", "job", first)
    triggers = [done(operations, number) for number in range(1, KEPT_MAX + 3)]
    for trigger in triggers[:2]:
        with pytest.raises(HttpError):
            operations.status("savepoint", "job", trigger)
    assert operations.status("savepoint", "job", triggers[-1])["operation"] == {"number": KEPT_MAX + 2}


def test_who_closes_waits_until_a_result_has_been_read_and_no_longer():
    operations = Operations()
    assert operations.wait_read(0)
    gate = threading.Event()

    def wait():
        gate.wait()
        return {"location": "here"}

    trigger = operations.trigger("savepoint", "job", None, wait)
    assert operations.status("savepoint", "job", trigger)["status"] == {"id": "IN_PROGRESS"}
    assert not operations.wait_read(0)
    gate.set()
    reader = threading.Thread(target=result, args=(operations, trigger))
    reader.start()
    assert operations.wait_read(10)
    reader.join()
