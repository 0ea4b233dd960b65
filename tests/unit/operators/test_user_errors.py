"""How records and messages of user code are shown: bounded, and whatever their classes do."""

import asyncio
import signal
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flinkish.common.user_traceback import MESSAGE_CHARACTERS_MAX, TRACEBACK_CHARACTERS_MAX
from flinkish.errors import TaskCancelled
from flinkish.operators.output import TaskEnvironment
from flinkish.operators.user_errors import bounded_repr, message_of, user_error

plain = st.recursive(
    st.none() | st.integers() | st.floats() | st.text(max_size=60) | st.binary(max_size=60),
    lambda inner: st.lists(inner)
    | st.tuples(inner)
    | st.tuples(inner, inner)
    | st.sets(st.integers())
    | st.frozensets(st.integers())
    | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=60,
)


@given(plain)
def test_what_is_shown_of_a_plain_record_is_how_its_repr_begins(value):
    whole, shown = repr(value), bounded_repr(value)
    if len(whole) <= 200:
        assert shown == whole
    else:
        # Whether a string that is cut has an apostrophe behind the cut is not looked for.
        assert len(shown) == 200 and shown.endswith(" ...")


@pytest.mark.parametrize(
    "record",
    ["x" * 60_000_000, b"x" * 60_000_000, {"k": ("y" * 60_000_000,)}, [list(range(1_000))] * 100_000],
    ids=["text", "bytes", "dict", "lists"],
)
def test_a_huge_record_costs_what_is_shown_of_it(record):
    started = time.thread_time()
    assert len(bounded_repr(record)) == 200
    assert time.thread_time() - started < 0.05  # a full repr takes 0.2 to 9 s


def test_a_record_that_contains_itself_is_shown_as_python_does():
    record = [1]
    record.append((record, {"k": record}))
    assert bounded_repr(record) == repr(record)


def test_subclasses_are_shown_in_their_own_way():
    class Named(set):
        pass

    class Own(list):
        def __repr__(self):
            return "mine\nand more"

    assert bounded_repr(Named({1})) == repr(Named({1}))
    assert bounded_repr((Own(), set(), frozenset())) == "(mine and more, set(), frozenset())"


class Raises:
    def __init__(self, error):
        self.error = error

    def __repr__(self):
        raise self.error

    __str__ = __repr__


@pytest.mark.parametrize("error", [ValueError(), SystemExit(1), GeneratorExit(), asyncio.CancelledError()])
def test_a_repr_may_raise_what_it_likes(error):
    name = type(error).__name__
    assert bounded_repr(Raises(error)) == f"<Raises, whose repr raised {name}>"
    assert bounded_repr([1, Raises(error)]) == f"<list, whose repr raised {name}>"
    assert message_of(ValueError(Raises(error), 1)) == f"<message raised {name}>"


def test_an_interrupt_passes_in_a_main_program_and_not_in_a_slot():
    before = signal.getsignal(signal.SIGINT)
    try:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        with pytest.raises(KeyboardInterrupt):
            bounded_repr(Raises(KeyboardInterrupt()))
        signal.signal(signal.SIGINT, lambda signum, frame: None)  # as a slot has it
        assert "KeyboardInterrupt" in bounded_repr(Raises(KeyboardInterrupt()))
    finally:
        signal.signal(signal.SIGINT, before)


def test_the_cancelling_of_a_task_is_no_error_of_a_repr():
    with pytest.raises(TaskCancelled):
        bounded_repr(Raises(TaskCancelled()))


def test_the_texts_of_a_failure_are_bounded():
    environment = TaskEnvironment("j", "job", "task", 0, 1, 128, 0, "host", {}, int, print, print)

    def explode():
        raise ValueError("begin " + "x" * 30_000_000 + " end")

    try:
        explode()
    except ValueError as error:
        failure = user_error(error, "op", environment, "", "record")
    text, message = failure.fields["traceback_text"], failure.fields["exception_message"]
    assert len(text) <= TRACEBACK_CHARACTERS_MAX + 40 and len(message) <= MESSAGE_CHARACTERS_MAX + 40
    assert text.startswith("Traceback") and "in explode" in text and text.endswith(" end\n")
    assert "characters left out" in text and message.startswith("begin x")
