"""Advice on copies of views: channel shuffles, transposed operands, slices with a step."""

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


SHUFFLE = """
    import torch

    def {name}(x, groups):
        n, c, h, w = x.size()
        x = x.view(n, groups, c // groups, h, w)
        x = torch.transpose(x, 1, 2).contiguous()
        return x.view(n, -1, h, w)
"""


@pytest.mark.parametrize("target", ["npu", "neutral"])
def test_a_channel_shuffle_is_listed_with_its_faster_form(target: str) -> None:
    advised = advise(SHUFFLE.format(name="channel_shuffle"), target)
    (row,) = advised.of("channel-shuffle")
    assert (row.outcome.value, row.line) == ("listed", 7)
    assert "a CPU copies faster than it selects" in row.reason
    # then the form that is shown gives the same bits
    names: dict[str, object] = {"torch": torch}
    exec(advised.text.replace("    import", "import"), names)
    x = torch.randn(2, 6, 3, 2)
    shuffled = eval(row.replacement, {"torch": torch, "x": x, "groups": 2})
    assert torch.equal(names["channel_shuffle"](x, 2), shuffled)  # type: ignore[operator]


@pytest.mark.parametrize("target", ["npu", "neutral"])
@pytest.mark.parametrize(
    "copied",
    ["torch.transpose(x, 1, 2).contiguous()", "x.transpose(2, 1).contiguous()",
     "x.permute(0, 2, 1, 3, 4).contiguous()"],
)  # fmt: skip
def test_a_channel_shuffle_whose_copy_stands_with_it_is_written(target: str, copied: str) -> None:
    text = SHUFFLE.format(name="channel_shuffle").replace(
        "torch.transpose(x, 1, 2).contiguous()", copied
    )
    # when the faster form is to be written
    written = advise(text, target, apply=True)
    # then it is, at its line, and gives the same bits, gradients and layout
    (row,) = written.of("channel-shuffle")
    assert (row.outcome.value, row.line) == ("rewritten", 7)
    assert ".contiguous()" not in written.text
    results = []
    for one in (advise(text, target), written):
        x = torch.arange(72.0).view(2, 6, 3, 2).requires_grad_()
        shuffled = one.run()["channel_shuffle"](x, 3)
        (shuffled * shuffled).sum().backward()
        results.append((shuffled, x.grad, torch.tensor(shuffled.stride())))
    assert all(map(torch.equal, *results))


@pytest.mark.parametrize(
    "other",
    ["x.transpose(1, 3).contiguous()", "x.transpose(1, 2)", "x.abs().transpose(1, 2).contiguous()",
     "x.permute(0, 1, 2, 3, 4).contiguous()"],
)  # fmt: skip
def test_a_shuffle_of_another_form_is_listed_only(other: str) -> None:
    text = SHUFFLE.format(name="channel_shuffle").replace(
        "torch.transpose(x, 1, 2).contiguous()", other
    )
    written = advise(text, apply=True)
    assert [row.outcome.value for row in written.of("channel-shuffle")] == ["listed"]
    assert other in written.text


def test_a_function_of_another_name_is_left_alone() -> None:
    assert advise(SHUFFLE.format(name="heads")).rows == ()


def test_torchs_own_shuffle_is_listed() -> None:
    text = "import torch\nx = torch.nn.functional.channel_shuffle(x, 2)\n"
    assert advise(text).rules == ["channel-shuffle-operator"]
    assert advise(text, "neutral").rows == ()


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
