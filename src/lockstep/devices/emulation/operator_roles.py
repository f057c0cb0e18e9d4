"""Classify aten operators for an emulated device: product of matrices, sum, movement, or other computation."""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from enum import Enum
from typing import Any

import torch
from torch import Tensor


class Kind(Enum):
    """How an operator is treated."""

    UNTOUCHED = "gives views, random numbers, or talks to other processes"
    EXACT = "moves or selects numbers, none of them is rounded"
    COMPUTES = "rounds"


PRODUCTS = frozenset({
    "mm", "bmm", "mv", "dot", "vdot", "addmm", "baddbmm", "addbmm", "addmv", "_addmm_activation",
})  # fmt: skip
"""Kernels of one matrix product."""

OPAQUE_PRODUCTS = frozenset({
    "_transformer_encoder_layer_fwd", "_native_multi_head_attention", "_trilinear", "mkldnn_rnn_layer",
    "mkldnn_rnn_layer_backward", "_scaled_dot_product_flash_attention_for_cpu",
    "_scaled_dot_product_flash_attention_for_cpu_backward", "_cdist_forward", "_cdist_backward",
})  # fmt: skip
"""Kernels with several products inside. Those that `emulation_fused` does not write out get rounded inputs."""


@dataclass(frozen=True, slots=True)
class Flip:
    """Where an operator's tensors are to be reversed so that it sums in reverse order and gives the same otherwise.

    inputs, outputs: Places of the tensors, each with the one dimension that is not reversed, or None where all are.
        Left out, every tensor is reversed in all its dimensions.
    """

    inputs: dict[int, int | None] | None = None
    outputs: dict[int, int | None] | None = None


_CHANNELS_STAY = Flip({0: 1}, {0: 1})
FLIPS = dict.fromkeys(
    (
        "sum", "mean", "var", "std", "var_mean", "std_mean", "norm", "linalg_vector_norm", "logsumexp", "prod",
        "_softmax", "_log_softmax", "_softmax_backward_data", "_log_softmax_backward_data", "native_layer_norm",
        "native_layer_norm_backward", "native_group_norm", "native_group_norm_backward", "mse_loss",
        "binary_cross_entropy", "binary_cross_entropy_with_logits", "smooth_l1_loss", "huber_loss",
    ),
    Flip(),
) | {
    "native_batch_norm": _CHANNELS_STAY,
    "_native_batch_norm_legit": _CHANNELS_STAY,
    "native_batch_norm_backward": Flip({0: 1, 1: 1}, {0: 1}),
    "embedding_dense_backward": Flip({0: -1, 1: None}, {}),
}  # fmt: skip
"""Operators that sum over elements of one tensor."""

SUMS = frozenset({"sum", "mean"})

PARTIAL = frozenset({
    "index_add", "index_put", "_index_put_impl", "index_reduce", "scatter_add", "scatter_reduce",
})  # fmt: skip
"""Operators that may leave elements of the tensor they write to as they are."""

HIDDEN_WRITES = {"native_batch_norm": (3, 4)}
"""Arguments that an operator writes to though its schema does not say so: running statistics in training."""

_EXACT = frozenset({
    # movement
    "clone", "copy", "_to_copy", "cat", "stack", "hstack", "vstack", "constant_pad_nd", "reflection_pad1d",
    "reflection_pad2d", "reflection_pad3d", "replication_pad1d", "replication_pad2d", "replication_pad3d", "gather",
    "index", "_unsafe_index", "index_select", "embedding", "take", "masked_select", "masked_fill", "where", "fill",
    "zero", "full", "full_like", "ones", "ones_like", "zeros", "zeros_like", "new_full", "new_ones", "new_zeros",
    "eye", "arange", "tril", "triu", "flip", "roll", "rot90", "repeat", "repeat_interleave", "index_copy",
    "index_fill", "scatter", "masked_scatter", "put", "slice_backward", "select_backward", "slice_scatter",
    "select_scatter", "diagonal_scatter",
    "as_strided_scatter", "as_strided_copy", "diagonal_backward", "im2col", "pixel_shuffle", "pixel_unshuffle",
    "channel_shuffle", "upsample_nearest1d", "upsample_nearest2d", "upsample_nearest3d", "_foreach_copy",
    "_foreach_zero", "lift", "_unsafe_view", "_reshape_copy", "view_copy", "expand_copy", "permute_copy",
    "resolve_conj", "resolve_neg", "complex", "unfold_copy", "tril_indices", "triu_indices", "one_hot", "diag_embed",
    "block_diag", "_pad_circular", "scalar_tensor", "set", "resize", "_copy_from", "contiguous", "nan_to_num",
    # selection
    "sort", "topk", "max", "min", "amax", "amin", "aminmax", "maximum", "minimum", "fmax", "fmin", "kthvalue",
    "median", "nanmedian", "mode", "cummax", "cummin", "clamp", "clamp_min", "clamp_max", "relu", "relu6",
    "threshold", "threshold_backward", "hardtanh", "hardtanh_backward", "max_pool2d_with_indices",
    "max_pool3d_with_indices", "adaptive_max_pool2d", "fractional_max_pool2d", "_foreach_maximum",
    "_foreach_minimum", "_foreach_clamp_min", "_foreach_clamp_max",
    # signs and whole numbers
    "neg", "abs", "sign", "sgn", "positive", "floor", "ceil", "round", "trunc", "heaviside", "copysign",
    "_foreach_neg", "_foreach_abs", "_foreach_sign",
    # read by Python
    "_local_scalar_dense", "equal", "is_nonzero",
})  # fmt: skip

