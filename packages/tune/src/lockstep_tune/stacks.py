"""Stacks of the user's code, and a sampler of the interpreter that notes which call holds it."""

from __future__ import annotations

import ast
import functools
import linecache
import sys
import threading
import time
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

from lockstep.recorder import is_of_the_user

LEAST_S, MOST_S = 0.0005, 0.005
"""Between two samples."""
_WAITS_S = 0.0002
"""For so long a sample waits for the interpreter before Python has the training's thread hand it over."""
_SHARE = 0.01
"""Of a step."""

_Lines = tuple[tuple[CodeType, int], ...]


class Stacks:
    """Numbers for stacks: the user's lines, the innermost last, and where in it the innermost stands."""

    def __init__(self) -> None:
        self._numbers: dict[tuple[_Lines, int], int] = {}

    def number(self, frame: FrameType | None) -> int:
        """Return the number of the stack that ends with this frame; the same for equal ones."""
        lines: list[tuple[CodeType, int]] = []
        instruction = -1
        while frame is not None:
            code = frame.f_code
            if _is_of_the_user(code.co_filename):
                if not lines:
                    instruction = frame.f_lasti
                lines.append((code, frame.f_lineno or code.co_firstlineno))
            frame = frame.f_back
        key = tuple(reversed(lines)), instruction
        return self._numbers.setdefault(key, len(self._numbers))

    def told(self) -> list[dict[str, Any]]:
        """Return every stack by its number, as JSON takes it: its lines, and what the innermost calls."""
        return [
            {
                "lines": [
                    [str(Path(code.co_filename).absolute()), line, code.co_name] for code, line in lines
                ],
                "calls": _called(lines[-1][0], instruction) if lines else "",
            }
            for lines, instruction in self._numbers
        ]  # fmt: skip


class Sampler:
    """Notes in a thread of its own, some hundred times in a step, where the thread that trains stands.

    A sample needs the interpreter for some microseconds; a call that holds it is seen as soon as it lets go.

    stacks: Numbers them.
    step_s: About how long a step takes.
    """

    def __init__(self, stacks: Stacks, step_s: float) -> None:
        self._stacks = stacks
        self.every_s = min(max(_SHARE * step_s, LEAST_S), MOST_S)
        self._trains = threading.get_ident()
        self._ends = threading.Event()
        self._step, self._began = -1, 0
        self._interval_s = sys.getswitchinterval()
        self.samples: list[tuple[int, float, int]] = []
        """Step, microseconds since it began, and the number of the stack."""
        self._thread = threading.Thread(target=self._run, name="lockstep samples", daemon=True)
        sys.setswitchinterval(_WAITS_S)  # 5 ms by default, in which a short loop would be over
        self._thread.start()

    def step_begins(self, number: int) -> None:
        """Samples are of this step from now on."""
        self._step, self._began = number, time.perf_counter_ns()

    def stop(self) -> None:
        """Take no more samples."""
        self._ends.set()
        self._thread.join()
        sys.setswitchinterval(self._interval_s)

    def _run(self) -> None:
        while not self._ends.is_set():
            time.sleep(self.every_s)
            frame = sys._current_frames().get(self._trains)
            now, step, began = time.perf_counter_ns(), self._step, self._began
            if frame is not None and step >= 0 and not self._ends.is_set():
                self.samples.append((step, (now - began) / 1e3, self._stacks.number(frame)))
            del frame  # it would keep alive what the script lets go


@functools.cache
def _is_of_the_user(file: str) -> bool:
    return not file.startswith("<") and is_of_the_user(str(Path(file).absolute()))


def line_of_the_user(above: int = 2) -> str:
    """Return `line:file` of the innermost call that the user's code makes, from so many frames above on."""
    frame = sys._getframe(above)
    while frame.f_back is not None and not _is_of_the_user(frame.f_code.co_filename):
        frame = frame.f_back
    return f"{frame.f_lineno}:{Path(frame.f_code.co_filename).absolute()}"


def _called(code: CodeType, instruction: int) -> str:
    """Return the name that an instruction calls, as the script writes it; "" where that is not known."""
    positions = getattr(code, "co_positions", None)
    if positions is None or instruction < 0:
        return ""
    text = _text(code.co_filename, list(positions())[instruction // 2])
    try:
        parsed = ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, ValueError):
        return ""
    if not isinstance(parsed, ast.Call):
        return ""
    name = ast.unparse(parsed.func)
    return name if len(name) <= 40 and "\n" not in name else ""


def _text(file: str, place: tuple[int | None, int | None, int | None, int | None]) -> str:
    """Return what stands there, between its first and its last column (in bytes)."""
    first, last, begin, end = place
    if first is None or last is None or begin is None or end is None:
        return ""
    lines = [line.encode() for line in linecache.getlines(file)[first - 1 : last]]
    if not lines:
        return ""
    lines[-1] = lines[-1][:end]
    lines[0] = lines[0][begin:]
    return b"".join(lines).decode(errors="replace")
