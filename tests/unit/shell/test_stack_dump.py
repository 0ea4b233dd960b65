"""What is shown of the dump of a process that died."""

import flinkish.shell.slot_process as engine_module
from flinkish.shell.stack_dump import short_stack

ENGINE = f'  File "{engine_module.__file__}", line 7 in run'
DUMP = """Fatal Python error: Segmentation fault

Thread 0x2 (most recent call first):
  File "/other.py", line 1 in waits

Current thread 0x1 (most recent call first):
  File "/lib/ctypes.py", line 9 in string_at
  File "/job.py", line 5 in f
  File "/job.py", line 5 in f
{engine}
  File "<string>", line 17 in <module>

Extension modules: numpy
"""


def test_it_names_the_users_frames_of_the_thread_that_died_innermost_first_and_each_once():
    assert short_stack(DUMP.format(engine=ENGINE)) == "string_at (/lib/ctypes.py, line 9), called by f (/job.py, line 5)"


def test_a_thread_of_the_users_has_no_frame_of_the_engine():
    frames = [f'  File "/job.py", line {number} in f' for number in range(9)]
    text = short_stack("\n".join(["Current thread 0x1 (most recent call first):", *frames]))
    assert text.startswith("f (/job.py, line 0), called by f (/job.py, line 1)") and text.endswith("line 4), ...")


def test_where_no_code_of_the_users_ran_the_engines_place_is_named():
    text = short_stack(f"Current thread 0x1 (most recent call first):\n{ENGINE}\n" + '  File "<string>", line 1 in <module>')
    assert text == f"run ({engine_module.__file__}, line 7)"


def test_a_text_that_is_no_dump_says_nothing():
    assert short_stack("Traceback (most recent call last):\n  File \"a\", line 1\nValueError") == short_stack("") == ""
