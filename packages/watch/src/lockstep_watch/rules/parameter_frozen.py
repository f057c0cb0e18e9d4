"""Parameters that do not learn because somebody has frozen them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from lockstep.terminal import listed
from lockstep_watch.observed import Hit, ObservedStep

_LEARNED = ("parameter-frozen", "had a gradient")


def parameter_frozen(step: ObservedStep, *, steps: int = 3) -> Iterator[Hit]:
    """A parameter is frozen by `requires_grad_(False)`: from the start, or since a step of this training.

    Formula: `requires_grad` is off. Both are notes, as it may be meant; each is told once.

    Usual cause: fine-tuning, where it is meant; a loop over the wrong module's parameters, a model whose head is
    not set back.

    Cure: check whether you meant these parameters; `lockstep check ref cand` lists the frozen ones of a run that
    works.

    Source: PyTorch's notes on autograd mechanics ("Setting requires_grad").
    """
    learned: set[str] = step.memory.facts.setdefault(_LEARNED, set())
    learned |= set(step.gradients)
    frozen = sorted(name for name, trains in step.manifest.trainable.items() if not trains)
    later = [name for name in frozen if name in learned]
    if later:
        words = f"{listed(later)} had gradients before and {_are(later)} frozen now"
        yield step.hit("frozen later: " + ", ".join(later), words, is_note=True)
    held = set(frozen) & step.held_parameters
    if step.memory.in_a_row("frozen", "", bool(frozen)) >= steps and set(frozen) != set(later):
        whole = len(step.manifest.trainable)
        beside = f"; the optimizer holds {len(held)} of them" if held else ""
        words = f"{len(frozen)} of {whole} parameters are frozen from the start: {listed(frozen)}{beside}"
        yield step.hit("frozen", words, is_note=True)


def _are(names: Sequence[str]) -> str:
    return "is" if len(names) == 1 else "are"
