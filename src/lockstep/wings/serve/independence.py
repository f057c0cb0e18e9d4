"""Whether the instances of a batch know of each other: requests are run together only where they do not."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from lockstep.wings.serve.servable import BYTES, Array, Servable, Signature, TensorSpec

_FREE_EXTENT = 4
"""Extent of a free axis in a trial."""


def batching(servable: Servable) -> Signature:
    """The signature of a model, with `batches` where its first axis was seen to count independent instances.

    A first axis that is free, or of one and the same extent, in every input and output may count instances, and may as
    well be time. So the model is run: with one instance the same and all others changed, in a batch of the same size
    (so by the same kernels), that instance's results have to stay the same bits. A model that draws random numbers, or
    normalises by its batch, fails; so does one that refuses the trial. Their requests are run one by one.
    """
    declared = servable.signature
    if declared.batches:
        return declared
    signature = replace(declared, batches=True)
    extents = {one.shape[:1] for one in (*signature.batched_inputs, *declared.outputs)}
    if len(extents) != 1 or extents == {()}:
        return declared
    ((extent,),) = extents
    count = 3 if extent == -1 else extent
    if count < 2:
        return signature if count == 1 else declared
    try:
        independent = all(_same_bits(servable, signature, count, place) for place in (0, count - 1))
    except Exception:  # whatever a model says to numbers that were drawn: it is not batched then
        return declared
    return signature if independent else declared


def _same_bits(servable: Servable, signature: Signature, count: int, place: int) -> bool:
    """Whether the instance at a place is given the same results beside other instances."""
    first = _drawn(signature, count, seed=1)
    second = _drawn(signature, count, seed=2)
    for spec in signature.inputs:
        if spec.name in signature.without_batch_axis:
            second[spec.name] = first[spec.name]
        else:
            second[spec.name][place] = first[spec.name][place]
    one, other = servable.infer(first), servable.infer(second)
    return all(
        value.shape[:1] == (count,) and value[place].tobytes() == other[name][place].tobytes()
        for name, value in one.items()
    )


def _drawn(signature: Signature, count: int, *, seed: int) -> dict[str, Array]:
    random = np.random.default_rng(seed)
    drawn = {}
    for spec in signature.inputs:
        shape = [_FREE_EXTENT if extent == -1 else extent for extent in spec.shape]
        if spec.name not in signature.without_batch_axis:
            shape[0] = count
        drawn[spec.name] = _numbers(spec, tuple(shape), random)
    return drawn


def _numbers(spec: TensorSpec, shape: tuple[int, ...], random: np.random.Generator) -> Array:
    """Numbers of any dtype; whole ones are 0 and 1, which an index may be."""
    if spec.dtype == BYTES:
        return np.array([b"a", b"b"], object)[random.integers(0, 2, shape)]
    if spec.dtype.kind == "f":
        return random.standard_normal(shape).astype(spec.dtype)
    return random.integers(0, 2, shape).astype(spec.dtype)
