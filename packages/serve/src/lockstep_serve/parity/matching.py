"""Which tensor of a reference is which of the served model: by name, or by place where names differ."""

from __future__ import annotations

from collections.abc import Sequence

from lockstep.errors import UsageError
from lockstep_serve.servable import BYTES, TensorSpec


def matched(
    what: str, served: Sequence[TensorSpec], reference: Sequence[TensorSpec]
) -> dict[str, str]:
    """The reference's names by those of the served model.

    what: "takes" or "gives", as errors say it.
    served, reference: Inputs of both, or outputs of both.

    Raises UsageError if they are neither of the same names, nor as many of the same kinds in the same order.
    """
    own, others = [one.name for one in served], [one.name for one in reference]
    by_name = set(own) <= set(others) and (what == "gives" or len(own) == len(others))
    if not by_name and (len(own) != len(others) or _elsewhere(own, others)):
        raise _unlike(what, served, reference)
    names = dict(zip(own, own if by_name else others, strict=True))
    specs = {one.name: one for one in reference}
    if not all(_alike(what, one, specs[names[one.name]]) for one in served):
        raise _unlike(what, served, reference)
    return names


def _elsewhere(own: Sequence[str], others: Sequence[str]) -> bool:
    """Whether a name that both have is at another place in one: by place, it would be taken for something else."""
    return any(one in others and one != other for one, other in zip(own, others, strict=True))


def _alike(what: str, served: TensorSpec, reference: TensorSpec) -> bool:
    """Whether two tensors may be the same; floats that are given may be of another width each."""
    floats = what == "gives" and served.dtype.kind == reference.dtype.kind == "f"
    shapes = len(served.shape) == len(reference.shape) and all(
        one == other or -1 in (one, other)
        for one, other in zip(served.shape, reference.shape, strict=True)
    )
    return shapes and (served.dtype == reference.dtype or floats)


def _unlike(what: str, served: Sequence[TensorSpec], reference: Sequence[TensorSpec]) -> UsageError:
    return UsageError(
        f"--shadow: the model {what} {_listed(served)}, and its reference {_listed(reference)}; give both the same"
        " names, or as many of the same kinds in the same order (a signature.json beside a .pt2 names its tensors)"
    )


def _listed(specs: Sequence[TensorSpec]) -> str:
    return ", ".join(
        f"{one.name} ({'BYTES' if one.dtype == BYTES else one.dtype}{list(one.shape)})"
        for one in specs
    )
