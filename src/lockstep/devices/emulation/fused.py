"""Attention and LSTM as an emulated device runs them: step by step, with its own matrix products.

The CPU kernels of both do several products at once, whose inputs cannot be reached from outside. Here they are written
out; with exact products they give what the kernels give, up to rounding. Everything is computed in single precision
where the tensors have 16 bits, and rounded at the end, as the kernels do.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from lockstep.devices.emulation.arithmetic import Product

LSTM_MODE = 2
"""`at::native::RNN_LSTM`: the mode of `aten.mkldnn_rnn_layer` that stands for an LSTM."""


def attention_forward(
    product: Product,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    attn_mask: Tensor | None = None,
    scale: float | None = None,
) -> tuple[Tensor, Tensor]:
    """`aten._scaled_dot_product_flash_attention_for_cpu`: softmax(scale Q K^T + mask) V.

    Parameters
    ----------
    product
        Matrix product of the device.
    query, key, value
        Shapes (batch, heads, L, E), (batch, heads, S, E), (batch, heads, S, E_v).
    dropout_p
        Always 0: the kernel has no dropout.
    is_causal, attn_mask, scale
        As in the schema; the mask is boolean (True keeps) or added, the scale is 1/sqrt(E) by default.

    Returns
    -------
    tuple
        The output (batch, heads, L, E_v), and the log-sum-exp of every row, (batch, heads, L), float32 where the
        tensors have 16 bits.
    """
    del dropout_p
    scores = _scores(product, query, key, is_causal, attn_mask, scale)
    logsumexp = torch.logsumexp(scores, -1)
    weights = torch.exp(scores - _finite(logsumexp).unsqueeze(-1)).to(query.dtype)
    output = product(weights, _for_heads(value, query))
    # In memory as the kernel leaves them.
    return torch.empty_like(query).copy_(output), _positions_first(logsumexp)


def attention_backward(
    product: Product,
    gradient: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    output: Tensor,
    logsumexp: Tensor,
    dropout_p: float,
    is_causal: bool,
    *,
    attn_mask: Tensor | None = None,
    scale: float | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Its backward, as FlashAttention-2 has it (Dao 2023, algorithm 2): gradients of query, key and value."""
    del dropout_p
    scores = _scores(product, query, key, is_causal, attn_mask, scale)
    weights = torch.exp(scores - _finite(logsumexp).unsqueeze(-1))
    into_weights = product(gradient, _for_heads(value, query).transpose(-1, -2))
    into_weights = into_weights.to(weights.dtype)
    inner = (gradient.to(weights.dtype) * output.to(weights.dtype)).sum(-1, keepdim=True)
    into_scores = (weights * (into_weights - inner)).to(query.dtype)
    factor = _scale(query, scale)
    into_key = product(into_scores.transpose(-1, -2), query) * factor
    into_value = product(weights.to(query.dtype).transpose(-1, -2), gradient)
    return (
        _positions_first(product(into_scores, _for_heads(key, query)) * factor),
        _positions_first(_over_heads(into_key, key)),
        _positions_first(_over_heads(into_value, value)),
    )


def _scores(
    product: Product,
    query: Tensor,
    key: Tensor,
    is_causal: bool,
    mask: Tensor | None,
    scale: float | None,
) -> Tensor:
    scores = product(query, _for_heads(key, query).transpose(-1, -2))
    if scores.dtype in (torch.float16, torch.bfloat16):
        scores = scores.float()
    scores = scores * _scale(query, scale)
    if is_causal:
        kept = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).tril()
        scores = scores.masked_fill(~kept, -math.inf)
    if mask is not None and mask.dtype is torch.bool:
        return scores.masked_fill(~mask, -math.inf)
    return scores if mask is None else scores + mask


def _positions_first(value: Tensor) -> Tensor:
    """The same numbers, in memory by position before head."""
    return value.transpose(1, 2).contiguous().transpose(1, 2)


def _for_heads(value: Tensor, query: Tensor) -> Tensor:
    """Every key or value head as often as query heads share it (grouped-query attention)."""
    shared = query.shape[1] // value.shape[1]
    return value if shared == 1 else value.repeat_interleave(shared, 1)


def _over_heads(gradient: Tensor, value: Tensor) -> Tensor:
    """Gradient of `_for_heads`: summed over the query heads that share one."""
    shared = gradient.shape[1] // value.shape[1]
    return gradient if shared == 1 else gradient.unflatten(1, (-1, shared)).sum(2)


def _scale(query: Tensor, scale: float | None) -> float:
    return 1.0 / math.sqrt(query.shape[-1]) if scale is None else scale


def _finite(logsumexp: Tensor) -> Tensor:
    """Rows in which all is masked have -inf, and their weights are to be 0, not NaN."""
    return torch.where(torch.isneginf(logsumexp), torch.zeros_like(logsumexp), logsumexp)


