"""Comparisons under way and done, each in a process of its own, and the graphs that came of them."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lockstep.errors import LockstepError
from lockstep_ui.graph.layout import Layout, lay_out
from lockstep_ui.graph.union_graph import Tensors, UnionGraph, read_graph, read_tensors
from lockstep_ui.runs import Run

MOST_COMPARISONS = 2
"""Processes that are kept at a time, as each holds what its comparison found; the one longest not asked for ends."""

MOST_LAYOUTS = 6
_LONGEST_WAIT_S = 300.0
_FAILED_FOR_S = 10.0


class NoGraphError(LockstepError):
    """A graph could not be made; the text says why."""


@dataclass
class LaidOut:
    """A graph, and its latest layouts by which nodes are opened."""

    graph: UnionGraph
    path: Path
    layouts: OrderedDict[frozenset[int], Layout] = field(default_factory=OrderedDict)
    _tensors: Tensors | None = None

    @property
    def tensors(self) -> Tensors:
        """Read when the first one is asked for."""
        if self._tensors is None:
            self._tensors = read_tensors(self.path)
        return self._tensors

    def layout(self, opened: frozenset[int]) -> Layout:
        """The layout with these nodes opened."""
        if opened not in self.layouts:
            self.layouts[opened] = lay_out(self.graph, opened)
            while len(self.layouts) > MOST_LAYOUTS:
                self.layouts.popitem(last=False)
        return self.layouts[opened]


class ComparedPair:
    """One comparison in its process: how far it is, what it found, and graphs of its steps."""

    def __init__(self, reference: Run, candidate: Run) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="lockstep-ui-graph-")
        command = [sys.executable, "-m", "lockstep_ui.graph.comparing"]
        self._process = subprocess.Popen(
            [*command, str(reference.path), str(candidate.path), self._folder.name],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
        )  # fmt: skip
        self._heard = threading.Condition()
        self._asking = threading.Lock()
        self.progress: dict[str, Any] = {}
        self.answer: dict[str, Any] | None = None
        self.failed, self._failed_s = "", 0.0
        self._made: dict[tuple[str, int], LaidOut | str] = {}
        threading.Thread(target=self._listen, name="lockstep-ui-graph", daemon=True).start()

    def _listen(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as lines:
            for line in lines:
                if line.startswith("{"):
                    self._hear(json.loads(line))
        self._hear({"failed": f"comparing ended with {self._process.wait()}", "ended": True})

    def _hear(self, event: dict[str, Any]) -> None:
        with self._heard:
            if "progress" in event:
                self.progress = event
            elif "answer" in event:
                self.answer = event["answer"]
            elif "graph" in event:
                path = Path(event["graph"])
                self._made[_key(event)] = LaidOut(read_graph(path), path)
            elif "step" in event:
                self._made[_key(event)] = event["failed"]
            elif not self.failed:
                self.failed, self._failed_s = event["failed"], time.monotonic()
            self._heard.notify_all()

    def graph(self, rank: str, step: int) -> LaidOut:
        """The graph of a step, made where it is not there yet. Raises NoGraphError if it cannot be made."""
        key = rank, step
        with self._asking:
            if key not in self._made:
                known = self.answer is not None and any(
                    (one["rank"], one["step"]) == key for one in self.answer["steps"]
                )
                if not known:
                    raise NoGraphError(f"step {step} of {rank} was not compared")
                self._ask(f"{rank}\t{step}\n")
            self._wait(lambda: key in self._made or bool(self.failed))
        found = self._made.get(key, self.failed)
        if isinstance(found, str):
            self._made.pop(key, None)
            raise NoGraphError(found)
        return found

    def _ask(self, line: str) -> None:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(line)
            self._process.stdin.flush()
        except OSError as error:
            raise NoGraphError(self.failed or "comparing has ended") from error

    def _wait(self, is_there: Callable[[], bool]) -> None:
        with self._heard:
            if not self._heard.wait_for(is_there, _LONGEST_WAIT_S):
                raise NoGraphError("making the graph took too long; lockstep report shows the same")

    @property
    def may_be_tried_again(self) -> bool:
        """Whether it failed so long ago that the reason may be gone; whoever waits has heard of it by then."""
        is_old = time.monotonic() - self._failed_s > _FAILED_FOR_S
        return bool(self.failed) and self.answer is None and is_old

    def state(self) -> dict[str, Any]:
        """How far it is, what it found, or why it failed."""
        if self.answer is not None:
            return {"answer": self.answer}
        return {"failed": self.failed} if self.failed else {"progress": self.progress}

    def close(self) -> None:
        """End the process."""
        self._process.kill()
        self._process.wait()
        self._folder.cleanup()


def _key(event: dict[str, Any]) -> tuple[str, int]:
    rank, step = event["step"]
    return rank, step


class Comparisons:
    """Comparisons by their two runs as those are now; at most `MOST_COMPARISONS` at a time."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._pairs: OrderedDict[tuple[str, ...], ComparedPair] = OrderedDict()

    def pair(self, reference: Run, candidate: Run) -> ComparedPair:
        """The comparison of two runs, begun where there is none yet, or where one of them has changed since."""
        key = reference.key, reference.stamp, candidate.key, candidate.stamp
        with self._lock:
            known = self._pairs.get(key)
            if known is None or known.may_be_tried_again:
                if known is not None:
                    self._pairs.pop(key).close()
                known = self._pairs[key] = ComparedPair(reference, candidate)
            self._pairs.move_to_end(key)
            while len(self._pairs) > MOST_COMPARISONS:
                self._pairs.popitem(last=False)[1].close()
            return known

    def close(self) -> None:
        """End all processes."""
        with self._lock:
            for pair in self._pairs.values():
                pair.close()
            self._pairs.clear()
