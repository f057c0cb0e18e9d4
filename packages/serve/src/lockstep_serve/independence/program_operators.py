"""The table of operators of `torch.export` programs and their effect on a batch axis.

After the schemas of torch 2.13. Operators that go element by element are not listed: torch tags them. What is in
neither place is taken apart by torch's own decompositions.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from lockstep_serve.independence import layer_rules, rules
from lockstep_serve.independence.extents import INSTANCES, Extent
from lockstep_serve.independence.values import (
    Call,
    Content,
    Mixes,
    NotListed,
    Place,
    Rule,
    Value,
)


@dataclass(frozen=True, slots=True)
class Operator:
    """An operator's rule, and what turns its schema's arguments into the rule's options."""

    rule: Rule
    prepare: Callable[[Call], Call] | None = None


SIZES = frozenset(
    (
        "aten.sym_size.int", "aten.sym_numel.default", "add", "sub", "mul", "floordiv", "truediv", "mod", "neg",
        "sym_max", "sym_min", "sym_sum", "pow",
    )
)  # fmt: skip
"""What computes numbers from shapes alone."""


def _with(**options: Any) -> Callable[[Call], Call]:
    return lambda call: replace(call, options={**call.options, **options})


def _renamed(**names: str) -> Callable[[Call], Call]:
    """Options by a rule's names too; one that the schema leaves out stays out."""

    def prepare(call: Call) -> Call:
        told = call.options
        more = {new: told[old] for new, old in names.items() if told.get(old) is not None}
        return replace(call, options={**told, **more})

    return prepare


def _first(call: Call) -> Call:
    """Without the operands that only lend their type or shape."""
    return replace(call, tensors=call.tensors[:1])


def _normalised(call: Call) -> Call:
    count = len(call.options["normalized_shape"])
    return _with(axes=[*range(-count, 0)])(call)


def _transposed(call: Call) -> Call:
    order = [*range(call.first.rank)]
    one, other = call.options["dim0"], call.options["dim1"]
    order[one], order[other] = order[other], order[one]
    return _with(order=order)(call)


def _sliced(call: Call) -> Call:
    axis = rules.normal(call.whole("dim", 0), call.first.rank)
    whole = call.result[axis] == call.first.extents[axis] and call.options.get("step", 1) == 1
    told = {"axes": [axis], "whole": [axis]} if whole else {**call.options, "axes": [axis]}
    return replace(call, options=told)


