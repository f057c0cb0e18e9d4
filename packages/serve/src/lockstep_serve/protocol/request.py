"""A request and its answer, the same for both transports."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from lockstep_serve.failures import RequestError
from lockstep_serve.protocol.tensors import datatype_of
from lockstep_serve.repository import Repository, Version
from lockstep_serve.servable import Array, fits


@dataclass(slots=True)
class InferRequest:
    """What is asked: of which model, with which inputs, which outputs are wanted (all where none is named), and when it
    came by the clock of the event loop."""

    model: str
    version: str
    id: str
    inputs: dict[str, Array]
    outputs: list[str]
    arrived_s: float | None = None


@dataclass(slots=True)
class InferResponse:
    """The answer to a request, with the names of outputs that hold NaN."""

    version: Version
    id: str
    outputs: dict[str, Array]
    not_a_number: list[str] = field(default_factory=list)


async def answered(repository: Repository, request: InferRequest) -> InferResponse:
    """Hold a request against the model's signature, and run it.

    Raises RequestError if it is refused, or the model fails.
    """
    version = repository.get(request.model, request.version)
    check(version, request)
    results = await version.batcher.infer(request.inputs, request.arrived_s)
    shadow = repository.shadows.get(version.name)
    if shadow is not None:
        shadow.offer(request.id, version.number, request.inputs, results)
    names = request.outputs or [one.name for one in version.signature.outputs]
    outputs = {name: results[name] for name in names}
    odd = [
        name for name, value in outputs.items() if value.dtype.kind == "f" and np.isnan(value).any()
    ]
    return InferResponse(version, request.id, outputs, odd)


def check(version: Version, request: InferRequest) -> None:
    """Hold a request against the model's signature. Raises RequestError if names, datatypes or shapes are others."""
    signature = version.signature
    specs = {one.name: one for one in signature.inputs}
    if request.inputs.keys() != specs.keys():
        unknown = sorted(request.inputs.keys() - specs.keys())
        missing = sorted(specs.keys() - request.inputs.keys())
        what = f"has no input {unknown[0]}" if unknown else f"needs its input {missing[0]}"
        raise RequestError(f"{version.name} {what}; it takes {', '.join(specs)}")
    batched = {one.name for one in signature.batched_inputs}
    counts = set()
    for name, value in request.inputs.items():
        spec = specs[name]
        if value.dtype != spec.dtype:
            given, wanted = datatype_of(value.dtype), datatype_of(spec.dtype)
            raise RequestError(f"{name}: is {given}, where {version.name} takes {wanted}")
        own, shape = spec.shape, value.shape
        if name in batched and shape:
            counts.add(shape[0])
            own = (-1, *own[1:])
        if not fits(shape, own):
            raise RequestError(
                f"{name}: has shape {list(shape)}, where {version.name} takes {list(own)}"
            )
    if len(counts) > 1:
        raise RequestError(f"its inputs have {' and '.join(map(str, sorted(counts)))} instances")
    if counts == {0}:
        raise RequestError("it has no instance")
    known = [one.name for one in signature.outputs]
    for name in request.outputs:
        if name not in known:
            raise RequestError(f"{version.name} has no output {name}; it has {', '.join(known)}")
