"""Requests of a served model that its reference is asked too, after they were answered."""

from __future__ import annotations

import asyncio
import json
import logging
from collections import Counter, deque
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any, Protocol

from lockstep.wings.serve.failures import RequestError
from lockstep.wings.serve.parity.reference import SERVED
from lockstep.wings.serve.servable import Array, Arrays

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
    """What was found of a model so far.

    `counts` are requests: `answered`, of which `compared` as `agree`, `differ` and `not judged`; `skipped`, as too many
    waited; `failed`, as the reference did; `other versions` are those that another version answered, of which nothing
    is said. `first` is the first that differed.
    """

    version: int
    counts: Counter[str] = field(default_factory=Counter)
    first: dict[str, Any] | None = None
    reason: str = ""

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
            "first": self.first,
        }
        return told | ({"reason": self.reason} if self.reason else {})


class Shadow:
    """The reference of one model.

    Parameters
    ----------
    model
        Its name.
    runner
        Of the reference (`parity.reference.Reference`), in a process of its own.
    share
        Of the answered requests that are compared: the first, and then as many as make this share; 1 for all.
    version
        Which is held against it: of another nobody said that it has this reference.
    """

    def __init__(self, model: str, runner: Runner, share: Fraction, version: int) -> None:
        self._model, self._runner, self._share = model, runner, share
        self._waiting: deque[_Taken] = deque()
        self._task: asyncio.Task[None] | None = None
        self.parity = Parity(version)

    def offer(self, request_id: str, version: int, inputs: Arrays, results: Arrays) -> None:
        """A request was answered; it is taken where its number is due, and compared later."""
        counts = self.parity.counts
        if version != self.parity.version:
            counts["other versions"] += 1
            return
        counts["answered"] += 1
        number = counts["answered"]
        if -(-number * self._share // 1) == -(-(number - 1) * self._share // 1):
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
        if outcome == "differ" and self.parity.first is None:
            self.parity.first = {
                "request": taken.number, "id": taken.id, "version": str(taken.version), **told
            }  # fmt: skip
            _LOG.warning("%s leaves its reference: %s", self._model, sentence(self.parity.first))


def sentence(first: dict[str, Any]) -> str:
    """The first request that differed, in words and figures."""
    worst = next(one for one in first["outputs"] if one["outcome"] == "differ")
    figures = (
        worst["words"]
        or f"{worst['difference']:.3g} off, where {worst['tolerance']:.3g} is rounding"
    )
    named = f" ({first['id']})" if first["id"] else ""
    parts = [f"output {worst['output']} of request {first['request']}{named} is {figures}"]
    if first.get("compare"):
        parts.append(f"which operator: {first['compare']}")
    elif first.get("not_kept"):
        parts.append(first["not_kept"])
    return "; ".join(parts)
