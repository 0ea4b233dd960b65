"""Asynchronous functions on real threads: nothing of a slot waits for them, and nothing of them stays."""

import asyncio
import contextlib
import socket
import threading

import pytest

from flinkish.common.job_status import JobStatus
from flinkish.datastream import AsyncDataStream
from flinkish.datastream.functions import AsyncFunction, AsyncRetryStrategy
from flinkish.errors import UserFunctionError

CLUSTER = {"slots": 1}


class Service:
    """Answers a question (a line) with ``question!``, not before `let_go`; counts what it was asked."""

    def __init__(self, path):
        self.path, self.asked = str(path), []
        self._lock, self._held, self._may_answer = threading.Condition(), set(), False
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.bind(self.path)
        self._socket.listen(100)
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self):
        while True:
            try:
                connection, _ = self._socket.accept()
            except OSError:
                return
            question = connection.makefile().readline().strip()
            with self._lock:
                self.asked.append(question)
                self._held.add((connection, question))
                self._lock.notify_all()
                if self._may_answer:
                    self._answer()

    def _answer(self):
        for connection, question in self._held:
            with connection, contextlib.suppress(BrokenPipeError):  # who has asked is gone
                connection.sendall(f"{question}!\n".encode())
        self._held.clear()

    def wait_asked(self, count):
        with self._lock:
            assert self._lock.wait_for(lambda: len(self.asked) >= count, 60), self.asked

    def let_go(self):
        with self._lock:
            self._may_answer = True
            self._answer()

    def close(self):
        self._socket.close()
        self.let_go()


@pytest.fixture
def service(tmp_path):
    service = Service(tmp_path / "service")
    yield service
    service.close()


class Ask(AsyncFunction):
    """Coroutines; the semaphore belongs to the loop that open() and the calls run on."""

    def __init__(self, path):
        self.path = path

    async def open(self, context):
        self.loop = asyncio.get_running_loop()

    async def async_invoke(self, value):
        assert asyncio.get_running_loop() is self.loop
        reader, writer = await asyncio.open_unix_connection(self.path)
        writer.write(f"{value}\n".encode())
        answer = await reader.readline()
        writer.close()
        return [("answer", answer.decode().strip())]


class AskAndBlock(AsyncFunction):
    """The same with a call that blocks its thread."""

    def __init__(self, path):
        self.path = path

    def async_invoke(self, value):
        with socket.socket(socket.AF_UNIX) as connection:
            connection.connect(self.path)
            connection.sendall(f"{value}\n".encode())
            return [("answer", connection.makefile().readline().strip())]


def environment(cluster, **configuration):
    env = cluster.get_execution_environment(configuration or None)
    env.set_parallelism(1)
    return env


@pytest.mark.parametrize("function", [Ask, AskAndBlock])
def test_a_lookup_that_does_not_answer_holds_up_nothing_else_in_its_slot(cluster, service, function):
    env = environment(cluster)
    numbers = env.from_sequence(1, 500)
    asked = env.from_collection([f"q{n}" for n in range(12)])
    answers = AsyncDataStream.ordered_wait(asked, function(service.path), 60_000, capacity=4)
    beside = numbers.map(lambda n: ("number", n)).disable_chaining()
    with beside.union(answers).execute_and_collect() as results:
        before = [next(results) for _ in range(500)]  # more than one buffer, through the slot of the lookups
        service.wait_asked(4)
        assert len(service.asked) == 4, "no more than its capacity"
        service.let_go()
        after = list(results)
    assert sorted(before) == [("number", n) for n in range(1, 501)]
    assert after == [("answer", f"q{n}!") for n in range(12)]


def test_a_job_whose_lookups_never_answer_is_cancelled_and_its_slot_serves_the_next(cluster, service, collect):
    env = environment(cluster)
    stream = env.from_collection(["a", "b", "c"])
    one = AsyncDataStream.unordered_wait(stream, Ask(service.path), 0)
    two = AsyncDataStream.unordered_wait(stream, AskAndBlock(service.path), 0)
    one.union(two).print()
    client = env.execute_async("never")
    service.wait_asked(6)
    client.cancel().result(20_000)
    assert client.status is JobStatus.CANCELED
    assert collect(environment(cluster).from_collection([1, 2])) == [1, 2]


def test_a_savepoint_does_not_wait_for_calls_and_they_are_made_again_after_it(cluster, service, tmp_path):
    def start(env):
        numbers = env.from_sequence(1, 1_000_000).uid("numbers")
        answers = AsyncDataStream.ordered_wait(numbers, Ask(service.path), 0, capacity=4).uid("ask")
        records = answers.collect_async()
        return records, env.execute_async("savepoint")

    _, client = start(environment(cluster))
    service.wait_asked(4)
    location = client.stop_with_savepoint(False, str(tmp_path / "savepoints")).result(30_000)
    assert sorted(service.asked) == ["1", "2", "3", "4"], "none of them has an answer"
    records, client = start(environment(cluster, **{"execution.savepoint.path": location}))
    service.let_go()
    with records:
        assert [next(records) for _ in range(20)] == [("answer", f"{n}!") for n in range(1, 21)]


def test_an_error_of_a_call_shows_the_users_lines_and_the_operator(cluster, collect):
    async def divide(value):
        await asyncio.sleep(0)
        return [10 // value]

    retry = AsyncRetryStrategy.fixed_delay(2, 1, exception_predicate=lambda error: True)
    stream = environment(cluster).from_collection([5, 0])
    stream = AsyncDataStream.ordered_wait_with_retry(stream, divide, 10_000, retry).name("divide")
    with pytest.raises(UserFunctionError) as raised:
        collect(stream)
    error = raised.value
    fields = error.fields
    assert (fields["operator"], fields["record"], fields["exception_type"]) == ("divide", "0", "ZeroDivisionError")
    assert "return [10 // value]" in str(error) and "flinkish/operators" not in str(error)
