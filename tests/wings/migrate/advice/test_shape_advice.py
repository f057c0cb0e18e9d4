"""Advice on shapes that depend on values: assignments under masks, `nonzero` and the like."""

from __future__ import annotations

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


@pytest.mark.parametrize("target", ["npu", "neutral", "hpu"])
def test_an_assignment_under_a_mask_is_listed_with_a_form_that_keeps_its_shape(target: str) -> None:
    # before --advice-apply wrote masked_fill_ where the tensor was followed to what made it
    advised = advise(layer("x[x < 0] = 0"), target, apply=True)
    (row,) = advised.rows
    assert (row.rule, row.outcome.value) == ("advice/masked-assignment", "listed")
    assert row.replacement == "x = torch.where(x < 0, 0, x)"
    assert "same values and gradients" in row.reason
    x = torch.linspace(-2, 2, 9)
    one = x.clone()
    one[one < 0] = 0
    assert torch.equal(one, eval(row.replacement.removeprefix("x = "), {"torch": torch, "x": x}))


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
