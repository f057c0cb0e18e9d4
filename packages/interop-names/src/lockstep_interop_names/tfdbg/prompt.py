"""A program under tfdbg whose prompt is typed into, one command at a time (pexpect)."""

from __future__ import annotations

import importlib
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from lockstep.errors import UsageError

PROMPT = "tfdbg>"
_CONTROLS = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|[\x00-\x08\x0e-\x1f]")
_LAST = 200


class Prompt:
    """Types commands and reads what is answered; the program ends with the context.

    command: What starts the program, which reaches the prompt by itself.
    timeout_s: Seconds that one command may take, the step that `run` runs too.
    """

    def __init__(self, command: Sequence[str], *, timeout_s: float) -> None:
        self._command, self._timeout_s = command, timeout_s
        self._pexpect = _loaded()

    def __enter__(self) -> Prompt:
        first, *rest = self._command
        try:
            self._child: Any = self._pexpect.spawn(first, rest, timeout=self._timeout_s, echo=False, encoding="utf-8",
                                                   codec_errors="replace", dimensions=(50, 1000))  # fmt: skip
        except self._pexpect.ExceptionPexpect as error:
            raise UsageError(
                f"{first}: cannot be run; give a command that starts the training"
            ) from error
        self._child.delaybeforesend = (
            None  # made for passwords, and a step has thousands of tensors
        )
        return self

    def __exit__(self, *_: object) -> None:
        self._child.close(force=True)

    def wait(self) -> str:
        """Return the output until the next prompt. Raises UsageError if the program ends before, or takes too long."""
        ways = [PROMPT, self._pexpect.EOF, self._pexpect.TIMEOUT]
        found = self._child.expect_exact(ways)
        answer = _CONTROLS.sub("", self._child.before or "").strip()
        if found == 0:
            return answer
        said = f"; the last it said: {answer[-_LAST:]}" if answer else ""
        if found == 1:
            raise UsageError(
                f"{' '.join(self._command)}: ended before the prompt {PROMPT}{said}; wrap its session with"
                ' tf_debug.LocalCLIDebugWrapperSession(session, ui_type="readline")'
            )
        raise UsageError(
            f"{' '.join(self._command)}: no prompt {PROMPT} within {self._timeout_s:g} s{said}; give a longer"
            " --timeout"
        )

    def ask(self, command: str) -> str:
        """Return the answer to a command."""
        self._child.sendline(command)
        return self.wait()

    def leave(self) -> None:
        """Type `exit`, and let the program end by itself if it does so in time."""
        self._child.sendline("exit")
        self._child.expect([self._pexpect.EOF, self._pexpect.TIMEOUT])


def _loaded() -> Any:
    try:
        return importlib.import_module("pexpect")
    except ImportError as error:
        raise UsageError(
            "typing into tfdbg needs pexpect; pip install 'lockstep-numerics[interop-names]'"
        ) from error


def written(file: Path) -> bool:
    """Whether a file is there and not empty."""
    return file.is_file() and file.stat().st_size > 0


__all__ = ["PROMPT", "Prompt", "written"]