_NO_ARITHMETIC = (
    "c10d",
    "_c10d_functional",
    "profiler",
    "prim",
    "inductor",
    "streams",
    "higher_order",
)
"""Namespaces of operators that talk to other processes or to tools; their results may not be there yet."""


@dataclass(frozen=True, slots=True)
class Operator:
    """One aten overload.

    name: Without package, overload and trailing underscore: "addmm" for `aten.addmm_.default`.
    kind: How it is treated.
    decomposes: Whether it is made of other operators and arrives whole only in inference mode.
    written: Names of the arguments that it writes to.
    fresh: Of each result, whether it is a new tensor.
    """

    name: str
    kind: Kind
    decomposes: bool
    written: tuple[str, ...]
    fresh: tuple[bool, ...]


@functools.cache
def operator_of(function: Any) -> Operator:
    """Return the operator of an overload."""
    schema = function._schema
    namespace, _, plain = schema.name.partition("::")
    name = plain.rstrip("_") or plain
    written = tuple(
        item.name for item in schema.arguments if item.alias_info and item.alias_info.is_write
    )
    fresh = tuple(item.alias_info is None for item in schema.returns)
    gives_views = any(item.alias_info and not item.alias_info.is_write for item in schema.returns)
    # Attention kernels bear the tag for the dropout that they might have.
    random = torch.Tag.nondeterministic_seeded in function.tags and name not in OPAQUE_PRODUCTS
    decomposes = function.has_kernel_for_dispatch_key(
        torch._C.DispatchKey.CompositeImplicitAutograd
    ) and not function.has_kernel_for_dispatch_key(torch._C.DispatchKey.CPU)
    kind = Kind.COMPUTES
    if (
        namespace in _NO_ARITHMETIC
        or gives_views
        or random
        or plain.startswith(("empty", "new_empty"))
    ):
        kind = Kind.UNTOUCHED
    elif name in _EXACT:
        kind = Kind.EXACT
    return Operator(name, kind, decomposes, written, fresh)


def rounds(operator: Operator, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether this very call rounds: a copy does where its target has fewer bits, writing by index where it adds up."""
    if operator.name in ("copy", "_to_copy"):
        source = args[1] if operator.name == "copy" else args[0]
        target = args[0].dtype if operator.name == "copy" else kwargs.get("dtype")
        return target is not None and _bits(target) < _bits(source.dtype)
    if operator.name in ("index_put", "_index_put_impl"):
        return bool(kwargs.get("accumulate", args[3] if len(args) > 3 else False))
    return operator.kind is Kind.COMPUTES


def _bits(dtype: torch.dtype) -> float:
    """Bits of a number's mantissa; integers and booleans are exact."""
    return -math.log2(torch.finfo(dtype).eps) if dtype.is_floating_point else 0.0


def call_counting_writes(function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Call an overload from inside of a dispatch mode, so that its writes show in the tensors' versions.

    In-place operators on lists, `_foreach_mul_` say, leave the counting to the operators that they call for each
    tensor; under a dispatch mode those do not count.
    """
    written: list[Tensor] = []
    if function._schema.name.startswith("aten::_foreach_") and function._schema.is_mutable:
        written = [tensor for tensor in tensors_of(args[:1]) if not tensor.is_inference()]
    before = [tensor._version for tensor in written]
    result = function(*args, **kwargs)
    for tensor, version in zip(written, before, strict=True):
        if tensor._version == version:
            torch.autograd.graph.increment_version(tensor)
    return result


def tensors_of(values: Any) -> list[Tensor]:
    """Every tensor in nested lists, tuples and dictionaries."""
    if isinstance(values, Tensor):
        return [values]
    if isinstance(values, dict):
        values = values.values()
    elif not isinstance(values, (list, tuple)):
        return []
    return [tensor for value in values for tensor in tensors_of(value)]
