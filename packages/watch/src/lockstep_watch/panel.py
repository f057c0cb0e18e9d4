"""The live panel: the latest numbers at the foot of a terminal, below the training's output."""

from __future__ import annotations

import codecs
import os
import shutil
import struct
import sys
import threading
import time
from contextlib import suppress
from types import TracebackType
from typing import Any

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from lockstep_watch.lines import fired_line, number_text
from lockstep_watch.watcher import Noted, RuleFired, StepWatched, WatchEvent

_READ_BYTES = 1 << 16
_MOST_RULES = 6


def is_wanted() -> bool:
    """Whether there is a terminal to draw on, that the training would print to as well."""
    return sys.stdout.isatty() and sys.stderr.isatty()


class Panel:
    """Draws while the block runs; the command prints into a terminal of its own, which is read and printed above.

    A terminal that is closed ends the drawing; what the command prints is read on, so that it never waits.
    """

    def __init__(self) -> None:
        import fcntl  # here, for Windows has none of the three, and no training is watched there
        import pty
        import termios

        self._console = Console(stderr=True)
        self._live = Live(console=self._console, refresh_per_second=4, transient=True)
        self._steps: dict[str, StepWatched] = {}
        self._rules: dict[str, str] = {}
        self._began_s = time.monotonic()
        self._count = 0
        self._closed = False
        self._master, self._slave = pty.openpty()
        size = shutil.get_terminal_size()
        fcntl.ioctl(
            self._slave, termios.TIOCSWINSZ, struct.pack("HHHH", size.lines, size.columns, 0, 0)
        )
        self._reader = threading.Thread(target=self._read, name="lockstep-panel", daemon=True)

    @property
    def streams(self) -> dict[str, Any]:
        """Where the command prints."""
        return {"stdout": self._slave, "stderr": self._slave}

    def __enter__(self) -> Panel:
        self._live.start()
        self._reader.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        os.close(self._slave)  # the last one to hold it: reading ends
        self._reader.join()
        os.close(self._master)
        with suppress(OSError):
            self._live.stop()

    def told(self, event: WatchEvent) -> None:
        """Take in what is new."""
        if isinstance(event, StepWatched):
            self._steps[event.rank] = event
            self._count += 1
        elif isinstance(event, RuleFired):
            self._rules.setdefault(event.hits[0].rule, fired_line(event.hits))
        elif isinstance(event, Noted):
            self.say(fired_line(event.notes))
        self._draw()

    def say(self, sentence: str) -> None:
        """Print a line above."""
        self._print(Text(f"lockstep: {sentence}"))

    def _draw(self) -> None:
        if not self._closed:
            try:
                self._live.update(self._drawn())
            except OSError:
                self._closed = True

    def _print(self, text: Text) -> None:
        if not self._closed:
            try:
                self._console.print(text)
            except OSError:
                self._closed = True

    def _drawn(self) -> Group:
        took_s = (time.monotonic() - self._began_s) / max(1, self._count / max(1, len(self._steps)))
        table = Table(show_edge=False, pad_edge=False, title_justify="left")
        for title in ("rank", "step", "loss", "gradient norm", "loss scale", "s a step"):
            table.add_column(title, justify="left" if title == "rank" else "right")
        for rank, step in sorted(self._steps.items()):
            scale = "-" if step.loss_scale is None else f"{step.loss_scale:g}"
            row = [number_text(step.loss), number_text(step.gradient_norm), scale, f"{took_s:.3g}"]
            table.add_row(rank, str(step.step), *row)
        shown = list(self._rules.values())[-_MOST_RULES:]
        rules = Text("\n".join(shown) or "no rule has fired", no_wrap=True, overflow="ellipsis")
        return Group(table, rules)

    def _read(self) -> None:
        rest, decoder = "", codecs.getincrementaldecoder("utf-8")("replace")
        while True:
            try:
                data = os.read(self._master, _READ_BYTES)
            except OSError:  # all that printed there have gone
                break
            if not data:
                break
            *lines, rest = (rest + decoder.decode(data)).replace("\r\n", "\n").split("\n")
            for line in lines:
                self._print(_shown(line))
        if rest:
            self._print(_shown(rest))


def _shown(line: str) -> Text:
    """A line as a terminal shows it at last: what was written over is gone."""
    return Text.from_ansi(line.rstrip("\r").rpartition("\r")[2])
