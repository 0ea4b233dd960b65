"""Tracebacks of user code: the engine's frames above it are folded away, in causes too."""

import copy
import functools
import sys
import traceback

import flinkish.common.completable_future as engine_module
from flinkish.common.user_traceback import GENERATED, format_user_traceback


def compiled(text, file_name, **names):
    exec(compile(text, file_name, "exec"), names)
    return names["run"]


def in_engine(call):
    """``call()`` below a frame of the engine."""
    return compiled("def run():\n    return call()\n", engine_module.__file__, call=call)


def in_chain(call):
    """``call()`` below a frame of a generated chain."""
    return compiled("def run():\n    return call()\n", f"{GENERATED}1: Map>", call=call)


def raised(call):
    try:
        call()
    except BaseException as error:
        return BaseException.with_traceback(error, error.__traceback__.tb_next)  # without this frame
    raise AssertionError("it did not raise")


def explode():
    raise ValueError("boom")


def test_it_begins_with_the_users_first_frame():
    text = format_user_traceback(raised(in_engine(in_chain(explode))))
    assert text.startswith("Traceback") and "in explode" in text and text.endswith("ValueError: boom\n")
    assert engine_module.__file__ not in text and GENERATED not in text


def test_a_declared_cause_is_folded_too():
    def wrap():
        try:
            in_engine(explode)()
        except ValueError as error:
            raise KeyError("wrapped") from error

    text = format_user_traceback(raised(in_engine(wrap)))
    assert "ValueError: boom" in text and "direct cause" in text and "in wrap" in text
    outer = text.split("direct cause")[1]
    assert engine_module.__file__ not in outer
    assert text.index("in explode") < text.rindex("in wrap")


def test_what_the_engine_alone_met_on_the_way_is_left_out():
    missing = compiled(
        "def run():\n    try:\n        {}['key']\n    except KeyError:\n        call()\n",
        engine_module.__file__,
        call=explode,
    )
    text = format_user_traceback(raised(missing))
    assert "KeyError" not in text and "During handling" not in text and "in explode" in text


def test_an_error_that_no_user_frame_raised_begins_with_the_generated_line():
    text = format_user_traceback(raised(in_engine(in_chain(None))))
    assert GENERATED in text and engine_module.__file__ not in text
    assert "'NoneType' object is not callable" in text


def test_an_error_whose_text_cannot_be_made_still_shows_its_place():
    class Mute(Exception):
        def __str__(self):
            raise RuntimeError("no text")

    def fail():
        raise Mute

    assert "in fail" in format_user_traceback(raised(in_engine(fail)))


def test_errors_that_are_each_others_cause_end():
    first, second = ValueError("first"), ValueError("second")
    first.__cause__, second.__cause__ = second, first
    assert "first" in format_user_traceback(first)
    assert traceback.format_exception(first)


class Reduced:
    def __reduce__(self):
        raise ValueError("boom")


def test_frames_of_the_engine_and_of_what_it_copies_with_are_folded_wherever_they_stand():
    text = format_user_traceback(raised(in_engine(lambda: copy.deepcopy(Reduced()))))
    assert text.count('  File "') == 3 and "in __reduce__" in text, "the lambda calls copy by itself"
    text = format_user_traceback(raised(in_engine(functools.partial(copy.deepcopy, Reduced()))))
    assert text.count('  File "') == 1 and "in __reduce__" in text
    text = format_user_traceback(raised(lambda: in_engine(explode)()))
    assert text.count('  File "') == 2 and engine_module.__file__ not in text


if sys.version_info >= (3, 11):

    def test_the_parts_of_an_exception_group_are_folded_too():
        part = raised(in_engine(explode))
        text = format_user_traceback(ExceptionGroup("several", [part]))
        assert "in explode" in text and engine_module.__file__ not in text


def test_what_has_a_cause_in_user_code_shows_no_generated_line():
    generated = compiled(
        "def run():\n    raise TypeError('explained') from cause\n", f"{GENERATED}2: Map>", cause=raised(explode)
    )
    text = format_user_traceback(raised(generated))
    assert GENERATED not in text and "in explode" in text and "TypeError: explained" in text
