"""Choose requests of a served model, and ask the reference after they were answered."""

from __future__ import annotations

import asyncio
import json
import logging
from collections import Counter, deque
from dataclasses import dataclass, field
from fractions import Fraction
from random import Random, SystemRandom
from typing import Any, Protocol

from lockstep.terminal import counted
from lockstep_serve.failures import RequestError
from lockstep_serve.parity.distribution import Errors
from lockstep_serve.parity.reference import SERVED
from lockstep_serve.servable import Array, Arrays

_LOG = logging.getLogger("lockstep.serve")
_MOST_WAITING = 64
"""Requests that may wait for the reference; beyond them one is left out, and counted."""


class Runner(Protocol):
    """Runs the reference."""

    async def run(self, inputs: Arrays) -> dict[str, Array]: ...

    async def close(self) -> None: ...


@dataclass(slots=True)
class _Taken:
    """A request that waits for the reference."""

    number: int
    id: str
    version: int
    given: dict[str, Array]


@dataclass(slots=True)
class Parity:
    """The findings about a model so far.

    `counts` are requests: `answered`, of which `compared` as `agree`, `differ` and `not judged`; `skipped`, as too many
    waited; `failed`, as the reference did; `other versions` are those that another version answered, of which nothing
    is said. `first` is the first that differed, `errors` the distances of each output, and `judged by` who has said
    what they may be, where that is not rounding.
    """

    version: int
    counts: Counter[str] = field(default_factory=Counter)
    first: dict[str, Any] | None = None
    reason: str = ""
    errors: dict[str, Errors] = field(default_factory=dict)
    tolerance_from: str = "rounding"

    @property
    def verdict(self) -> str:
        """`diverged` where one request differed; `agree` where every one that was compared could be judged, and did."""
        if self.first is not None:
            return "diverged"
        compared = self.counts["compared"]
        return (
            "agree"
            if compared and self.counts["agree"] == compared and not self.reason
            else "incomparable"
        )

    def told(self) -> dict[str, Any]:
        """As JSON has it."""
        names = (
            "answered", "compared", "agree", "differ", "not judged", "skipped", "failed", "other versions"
        )  # fmt: skip
        counts = {name.replace(" ", "_"): self.counts[name] for name in names}
        told = {
            "verdict": self.verdict,
            "version": str(self.version),
            **counts,
            "tolerance_from": self.tolerance_from,
            "errors": {name: one.told() for name, one in self.errors.items()},
            "first": self.first,
            "sentence": self.sentence(),
        }
        return told | ({"reason": self.reason} if self.reason else {})

    def sentence(self) -> str:
        """Return the findings in words: the compared requests first, and nothing about the others."""
        counts = self.counts
        if not counts["compared"]:
            why = self.reason or (
                f"{counts['skipped']} waited too long, and no other was drawn"
                if counts["skipped"]
                else "none was drawn" if counts["answered"] else "none was answered"
            )  # fmt: skip
            return f"NOTHING COMPARED of {counted(counts['answered'], 'answered request')}: {why}"
        words = {"agree": "AGREE", "diverged": "DIVERGED", "incomparable": "NOT JUDGED"}
        answered = counted(counts["answered"], "answered request")
        parts = [f"{words[self.verdict]}: {counts['compared']} of {answered} compared"]
        parts += [
            f"{counts[name]} {name}"
            for name in ("differ", "not judged", "skipped", "failed")
            if counts[name]
        ]
        parts += [f"{name}: {one}" for name, one in self.errors.items() if one.count]
        return "; ".join(parts)


class Shadow:
    """The reference of one model.

    model: Its name.
    runner: Of the reference (`parity.reference.Reference`), in a process of its own.
    share: Chance by which an answered request is compared, each by a draw of its own; 1 for all.
    version: Which is held against it: of another nobody said that it has this reference.
    draw: Gives numbers from 0 to below 1; a generator of the shadow's own where none is given.
    """

    def __init__(
        self, model: str, runner: Runner, share: Fraction, version: int, draw: Random | None = None
    ) -> None:
        self._model, self._runner, self._share = model, runner, share
        self._draw = draw or SystemRandom()
        self._waiting: deque[_Taken] = deque()
        self._task: asyncio.Task[None] | None = None
        self.parity = Parity(version)

    def offer(self, request_id: str, version: int, inputs: Arrays, results: Arrays) -> None:
        """A request was answered; it is taken where it is drawn, and compared later."""
        counts = self.parity.counts
        if version != self.parity.version:
            counts["other versions"] += 1
            return
        counts["answered"] += 1
        number = counts["answered"]
        if self._draw.random() >= self._share:
            return
        if len(self._waiting) >= _MOST_WAITING:
            counts["skipped"] += 1
            return
        given = {**inputs, **{f"{SERVED}{name}": one for name, one in results.items()}}
        self._waiting.append(_Taken(number, request_id, version, given))
        if self._task is None:
            self._task = asyncio.ensure_future(self._compare())

    async def settled(self) -> None:
        """Compare all that waits."""
        if self._task is not None:
            await self._task

    async def close(self) -> None:
        """Compare no more, and end the reference."""
        self.parity.counts["skipped"] += len(self._waiting)
        self._waiting.clear()
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
        await self._runner.close()

    async def _compare(self) -> None:
        try:
            while self._waiting:
                await self._compare_one(self._waiting.popleft())
        finally:
            self._task = None

    async def _compare_one(self, taken: _Taken) -> None:
        counts = self.parity.counts
        try:
            told = json.loads((await self._runner.run(taken.given))["judged"][0])
        except asyncio.CancelledError:
            counts["skipped"] += 1
            raise
        except RequestError as error:
            counts["failed"] += 1
            if not self.parity.reason:
                self.parity.reason = f"the reference failed on request {taken.number}: {error}"
                _LOG.warning("%s: %s", self._model, self.parity.reason)
            return
        outcomes = [one["outcome"] for one in told["outputs"]]
        outcome = next((one for one in ("differ", "not judged") if one in outcomes), "agree")
        counts["compared"] += 1
        counts[outcome] += 1
        self.parity.tolerance_from = told.get("tolerance_from", self.parity.tolerance_from)
        for one in told["outputs"]:
            errors = self.parity.errors.setdefault(one["output"], Errors(self._draw))
            errors.add(one["difference"], one.get("top1_same", 0), one.get("top1_of", 0))
        if outcome == "differ" and self.parity.first is None:
            self.parity.first = {
                "request": taken.number, "id": taken.id, "version": str(taken.version), **told
            }  # fmt: skip
            _LOG.warning("%s leaves its reference: %s", self._model, sentence(self.parity.first))


def sentence(first: dict[str, Any]) -> str:
    """The first request that differed, in words and figures."""
    worst = next(one for one in first["outputs"] if one["outcome"] == "differ")
    allowed = "is allowed" if first.get("tolerance_from") else "is rounding"
    figures = (
        worst["words"] or f"{worst['difference']:.3g} off, where {worst['tolerance']:.3g} {allowed}"
    )
    named = f" ({first['id']})" if first["id"] else ""
    parts = [f"output {worst['output']} of request {first['request']}{named} is {figures}"]
    most = first.get("most_added_at")
    if most:
        parts.append(
            f"most is added at {most['layer']} ({most['before']:.3g} before, {most['after']:.3g} after);"
            f" by layer: {first['layers']}"
        )
    if first.get("compare"):
        parts.append(f"which operator: {first['compare']}")
    elif first.get("not_kept"):
        parts.append(first["not_kept"])
    return "; ".join(parts)
