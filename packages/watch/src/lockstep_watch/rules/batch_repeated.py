"""A batch that comes again and again."""

from __future__ import annotations

from collections.abc import Iterator

from lockstep.recordings import CallKind, Role
from lockstep_watch.observed import Hit, Memory, ObservedStep

_LAST = ("batch-repeated", "last batch")
_RUN = ("batch-repeated", "steps with it")
_LONGEST = ("batch-repeated", "most steps with one before")
_LOADERS = ("batch-repeated", "samples and batch size of loaders")
_CHANGES = ("batch-repeated", "changes")


def batch_repeated(
    step: ObservedStep, *, steps: int = 3, others: int = 5, from_start: int = 20
) -> Iterator[Hit]:
    """The same batch comes several times in a row, where batches differed before.

    Formula: all tensors of two elements or more that enter the step are to the last bit those of the watched step
    before, after `others` changes of the batch and more than twice as long as any batch stayed before. Not counted:
    training on all data at once, several passes over a batch (PPO). It is a note if one batch alone came in the
    first `from_start` watched steps although every loader has more samples: you may mean to learn one batch by
    heart.

    Usual cause: a loader whose iterator is made anew and read once, a cache that is not moved on, a worker that hangs
    and hands out its last batch.

    Cure: make the iterator once in each epoch; look at your sampler and its seed.

    Source: MindInsight's method for accuracy problems ("look at the input data").
    """
    loaders = step.memory.facts.setdefault(_LOADERS, {})
    for one in step.manifest.loaders:  # each is told where it is met first
        loaders[one.index] = one.settings.get("samples"), one.settings.get("batch_size")
    batch = _batch(step)
    if batch is None:
        return
    memory = step.memory
    run = _run(memory, batch)
    longest, changes = memory.facts.get(_LONGEST, 0), memory.facts.get(_CHANGES, 0)
    if run >= steps and run > 2 * longest and changes >= others:
        words = f"the same batch has come in {run} watched steps in a row"
        yield step.hit("batch", words, value=float(run), limit=float(steps))
    elif not changes and run >= from_start and (more := _more_samples(step)):
        words = f"the same batch has come in every step so far, and the data loader has {more}"
        yield step.hit("one batch", words, is_note=True)


def _more_samples(step: ObservedStep) -> str:
    """What the loaders have more than a batch, in words; nothing where one has not, or it is not known of one."""
    sizes = list(step.memory.facts[_LOADERS].values())
    if not sizes or not all(samples and batch and samples > batch for samples, batch in sizes):
        return ""
    return f"{sizes[0][0]} samples, of which a batch is {sizes[0][1]}"


def _batch(step: ObservedStep) -> tuple[str, ...] | None:
    records = [one for call in step.calls_of(CallKind.DATA) for one in call.with_role(Role.OUTPUT)]
    digests = [one.digest for one in records if one.content.numel > 1]
    known = [one for one in digests if one]
    return tuple(sorted(known)) if known and len(known) == len(digests) else None


def _run(memory: Memory, batch: tuple[str, ...]) -> int:
    """In how many watched steps in a row this batch has come."""
    facts = memory.facts
    if facts.get(_LAST) != batch:
        if _LAST in facts:
            facts[_CHANGES] = facts.get(_CHANGES, 0) + 1
            facts[_LONGEST] = max(facts.get(_LONGEST, 0), facts[_RUN])
        facts[_LAST], facts[_RUN] = batch, 0
    facts[_RUN] += 1
    run: int = facts[_RUN]
    return run
