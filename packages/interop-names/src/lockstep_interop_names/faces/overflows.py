"""Find operators that make NaN or inf from finite numbers, as the overflow checks of the old tools do."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from lockstep.recordings import Call, Part, Phase, TensorRecord, first_made, is_finite
from lockstep_interop_names.faces.api_calls import ApiPass


def overflows_in(passes: Iterable[ApiPass], calls: Sequence[Call]) -> Iterator[ApiPass]:
    """Those of a step's passes out of which a number comes that is not finite, where all that went in were.

    passes, calls: All of the step.
    """
    made = {
        (one.call.id, one.part is Part.BACKWARD)
        for one in first_made(calls)
        if all(map(is_finite, one.taken))
    }
    return (
        one
        for one in passes
        if (one.call.id, one.phase is Phase.BACKWARD) in made
        and not all(map(is_finite, one.leaving))  # and not a buffer alone
    )


def entered_in(passes: Iterable[ApiPass]) -> tuple[ApiPass, TensorRecord] | None:
    """Return where NaN or infinite numbers come into a step from outside, if they reach a gradient; else None.

    What enters before any operator has made such a number is an input of the step, or a parameter. A mask of -inf
    enters too, and reaches no gradient.
    """
    passes = list(passes)
    reached = any(
        one.phase is Phase.BACKWARD and not all(map(is_finite, one.leaving)) for one in passes
    )
    for one in passes:
        for record in one.entering:
            if reached and not is_finite(record):
                return one, record
        if not all(map(is_finite, one.leaving)):
            return None
    return None


def entered_sentence(passes: Iterable[ApiPass], step: int) -> str | None:
    """Return what came in from outside, where, and at which step, on one line; None where nothing did."""
    found = entered_in(passes)
    return None if found is None else entered_words(*found, step)


def entered_words(one: ApiPass, record: TensorRecord, step: int) -> str:
    """Return a line on the value that came in, its place and its step."""
    site = one.call.site
    where = f" at {one.call.source}" if one.call.source else ""
    return (
        f"infinite numbers or NaN entered at step {step}, by {record.argument or record.name} of"
        f" {site.module or 'the model'} ({site.op}){where}: no operator made them, so look at the input or the weights"
    )


def overflow_words(one: ApiPass, step: int) -> str:
    """Return a line on the overflow, the place of its call and its inputs."""
    made = next(record for record in one.leaving if not is_finite(record))
    numbers = made.statistics
    assert numbers is not None
    counts = ((numbers.nan_count, "NaN"), (numbers.inf_count, "inf"))
    found = " and ".join(f"{count} {name}" for count, name in counts if count)
    site = one.call.site
    where = f" at {one.call.source}" if one.call.source else ""
    return (
        f"overflow at step {step}, {one.phase.value} of {site.module or 'the model'} ({site.op}){where}:"
        f" {found} of {made.content.numel} elements ({made.dtype}), of finite numbers alone"
    )
