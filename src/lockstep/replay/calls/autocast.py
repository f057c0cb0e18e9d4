"""Tell by dtypes whether autocast rounded the inputs of a call."""

from __future__ import annotations

import torch

from lockstep.core.dtypes import unit_roundoff
from lockstep.core.operators import Family, family_of
from lockstep.core.records import Call
from lockstep.core.site import Role
from lockstep.replay.calls.rebuild import torch_dtype


def cast_of(call: Call) -> torch.dtype | None:
    """Dtype that autocast gave the inputs of a call before it computed, where it did.

    It shows in an output whose dtype is not that of the inputs though no argument asks for one.
    Normalisations take parameters of a wider dtype as they are; moving data promotes.
    """
    family = family_of(call.site.op)
    outputs = {r.dtype for r in call.with_role(Role.OUTPUT) if unit_roundoff(r.dtype) > 0}
    inputs = [r.dtype for r in call.with_role(Role.INPUT) if unit_roundoff(r.dtype) > 0]
    if len(outputs) != 1 or not inputs or family is Family.MOVEMENT:
        return None
    output = next(iter(outputs))
    asked = any(
        isinstance(value, str) and value.startswith("torch.") for value in call.arguments.values()
    )
    if asked or all(dtype == output for dtype in inputs):
        return None
    if family is Family.NORMALISATION and inputs[0] == output:
        return None
    cast = torch_dtype(output)
    if cast.is_complex or any(torch_dtype(dtype).is_complex for dtype in inputs):
        return None  # a transform or a magnitude: autocast knows real numbers alone
    return cast
