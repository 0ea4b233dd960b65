"""What `faulthandler` writes when a process dies, as one line for an error's ``why``."""

from __future__ import annotations

import re
import traceback

from flinkish.common.user_traceback import is_engine_file, user_frames

_FRAME = re.compile(r'  File "(.*)", line (\d+|\?\?\?) in (.*)')
_FRAMES_MAX = 5


def short_stack(dump: str) -> str:
    """Where the thread that died (or, of a dump on demand, ran) was in the user's code, innermost first; the
    engine's own place when it was in none; "" when the text is no dump.

    >>> short_stack('Current thread 0x1 (most recent call first):\\n  File "/a.py", line 3 in f\\n')
    'f (/a.py, line 3)'
    """
    frames: list[traceback.FrameSummary] = []
    found = False
    for line in dump.splitlines():
        if line.startswith(("Current thread", "Stack (most recent call first)")):
            frames, found = [], True  # of several dumps the last
        elif not line.startswith("  "):
            found = False
        elif found and (match := _FRAME.fullmatch(line)):
            number = int(match[2]) if match[2].isdigit() else 0
            frames.append(traceback.FrameSummary(match[1], number, match[3], lookup_line=False))
    frames.reverse()
    engine = [index for index, frame in enumerate(frames) if is_engine_file(frame.filename)]
    if engine:
        frames = frames[engine[0] :]  # in front of that is what started the process
    shown: list[str] = []
    for frame in user_frames(frames)[::-1] or frames[-1:]:
        text = f"{frame.name} ({frame.filename}, line {frame.lineno})"
        if text not in shown:  # of a recursion each place once
            shown.append(text)
    return ", called by ".join(shown[:_FRAMES_MAX]) + (", ..." if len(shown) > _FRAMES_MAX else "")
