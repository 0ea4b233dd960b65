"""The runners on real threads; everything is waited for by events."""

import asyncio
import queue
import threading

import pytest

from flinkish.operators.async_io import call_runner
from flinkish.operators.async_io.call_runner import EventLoopRunner, ThreadPoolRunner, create_call_runner


class Answers(queue.Queue):
    def __call__(self, *answer):
        self.put(answer)

    def next(self):
        return self.get(timeout=60)


@pytest.fixture
def made(monkeypatch):
    monkeypatch.setattr(call_runner, "_END_WITHIN_S", 0.01)
    runners = []

    def make(invoke, capacity=100):
        answers = Answers()
        runners.append(create_call_runner(invoke, answers, capacity, "calls of a test", True))
        return runners[-1], answers

    yield make
    for runner in runners:
        runner.cancel_all()
        runner.close()


def test_a_coroutine_answers_once_and_one_that_is_cancelled_never(made):
    ended = threading.Event()

    async def invoke(value):
        try:
            await asyncio.sleep(value)
        finally:
            ended.set()
        return [value]

    runner, answers = made(invoke)
    assert type(runner) is EventLoopRunner
    runner.start(1, 1, 1_000)
    runner.start(2, 1, 0)
    assert answers.next() == (2, 1, [0], None)
    ended.clear()
    runner.cancel(1, 1)
    assert ended.wait(60)
    runner.start(3, 1, 0)
    assert answers.next() == (3, 1, [0], None), "of the cancelled call nothing has come before"


def test_errors_come_back_as_they_are_also_of_open(made):
    async def fails(*args):
        raise asyncio.CancelledError("by the user's own code")

    runner, answers = made(fails)
    runner.start(1, 1, None)
    number, attempt, results, error = answers.next()
    assert (number, attempt, results, type(error)) == (1, 1, None, asyncio.CancelledError)

    def refuses(context):
        raise ValueError(context)

    with pytest.raises(ValueError, match="given"):
        runner.run(refuses, "given")


def test_a_loop_that_a_coroutine_blocks_does_not_hold_up_the_end(made):
    blocks, let_go = threading.Event(), threading.Event()

    async def invoke(value):
        blocks.set()
        let_go.wait()
        return []

    runner, _ = made(invoke)
    runner.start(1, 1, None)
    assert blocks.wait(60)
    runner.cancel_all()
    with pytest.raises(TimeoutError, match="a coroutine blocks its thread"):
        runner.run(lambda: None)
    let_go.set()


def test_a_function_that_blocks_has_no_more_threads_than_calls(made, monkeypatch):
    monkeypatch.setattr(call_runner, "THREADS_MAX", 2)
    at_work, let_go, threads = queue.Queue(), threading.Event(), set()

    def invoke(value):
        threads.add(threading.current_thread())
        at_work.put(value)
        let_go.wait()
        return [value]

    runner, answers = made(invoke)
    assert type(runner) is ThreadPoolRunner
    for number in range(4):
        runner.start(number, 1, number)
    assert {at_work.get(timeout=60), at_work.get(timeout=60)} == {0, 1}
    runner.cancel(0, 1)  # it runs, and its answer is nobody's
    runner.cancel(2, 1)  # it has no thread yet
    let_go.set()
    assert sorted([answers.next()[:3], answers.next()[:3]]) == [(1, 1, [1]), (3, 1, [3])]
    assert at_work.get(timeout=60) == 3 and at_work.empty()
    assert len(threads) == 2