def _padded(call: Call) -> Call:
    pads = call.several("pad")
    axes = [-1 - at // 2 for at, one in enumerate(pads) if one]
    return replace(call, options={"axes": axes})


def _rolled(call: Call) -> Call:
    return _with(axes=call.options["dims"] or [*range(call.first.rank)])(call)


def _multiplied(call: Call) -> Call:
    added, left, right = call.given
    return replace(call, tensors=[left, right, added])


def _trained(call: Call) -> Call:
    if call.options.get("training"):
        raise Mixes("normalises by the whole batch, as in training")
    return call


def _dropped(call: Call) -> Call:
    if call.options["train"]:
        raise Mixes("draws random numbers, as in training")
    return call


def _attended(call: Call) -> Call:
    if call.options.get("dropout_p"):
        raise Mixes("draws random numbers, as in training")
    if call.options.get("enable_gqa"):
        raise NotListed("shares keys between queries, which is not followed")
    return call


def _indexed(call: Call) -> Call:
    return replace(call, options={"at": call.options["indices"]})


def _recurrent(call: Call) -> Call:
    if call.options["train"] and call.options["dropout"]:
        raise Mixes("draws random numbers, as in training")
    if call.first.rank != 3:
        raise Mixes("takes its first axis as time")
    axis = 0 if call.options["batch_first"] else 1
    states = range(1, 1 + len(call.options.get("hx", [0])))
    told = {"axis": axis, "states": states, "lengths": (), "results": (axis, *[1] * len(states))}
    return replace(call, options=told)


def _table(*rows: tuple[str, Operator]) -> dict[str, Operator]:
    return {f"aten.{name}": row for names, row in rows for name in names.split()}


_ALONG = _renamed(axes="dim")

OPERATORS = _table(
    ("""__and__ __or__ __xor__ where.ScalarSelf where.ScalarOther where.Scalar multiply subtract divide greater
        greater_equal less less_equal not_equal hardswish log_sigmoid isclose prelu _prelu_kernel""",
     Operator(rules.pointwise)),
    ("type_as", Operator(rules.copied, _first)),
    ("view_as reshape_as", Operator(rules.reshaped, _first)),
    ("expand_as", Operator(rules.expanded, _first)),
    ("to _to_copy clone contiguous alias detach lift_fresh_copy", Operator(rules.copied, _with())),
    ("dropout", Operator(rules.pointwise, _dropped)),
    ("softmax log_softmax _softmax _log_softmax cumsum cumprod sort topk", Operator(rules.along, _ALONG)),
    ("layer_norm native_layer_norm rms_norm", Operator(rules.along, _normalised)),
    ("tril triu", Operator(rules.along, _with(axes=[-1, -2]))),
    ("""mean sum amax amin max min argmax argmin prod any all var std var_mean std_mean aminmax logsumexp norm
        linalg_vector_norm median""", Operator(rules.reduced, _renamed(axes="dim", keep="keepdim"))),
    ("select unbind", Operator(rules.reduced, _renamed(axes="dim", index="index"))),
    ("""conv1d conv2d conv3d convolution conv_transpose1d conv_transpose2d conv_transpose3d max_pool1d max_pool2d
        max_pool3d max_pool2d_with_indices max_pool3d_with_indices avg_pool1d avg_pool2d avg_pool3d
        adaptive_avg_pool1d adaptive_avg_pool2d adaptive_avg_pool3d _adaptive_avg_pool2d _adaptive_avg_pool3d
        adaptive_max_pool2d adaptive_max_pool3d upsample_nearest1d upsample_nearest2d upsample_nearest3d
        upsample_linear1d upsample_bilinear2d upsample_trilinear3d upsample_bicubic2d _upsample_bilinear2d_aa
        group_norm instance_norm pixel_shuffle pixel_unshuffle reflection_pad1d reflection_pad2d
        reflection_pad3d replication_pad1d replication_pad2d replication_pad3d im2col channel_shuffle""",
     Operator(rules.rows)),
    ("native_group_norm", Operator(rules.rows, lambda call: replace(call, options={}))),
    ("batch_norm _native_batch_norm_legit_no_training", Operator(rules.rows, _trained)),
    ("grid_sampler_2d grid_sampler_3d grid_sampler", Operator(rules.rows, _with(paired=(0, 1)))),
    ("linear", Operator(rules.linear)),
    ("matmul mm bmm mv dot", Operator(rules.product_of_matrices)),
    ("addmm", Operator(rules.gemm, _multiplied)),
    ("baddbmm", Operator(rules.product_and_sum)),
    ("einsum", Operator(layer_rules.einsum)),
    ("permute", Operator(rules.permuted, _renamed(order="dims"))),
    ("transpose", Operator(rules.permuted, _transposed)),
    ("t", Operator(rules.permuted)),
    ("view reshape _unsafe_view flatten unflatten squeeze unsqueeze", Operator(rules.reshaped)),
    ("expand", Operator(rules.expanded)),
    ("repeat", Operator(rules.tiled)),
    ("zeros ones full new_zeros new_ones new_full zeros_like ones_like full_like fill", Operator(rules.filled)),
    ("cat", Operator(rules.joined, _renamed(axis="dim"))),
    ("stack", Operator(rules.joined, lambda call: _with(new=True)(_renamed(axis="dim")(call)))),
    ("split split_with_sizes chunk glu narrow",
     Operator(rules.cut, lambda call: _with(axes=[call.whole("dim", 0)])(call))),
    ("slice", Operator(rules.cut, _sliced)),
    ("flip", Operator(rules.cut, _renamed(axes="dims"))),
    ("roll", Operator(rules.cut, _rolled)),
    ("unfold", Operator(rules.cut, _renamed(axes="dimension"))),
    ("constant_pad_nd pad", Operator(rules.cut, _padded)),
    ("embedding", Operator(rules.picked, _with(axis=0))),
    ("index_select", Operator(rules.picked, _renamed(axis="dim"))),
    ("gather scatter scatter_add", Operator(rules.picked_elements, _renamed(axis="dim"))),
    ("select_scatter", Operator(rules.stored, _renamed(axis="dim"))),
    ("copy", Operator(rules.expanded, lambda call: replace(call, tensors=call.tensors[1:]))),
    ("slice_scatter", Operator(rules.picked_elements, _renamed(axis="dim"))),
    ("index", Operator(rules.indexed, _indexed)),
    ("one_hot", Operator(rules.one_hot)),
    ("scaled_dot_product_attention _scaled_dot_product_flash_attention_for_cpu",
     Operator(layer_rules.attention, _attended)),
    ("lstm gru rnn_tanh rnn_relu", Operator(layer_rules.recurrent, _recurrent)),
    ("embedding_bag _embedding_bag", Operator(layer_rules.bags)),
)  # fmt: skip
"""By the operator's name without its overload."""

OPERATORS["aten._native_batch_norm_legit.no_stats"] = Operator(layer_rules.batch_statistics)
OPERATORS["aten.lstm.data"] = Operator(rules.refused("packs sequences of several instances"))
OPERATORS |= {
    f"quantized_decomposed.{name}_per_tensor": Operator(rules.pointwise)
    for name in ("quantize", "dequantize")
}


def row_numbers(kind: str, call: Call) -> Value | None:
    """The places of instances, where `arange` counts these."""
    end = call.options.get("end")
    if not kind.startswith("aten.arange.") or not isinstance(end, Value) or end.numbers is None:
        return None
    start, step = call.options.get("start", 0), call.options.get("step", 1)
    if start != 0 or not isinstance(step, int):
        return None
    if end.numbers.ravel()[0].divided_by(Extent(step)) != INSTANCES:
        return None
    return Value(
        (INSTANCES,), Place(0), content=Content.ROW_NUMBERS, stride=Extent(step), mixed=end.mixed
    )
