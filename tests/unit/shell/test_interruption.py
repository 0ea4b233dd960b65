"""Where the signal that interrupts user code may raise."""

import os
import re
import signal
import time

import pytest

from flinkish.datastream.transformations import FlatMapOperator, MapOperator
from flinkish.errors import TaskCancelled
from flinkish.shell.interruption import interrupt_user_code
from flinkish.state import heap
from tests.unit.operators.chains import Chain


@pytest.fixture(autouse=True)
def handler():
    before = signal.signal(signal.SIGUSR2, interrupt_user_code)
    yield
    signal.signal(signal.SIGUSR2, before)


@pytest.fixture(params=[True, False], ids=["fused", "interpreted"])
def fused(request):
    return request.param


def interrupt_soon(value):
    signal.signal(signal.SIGALRM, lambda signum, frame: os.kill(os.getpid(), signal.SIGUSR2))
    signal.setitimer(signal.ITIMER_REAL, 0.05)
    return value


def spin(value):
    interrupt_soon(value)
    while True:
        value += 1


def sleep(value):
    interrupt_soon(value)
    time.sleep(60)


def match(value):
    interrupt_soon(value)
    re.match(r"(a+)+$", "a" * 64 + "b")


def generate(value):
    yield value
    spin(value)


@pytest.mark.parametrize("hangs", [spin, sleep, match], ids=lambda function: function.__name__)
def test_a_function_that_hangs_is_interrupted(fused, hangs):
    with pytest.raises(TaskCancelled):
        Chain(MapOperator(hangs), fused=fused).rows([1])


def test_a_generator_that_hangs_is_interrupted(fused):
    with pytest.raises(TaskCancelled):
        Chain(FlatMapOperator(generate), fused=fused).rows([1])


def test_outside_of_user_code_the_signal_does_nothing():
    os.kill(os.getpid(), signal.SIGUSR2)


def test_in_the_engine_that_user_code_has_called_the_signal_does_nothing(fused):
    names = {"signal": signal, "os": os}
    code = compile("def ask():\n    os.kill(os.getpid(), signal.SIGUSR2)\n    return 5\n", heap.__file__, "exec")
    exec(code, names)
    chain = Chain(MapOperator(lambda value: names["ask"]()), fused=fused).rows([1])
    assert chain.output == [(5, None)]


def test_user_code_that_the_engine_runs_to_copy_a_record_is_interrupted(fused):
    class Copied:
        def __reduce__(self):
            os.kill(os.getpid(), signal.SIGUSR2)
            return Copied, ()

    with pytest.raises(TaskCancelled):
        Chain(MapOperator(lambda value: [Copied()]), fused=fused).rows([1])