class _LstmRun:
    """What one LSTM layer computes at every position, in the order it visits them.

    The gates are input, forget, cell, output, as in `torch.nn.LSTM`:

        c' = sigmoid(f) c + sigmoid(i) tanh(g),   h' = sigmoid(o) tanh(c')
    """

    def __init__(
        self,
        product: Product,
        value: Tensor,
        weights: tuple[Tensor, Tensor, Tensor, Tensor],
        hidden: Tensor,
        cell: Tensor,
        *,
        reverse: bool,
    ) -> None:
        into, recurrent, bias, recurrent_bias = weights
        from_input = product(value, into.t()) + bias
        self.order = range(value.shape[0])[::-1] if reverse else range(value.shape[0])
        self.hidden, self.cells, self.gates = [hidden], [cell], []
        for position in self.order:
            summed = from_input[position] + (product(hidden, recurrent.t()) + recurrent_bias)
            raw = summed.chunk(4, -1)
            gates = (raw[0].sigmoid(), raw[1].sigmoid(), raw[2].tanh(), raw[3].sigmoid())
            cell = gates[1] * cell + gates[0] * gates[2]
            hidden = gates[3] * cell.tanh()
            self.gates.append(gates)
            self.hidden.append(hidden)
            self.cells.append(cell)

    def outputs(self) -> Tensor:
        """Hidden states by position, (positions, batch, hidden)."""
        inside = self.hidden[1:]
        return torch.stack(inside if self.order.step > 0 else inside[::-1])


def lstm_forward(product: Product, *arguments: Any) -> tuple[Tensor, Tensor, Tensor]:
    """Output, last hidden and last cell state of `aten.mkldnn_rnn_layer` where it is an LSTM.

    `arguments` are those of the operator: the input has the shape (positions, batch, features), the states
    (..., batch, hidden).
    """
    value, *weights, hx, cx, reverse = arguments[:8]
    run = _LstmRun(
        product,
        _wide(value),
        _four(weights, has_biases=arguments[12]),
        _wide(hx).reshape(-1, hx.shape[-1]),
        _wide(cx).reshape(-1, cx.shape[-1]),
        reverse=reverse,
    )
    dtype = value.dtype
    return (
        run.outputs().to(dtype),
        run.hidden[-1].reshape(hx.shape).to(dtype),
        run.cells[-1].reshape(cx.shape).to(dtype),
    )


def lstm_backward(product: Product, *arguments: Any) -> tuple[Tensor, ...]:
    """`aten.mkldnn_rnn_layer_backward` of an LSTM: the forward again, then backward through time.

    Returns the gradients of the input, both weights, both biases, and both initial states.
    """
    value, *weights, hx, cx = arguments[:7]
    grad_output, grad_hy, grad_cy, reverse = arguments[10:14]
    four, wide = _four(weights, has_biases=arguments[17]), _wide(value)
    hidden, cell = (_wide(state).reshape(-1, state.shape[-1]) for state in (hx, cx))
    run = _LstmRun(product, wide, four, hidden, cell, reverse=reverse)
    into_hidden = torch.zeros_like(hidden) if grad_hy is None else _like(grad_hy, hidden)
    into_cell = torch.zeros_like(cell) if grad_cy is None else _like(grad_cy, cell)
    into_gates = torch.zeros(
        *wide.shape[:2], four[1].shape[0], dtype=hidden.dtype, device=hidden.device
    )
    for step in reversed(range(len(run.gates))):
        position = run.order[step]
        if grad_output is not None:
            into_hidden = into_hidden + grad_output[position]
        i, f, g, o = run.gates[step]
        bent = run.cells[step + 1].tanh()
        into_cell = into_cell + into_hidden * o * (1 - bent * bent)
        into_gates[position] = torch.cat(
            [
                into_cell * g * i * (1 - i),
                into_cell * run.cells[step] * f * (1 - f),
                into_cell * i * (1 - g * g),
                into_hidden * bent * o * (1 - o),
            ],
            -1,
        )
        into_hidden = product(into_gates[position], four[1])
        into_cell = into_cell * f
    flat = into_gates.reshape(-1, into_gates.shape[-1])
    before = torch.stack([run.hidden[run.order.index(position)] for position in range(len(wide))])
    bias = flat.sum(0)
    gradients = (
        product(into_gates, four[0]),
        product(flat.t(), wide.reshape(-1, wide.shape[-1])),
        product(flat.t(), before.reshape(-1, before.shape[-1])),
        bias,
        bias.clone(),
        into_hidden.reshape(hx.shape),
        into_cell.reshape(cx.shape),
    )
    return tuple(gradient.to(value.dtype) for gradient in gradients)


def _wide(value: Tensor) -> Tensor:
    return value.float() if value.dtype in (torch.float16, torch.bfloat16) else value


def _like(gradient: Tensor, state: Tensor) -> Tensor:
    return _wide(gradient).reshape(state.shape)


def _four(weights: list[Tensor], *, has_biases: bool) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Both weights and both biases; a layer without them comes with tensors of another shape in their place."""
    into, recurrent, bias, recurrent_bias = (_wide(weight) for weight in weights)
    if not has_biases:
        bias = recurrent_bias = torch.zeros_like(into[:, 0])
    return into, recurrent, bias, recurrent_bias
