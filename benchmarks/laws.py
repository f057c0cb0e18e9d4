"""Where the verdict by laws and the one by pairs of calls differ: equal forms, and mistakes behind another spelling.

`python benchmarks/laws.py --every 4` takes each fourth of the equal forms in `tests/locate`, trains each in both
spellings, with its own mistake and with gradients that the other spelling loses, and prints a row where two verdicts
differ or one is wrong.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch

import lockstep
from lockstep.core.finding import Comparison, Verdict

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "locate"))

from chunked_forms import IN_PARTS
from equal_forms import PARTS, STEPS, VIEWS, EqualForms, Form, train
from spelled_forms import CONSTANTS, REJOINED, SPELLINGS

FORMS = VIEWS | PARTS | SPELLINGS | CONSTANTS | REJOINED | IN_PARTS


def hooked(form: Form) -> Form:
    """A form of whose gradient a hook takes 30 % away."""

    def lossy(written: torch.nn.Module, x: torch.Tensor) -> torch.Tensor:
        if x.requires_grad:
            x.register_hook(lambda gradient: gradient * 0.7)
        return form(written, x)

    return lossy


def detached(share: float, form: Form) -> Form:
    """A form that lets a share of its gradient go."""
    return lambda written, x: form(written, x.lerp(x.detach(), share))


def scaled(factor: float, form: Form) -> Form:
    """A form whose result is off by a factor."""
    return lambda written, x: form(written, x) * factor


def others(forms: EqualForms) -> Iterator[tuple[str, Form, Verdict]]:
    """What is compared with the first spelling, and what is right to say of it."""
    yield "another spelling", forms.other, Verdict.AGREE
    yield "its mistake", forms.mistake, Verdict.DIVERGED
    yield "a hook x0.7", hooked(forms.other), Verdict.DIVERGED
    for share in (1e-3, 1e-5):
        yield f"{share:g} of a gradient lost", detached(share, forms.other), Verdict.DIVERGED
        yield f"{share:g} off", scaled(1 + share, forms.other), Verdict.DIVERGED


@dataclass(frozen=True)
class Told:
    """Two verdicts on a pair."""

    name: str
    what: str
    right: Verdict
    found: Comparison

    @property
    def by_pairs(self) -> str:
        """The verdict by pairs of calls alone."""
        laws = self.found.laws
        return self.found.verdict.value if laws is None else laws.without

    @property
    def row(self) -> str:
        """As a line of a table."""
        laws = self.found.laws
        why = "; ".join(laws.not_judged) if laws else "no laws"
        cells = (self.name, self.what, self.right.value, self.by_pairs, self.found.verdict.value)
        return f"| {' | '.join((*cells, why))} |"


def told(directory: Path, save: str, name: str, forms: EqualForms) -> Iterator[Told]:
    """Record and compare one form with all that may stand in its place."""

    def recorded(form: Form, number: int) -> Path:
        path = directory / f"{number}"
        with lockstep.record(path, steps=f"0:{STEPS}", save=save, force=True):
            train(form, in_script=False)
        return path

    reference = recorded(forms.one, 0)
    for what, form, right in others(forms):
        yield Told(name, what, right, lockstep.compare_recordings(reference, recorded(form, 1)))


def main() -> None:
    """Print where verdicts differ or are wrong, and how many were right."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--every", type=int, default=1, help="each N-th form")
    parser.add_argument("--save", default="tensors", help="the weight of the recordings")
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    right: Counter[str] = Counter()
    print("| form | compared with | right | by pairs | with the laws | not judged by the laws |")
    print("|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as directory:
        for name in list(FORMS)[:: chosen.every]:
            for one in told(Path(directory), chosen.save, name, FORMS[name]):
                verdicts = one.by_pairs, one.found.verdict.value
                right.update(
                    kind
                    for kind, verdict in zip(("pairs", "laws"), verdicts, strict=True)
                    if verdict == one.right.value
                )
                right["all"] += 1
                if set(verdicts) != {one.right.value}:
                    print(one.row, flush=True)
    print(
        f"\nright: {right['pairs']} by pairs of calls, {right['laws']} with the laws, of {right['all']}"
    )


if __name__ == "__main__":
    main()
