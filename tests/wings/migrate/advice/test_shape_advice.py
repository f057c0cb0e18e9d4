"""Advice on shapes that depend on values: assignments under masks, `nonzero` and the like."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from advising import advise

FORWARD = """
    import torch
    import numpy as np
    from torch import nn

    class Layer(nn.Module):
        def {name}(self, x, mask):
            {body}
            return x
"""


def layer(body: str, name: str = "forward") -> str:
    return FORWARD.format(body=body, name=name)


MASKED = """
    import torch

    def clipped(values):
        x = torch.clone(values)
        x[x < {bound}] = {value}
        return x
"""


@pytest.mark.parametrize("target", ["npu", "neutral", "hpu"])
def test_an_assignment_under_a_mask_keeps_its_shape(target: str) -> None:
    advised = advise(MASKED.format(bound=0, value="0.5"), target)
    (row,) = advised.rows
    assert (row.rule, row.outcome.value) == ("advice/masked-assignment", "listed")
    assert row.replacement == "x.masked_fill_(x < 0, 0.5)"
    assert "same values and gradients" in row.reason


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.int64, torch.uint8])
@pytest.mark.parametrize(("bound", "value"), [("0", "0"), ("-0.5", "-1"), ("3", "0.5"), ("1", "7")])
def test_the_written_form_gives_the_same_bits(bound: str, value: str, dtype: torch.dtype) -> None:
    text = MASKED.format(bound=bound, value=value)
    original = advise(text, "neutral").run()["clipped"]
    advised = advise(text, "neutral", apply=True)
    assert f"    x.masked_fill_(x < {bound}, {value})\n" in advised.text
    written = advised.run()["clipped"]
    values = (torch.arange(-8, 9) / 2).to(dtype)
    one, two = original(values), written(values)
    assert one.dtype == two.dtype
    assert torch.equal(one.view(torch.uint8), two.view(torch.uint8))


def test_the_written_form_gives_the_same_gradients() -> None:
    text = MASKED.format(bound=0, value="0.0")
    results: list[Any] = []
    for apply in (False, True):
        function = advise(text, "neutral", apply=apply).run()["clipped"]
        values = torch.linspace(-2, 2, 9).requires_grad_()
        (function(values) * torch.arange(9.0)).sum().backward()
        results.append(values.grad)
    assert torch.equal(results[0].view(torch.int32), results[1].view(torch.int32))


def test_a_tensor_that_is_not_proven_to_be_one_is_listed_only() -> None:
    advised = advise(layer("x[x < 0] = 0"), apply=True)
    (row,) = advised.rows
    assert (row.outcome.value, row.replacement) == ("listed", "x.masked_fill_(x < 0, 0)")


def test_a_mask_of_another_tensor_is_listed_only() -> None:
    # given a mask that may have fewer axes
    advised = advise(layer("x[mask == 0] = 1"), apply=True)
    (row,) = advised.rows
    assert (row.outcome.value, row.replacement) == ("listed", "x = torch.where(mask == 0, 1, x)")


@pytest.mark.parametrize(
    "text",
    [
        # arrays on the host
        "import numpy as np\nimport torch\nx = np.zeros(3)\nx[x < 0] = 0\n",
        "import torch\ndef clip(x):\n    x[x < 0] = 0\n",
        "import torch\nx = torch.load('x')\nx[x < 0] = 0\n",
        # no mask
        "import torch\nx = torch.zeros(3)\nx[0] = 0\n",
    ],
)
def test_other_assignments_are_left_alone(text: str) -> None:
    assert advise(text, apply=True).rows == ()


@pytest.mark.parametrize(
    "body",
    [
        "x = torch.nonzero(mask)",
        "x = mask.nonzero()",
        "x = torch.where(mask)",
        "x = x.masked_select(mask)",
        "x = torch.unique(x)",
        "x = x[mask > 0]",
    ],
)
def test_results_of_unknown_shape_are_listed_in_forward(body: str) -> None:
    for target in ("npu", "neutral", "hpu"):
        (row,) = advise(layer(body), target, apply=True).rows
        assert (row.rule, row.outcome.value) == ("advice/dynamic-shape", "listed")
    assert advise(layer(body), "mps").rows == ()
    # and elsewhere they are nobody's bottleneck
    assert advise(layer(body, "prepare")).rows == ()


@pytest.mark.parametrize(
    "body",
    [
        "x = torch.where(mask, x, 0)",
        "x = np.unique(mask)",
        "x = np.nonzero(mask)",
        "x = x[mask]",
        "x = x[0]",
    ],
)
def test_results_of_known_shape_are_left_alone(body: str) -> None:
    assert advise(layer(body)).rows == ()


def test_one_piece_of_advice_names_every_line() -> None:
    advised = advise(layer("x = mask.nonzero()\n            x = torch.unique(x)"))
    (row,) = advised.rows
    assert row.line == 8
    assert row.reason.endswith("; also in line 9")
