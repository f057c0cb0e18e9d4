"""The metadata of the server and its models, in both transports."""

from __future__ import annotations

from typing import Any

from lockstep_serve.protocol.tensors import datatype_of
from lockstep_serve.servable import Signature, TensorSpec

NAME = "lockstep"
EXTENSIONS = ["binary_tensor_data", "model_repository"]
"""Beyond the protocol itself, by Triton's names."""


def properties_told(signature: Signature) -> dict[str, str]:
    """Return further properties of a model: whether requests run together, and the reason."""
    return {"batching": signature.batching}


def tensors_told(signature: Signature, specs: tuple[TensorSpec, ...]) -> list[dict[str, Any]]:
    """Tensors of a model as its metadata list them; where instances are put together, the first axis is free."""
    kept = signature.without_batch_axis
    return [
        {
            "name": one.name,
            "datatype": datatype_of(one.dtype),
            "shape": list(
                (-1, *one.shape[1:]) if signature.batches and one.name not in kept else one.shape
            ),
        }
        for one in specs
    ]
