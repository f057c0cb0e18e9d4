"""Advice on copies of views: transposed views, transposed operands, slices with a step."""

from __future__ import annotations

import pytest
import torch
from advising import advise

MODULE = """
    import torch
    from torch import nn

    class Attention(nn.Module):
        def {name}(self, x, y):
            B, T, C = 2, 3, 4
            {body}
"""


def module(body: str, name: str = "forward") -> str:
    return MODULE.format(body=body.replace("\n", "\n            "), name=name)


@pytest.mark.parametrize(
    ("body", "replacement"),
    [
        (
            "return x.permute(0, 2, 1, 3).contiguous().view(B, T, C)",
            "torch_npu.npu_confusion_transpose(x, (0, 2, 1, 3), (B, T, C), True)",
        ),
        (
            "x = x.permute((0, 2, 1, 3))\nx = x.reshape(B, T, C)\nreturn x",
            "torch_npu.npu_confusion_transpose(x, (0, 2, 1, 3), (B, T, C), True)",
        ),
        (
            "x = x.transpose(1, 2).contiguous()\nreturn x.view((B, T, C))",
            (
                "torch_npu.npu_confusion_transpose(x, axes, (B, T, C), True), "
                "where axes is all of them in the order that (1, 2) swaps"
            ),
        ),
    ],
)
def test_a_transposed_view_is_one_operator_of_the_npu(body: str, replacement: str) -> None:
    (row,) = advise(module(body), apply=True).rows
    assert (row.rule, row.outcome.value) == ("advice/transpose-view", "listed")
    assert row.replacement == replacement
    assert "migration guide" in row.reason
    assert advise(module(body), "neutral").rows == ()


@pytest.mark.parametrize(
    "body",
    [
        # nothing is copied, or nothing is viewed again
        "return x.permute(0, 2, 1, 3).contiguous()",
        "return x.contiguous().view(B, T, C)",
        "return x.permute(0, 2, 1, 3).view(B, T, C)",
        # the axes or the shape cannot be seen
        "return x.permute(*axes).contiguous().view(B, T, C)",
        "return x.permute(0, 2, 1, 3).contiguous().view(shape)",
        "return x.permute(0, 2, 1, 3).contiguous().view(torch.int8)",
    ],
)
def test_other_views_are_left_alone(body: str) -> None:
    assert advise(module(body)).rows == ()


def test_a_view_outside_of_forward_is_left_alone() -> None:
    body = "return x.permute(0, 2, 1, 3).contiguous().view(B, T, C)"
    assert advise(module(body, "load_weights")).rows == ()


@pytest.mark.parametrize(
    ("product", "operand"),
    [
        ("x @ y.transpose(-1, -2).contiguous()", "y.transpose(-1, -2)"),
        ("torch.matmul(x, y.t().contiguous())", "y.t()"),
        ("torch.bmm(x.permute(0, 2, 1).contiguous(), y)", "x.permute(0, 2, 1)"),
        ("x.mm(y.T.contiguous())", "y.T"),
    ],
)
def test_a_product_takes_transposed_operands(product: str, operand: str) -> None:
    for target in ("neutral", "npu", "xpu", "hpu", "mps"):
        (row,) = advise(f"import torch\nz = {product}\n", target, apply=True).rows
        assert (row.rule, row.outcome.value) == ("advice/transposed-operand", "listed")
        assert row.replacement == operand
    # then the other form is equal up to rounding
    shape = (4, 4) if "bmm" not in product else (2, 4, 4)
    x, y = torch.randn(shape), torch.randn(shape)
    names = {"torch": torch, "x": x, "y": y}
    other = product.replace(f"{operand}.contiguous()", operand)
    assert torch.allclose(eval(product, names), eval(other, names), atol=1e-5)


@pytest.mark.parametrize(
    "product",
    [
        "x @ y.contiguous()",
        "x @ y.transpose(-1, -2)",
        "x * y.t().contiguous()",
        "torch.cat([x.t().contiguous(), y])",
    ],
)
def test_other_operands_are_left_alone(product: str) -> None:
    assert advise(f"import torch\nz = {product}\n").rows == ()


def test_slices_with_a_step_that_are_joined_are_listed() -> None:
    focus = (
        "return torch.cat([x[..., ::2, ::2], x[..., 1::2, ::2],"
        " x[..., ::2, 1::2], x[..., 1::2, 1::2]], 1)"
    )
    (row,) = advise(module(focus), apply=True).rows
    assert (row.rule, row.replacement) == (
        "advice/strided-slices",
        "torch_npu.contrib.module.Focus",
    )
    rotary = "return torch.stack((-x[..., 1::2], x[..., ::2]), -1)"
    assert advise(module(rotary)).rules == ["strided-slices"]
    assert advise(module(rotary), "neutral").rows == ()


@pytest.mark.parametrize(
    "body",
    [
        "return torch.cat([x[..., :2], x[..., 2:]], 1)",
        "return torch.cat([x[..., ::2], y], 1)",
        "return torch.cat([x[::1], y[::1]], 1)",
        "return [x[::2], y[::2]]",
    ],
)
def test_other_slices_are_left_alone(body: str) -> None:
    assert advise(module(body)).rows == ()
