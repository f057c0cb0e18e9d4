"""A process that compares two recordings, then makes the graph of each requested step.

`python -m lockstep_ui.graph.comparing REFERENCE CANDIDATE FOLDER` writes a line of JSON for whatever happens; it
takes a line with a rank, a tab and a step for a graph to make, and ends with its input.
"""

from __future__ import annotations

import json
import sys
import time
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from lockstep.compare import (
    KINDS,
    NO_PARTNER,
    NOT_JUDGED,
    Comparison,
    Finding,
    Origin,
    Outcome,
    Pairing,
    answer_of,
    compare_recordings,
    identity_of,
    kind_of,
    margin_of,
    pair_recordings,
    prepare_measuring,
    read_indices,
)
from lockstep.errors import LockstepError
from lockstep.recordings import Recording, Role, open_recording
from lockstep.terminal import times
from lockstep_ui.graph.building import Key, built_graph, key_of
from lockstep_ui.graph.union_graph import write_graph

_PAUSE_S = 0.2
"""Between two lines that tell how far comparing has come."""

_PLACES = {kind.name: place for place, kind in enumerate(KINDS)}
Step = tuple[str, int]
"""A rank, as the reference calls it, and a step of it."""


class Compared:
    """A comparison by rank and step, of which graphs are made."""

    def __init__(self, comparison: Comparison, reference: Recording, candidate: Recording) -> None:
        self._comparison = comparison
        self._pairing: Pairing = pair_recordings(reference, candidate)
        both = self._pairing.ranks.both.items()
        self._reference_rank = {of_candidate.name: name for name, (_, of_candidate) in both}
        self._origins: dict[Step, list[Origin]] = defaultdict(list)
        for origin in comparison.origins:
            self._origins[self._place(origin.finding)].append(origin)
        self._findings: dict[Step, list[Finding]] = defaultdict(list)
        for finding in comparison.findings:
            self._findings[self._place(finding)].append(finding)

    def _place(self, finding: Finding) -> Step:
        record = finding.pair.present
        alone = finding.pair.reference is None
        return self._reference_rank.get(
            record.rank, record.rank
        ) if alone else record.rank, record.step

    def answer(self) -> dict[str, Any]:
        """The verdict in words, every step with the kind that matters most in it, and where the first origin lies."""
        comparison = self._comparison
        answer = answer_of(comparison)
        first = self._place(comparison.origins[0].finding) if comparison.origins else None
        return {
            "outcome": comparison.outcome,
            "word": answer.word,
            "rest": answer.rest,
            "not_compared": list(comparison.not_compared),
            "steps": [self._step(step) for step in self._steps()],
            "origin": first,
            "loss": self._loss(),
            "ends": comparison.ends.words if comparison.ends is not None else "",
        }

    def _loss(self) -> dict[str, Any]:
        """At how many steps losses were judged, and the first one at which one is beyond what noise explains."""
        judged: set[int] = set()
        for step in sorted(self._findings, key=lambda one: one[1]):
            for kind, finding in self._said(step).values():
                record = finding.pair.present
                if record.role is not Role.LOSS or kind in (NOT_JUDGED, NO_PARTNER):
                    continue
                judged.add(record.step)
                if finding.outcome is Outcome.DIFFER:
                    margin = margin_of(finding, kind)
                    words = f"{times(margin)} its noise floor" if margin > 0 else "differs"
                    return {"judged": len(judged), "step": step[1], "rank": step[0], "words": words}
        return {"judged": len(judged), "step": None, "rank": "", "words": ""}

    def _steps(self) -> Iterator[Step]:
        for number, ranks in self._pairing.shared_steps(None).items():
            for rank in ranks:
                yield rank, number

    def _step(self, step: Step) -> dict[str, Any]:
        said = [_PLACES[kind] for kind, _ in self._said(step).values()]
        return {"rank": step[0], "step": step[1], "worst": min(said, default=-1)}

    def _said(self, step: Step) -> dict[Key, tuple[str, Finding]]:
        origins = {identity_of(one.finding): one for one in self._origins[step]}
        findings = [*self._findings[step], *(one.finding for one in self._origins[step])]
        return {
            key_of(one.pair): (kind_of(one, origins.get(identity_of(one)), self._comparison), one)
            for one in findings
        }

    def write(self, rank: str, number: int, path: Path) -> None:
        """Make the graph of one step."""
        aligned = self._pairing.step(number, [rank])[rank]
        origins = [key_of(one.finding.pair) for one in self._origins[rank, number]]
        title = f"step {number}" + (f", {rank}" if len(self._pairing.ranks.both) > 1 else "")
        write_graph(*built_graph(title, aligned, self._said((rank, number)), origins), path)
        self._pairing.close_tensors()


def tell(**event: Any) -> None:
    """One line of what happens."""
    sys.stdout.write(json.dumps(event) + "\n")
    sys.stdout.flush()


def compare(reference: Path, candidate: Path) -> Compared:
    """Compare as `lockstep compare` does, and tell how far that has come."""
    recordings = open_recording(reference), open_recording(candidate)
    due = 0.0

    def progress(what: str, done: int, total: int) -> None:
        nonlocal due
        if time.monotonic() >= due:
            tell(progress=what, done=done, total=total)
            due = time.monotonic() + _PAUSE_S

    read_indices(recordings, progress)
    prepare_measuring(recordings)
    return Compared(compare_recordings(*recordings, progress=progress), *recordings)


def main(reference: str, candidate: str, folder: str) -> None:
    """Compare, then make graphs until nobody asks any more."""
    try:
        compared = compare(Path(reference), Path(candidate))
        tell(answer=compared.answer())
    except LockstepError as error:
        tell(failed=str(error))
        return
    for line in sys.stdin:
        rank, _, step = line.rstrip("\n").rpartition("\t")
        path = Path(folder) / f"{rank}-{step}.graph"
        try:
            compared.write(rank, int(step), path)
        except (LockstepError, OSError) as error:
            tell(step=[rank, int(step)], failed=str(error))
        else:
            tell(step=[rank, int(step)], graph=str(path))


if __name__ == "__main__":
    main(*sys.argv[1:])
