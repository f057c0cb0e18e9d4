"""Ranks that train one model and no longer hold the same one."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from lockstep.recordings import NoteKind
from lockstep_watch.observed import ALL_RANKS, Hit, ObservedStep, Update

_STATES = ("replicas-differ", "states of ranks")
_EQUAL = ("replicas-differ", "equal before")
_WAITING_STEPS = 64


@dataclass(frozen=True, slots=True)
class _State:
    """Digests of a parameter before and behind its update, and of the gradient."""

    before: str
    gradient: str
    after: str


def replicas_differ(step: ObservedStep) -> Iterator[Hit]:
    """A parameter that was the same on all ranks is not any more.

    Formula: the digests of a parameter after its update differ between ranks, where in an earlier watched step the
    parameter, its gradient and their result were the same on all. So parts of a parameter (FSDP, tensor
    parallelism) never fire.

    Usual cause: a gradient that is not reduced in some steps (`no_sync`, a parameter that is made late), an update
    or a clipping that depends on the rank, a scaler that skips on one rank only, a broken device.

    Cure: look at the update of that parameter on both ranks; if your models may drift between averages (local SGD),
    `--skip-rule replicas-differ`.

    Source: PyTorch's notes on DistributedDataParallel: replicas stay the same because gradients are.
    """
    if step.manifest.world_size < 2:
        return
    shared = step.memory.shared
    states = shared.setdefault(_STATES, {})
    states.setdefault(step.number, {})[step.rank] = _states(step)
    for number in sorted(states)[:-_WAITING_STEPS]:
        del states[number]
    ranks = states.get(step.number, {})
    if len(ranks) < step.manifest.world_size:
        return
    del states[step.number]
    equal: set[str] = shared.setdefault(_EQUAL, set())
    names = set.intersection(*(set(one) for one in ranks.values()))
    found = {name: [one[name] for one in ranks.values()] for name in names}
    apart = sorted(
        name
        for name, ones in found.items()
        if name in equal and len({one.after for one in ones}) > 1
    )
    equal.update(name for name, ones in found.items() if len(set(ones)) == 1)
    if apart:
        others = f" and {len(apart) - 1} more" if len(apart) > 1 else ""
        words = f"{apart[0]}{others} differ between the {len(ranks)} ranks and did not before"
        yield replace(step.hit("replicas", words, value=float(len(apart))), rank=ALL_RANKS)


def _states(step: ObservedStep) -> dict[str, _State]:
    found = {one.name: _state(one) for one in step.updates}
    return {name: one for name, one in found.items() if one is not None}


def _state(update: Update) -> _State | None:
    before, gradient, after = update.before, update.gradient, update.after
    if before is None or gradient is None or after is None:
        return None
    if after.content.told.kind is NoteKind.PART:
        return None
    if not (before.digest and gradient.digest and after.digest) or not update.has_gradient:
        return None
    return _State(before.digest, gradient.digest, after.digest)
