"""A form that is advised does what the advice says; which places are advised on stands in `pairs/advice`."""

from __future__ import annotations

import pytest
import torch
from advising import advise
from torch.utils.data import DataLoader, TensorDataset

from lockstep_migrate.advice.optimizers import known_optimizers
from lockstep_migrate.names import has_name

SHUFFLE = """
    import torch

    def channel_shuffle(x, groups):
        n, c, h, w = x.size()
        x = x.view(n, groups, c // groups, h, w)
        x = {copied}
        return x.view(n, -1, h, w)
"""


def test_whole_batches_are_the_same() -> None:
    # given ten samples in batches of four
    data = TensorDataset(torch.arange(10.0))
    advised = advise(
        """
        from torch.utils.data import DataLoader

        train_loader = DataLoader(
            data,
            batch_size=4,
        )
        batches = [batch for batch, in train_loader]
        """,
        apply=True,
    )
    # then the batches that are left are the same bit by bit, and all of one shape
    original = [batch for (batch,) in DataLoader(data, batch_size=4)]
    written = advised.run(data=data)["batches"]
    assert [batch.tolist() for batch in written] == [batch.tolist() for batch in original[:2]]
    assert "batch_size=4, drop_last=True,\n" in advised.text


def test_class_numbers_of_the_advised_type_are_refused_by_a_cpu_as_it_says() -> None:
    with pytest.raises(RuntimeError, match="dtype"):
        torch.nn.functional.cross_entropy(torch.ones(1, 2), torch.zeros(1, dtype=torch.int32))


def test_optimizers_of_the_table_exist_and_take_what_it_says() -> None:
    for name, optimizer in known_optimizers().items():
        assert has_name("npu", optimizer.npu)
        kind = getattr(torch.optim, name.rpartition(".")[2])
        # then torch's own takes every argument that the NPU's is said to take
        parameter = torch.nn.Parameter(torch.zeros(1))
        values = {"params": [parameter], "betas": (0.9, 0.99)}
        given = {key: values.get(key, 0.5) for key in optimizer.npu_parameters}
        given |= {key: False for key in ("nesterov", "amsgrad", "centered") if key in given}
        kind(**given)
        if "neutral" in optimizer.fused_targets:
            kind([parameter], lr=0.1, fused=True)


def test_an_assignment_under_a_mask_keeps_its_values() -> None:
    text = "import torch\nfrom torch import nn\nclass A(nn.Module):\n    def forward(self, x):\n        x[x < 0] = 0\n"
    (row,) = advise(text, "neutral").rows
    x = torch.linspace(-2, 2, 9)
    one = x.clone()
    one[one < 0] = 0
    assert torch.equal(one, eval(row.replacement.removeprefix("x = "), {"torch": torch, "x": x}))


@pytest.mark.parametrize("target", ["npu", "neutral"])
@pytest.mark.parametrize(
    "copied",
    ["torch.transpose(x, 1, 2).contiguous()", "x.transpose(2, 1).contiguous()",
     "x.permute(0, 2, 1, 3, 4).contiguous()"],
)  # fmt: skip
def test_a_channel_shuffle_gives_the_same_bits_gradients_and_layout(
    target: str, copied: str
) -> None:
    text = SHUFFLE.format(copied=copied)
    listed, written = advise(text, target), advise(text, target, apply=True)
    # when it is listed or written at its line
    ((shown,), (row,)) = (one.of("channel-shuffle") for one in (listed, written))
    assert (shown.outcome.value, row.outcome.value, row.line) == ("listed", "rewritten", 7)
    assert ".contiguous()" not in written.text
    # then the form gives the same
    results = []
    for one in (listed, written):
        x = torch.arange(72.0).view(2, 6, 3, 2).requires_grad_()
        shuffled = one.run()["channel_shuffle"](x, 3)
        (shuffled * shuffled).sum().backward()
        results.append((shuffled, x.grad, torch.tensor(shuffled.stride())))
    assert all(map(torch.equal, *results))
    whole = torch.arange(72.0).view(2, 6, 3, 2)
    other = eval(shown.replacement, {"torch": torch, "x": whole, "groups": 3})
    assert torch.equal(listed.run()["channel_shuffle"](whole, 3), other)


@pytest.mark.parametrize(
    ("product", "operand"),
    [
        ("x @ y.transpose(-1, -2).contiguous()", "y.transpose(-1, -2)"),
        ("torch.matmul(x, y.t().contiguous())", "y.t()"),
        ("torch.bmm(x.permute(0, 2, 1).contiguous(), y)", "x.permute(0, 2, 1)"),
        ("x.mm(y.T.contiguous())", "y.T"),
    ],
)
def test_a_product_of_transposed_operands_is_equal_up_to_rounding(
    product: str, operand: str
) -> None:
    for target in ("neutral", "npu", "xpu", "hpu", "mps"):
        (row,) = advise(f"import torch\nz = {product}\n", target, apply=True).rows
        assert (row.rule, row.outcome.value) == ("advice/transposed-operand", "listed")
        assert row.replacement == operand
    shape = (4, 4) if "bmm" not in product else (2, 4, 4)
    x, y = torch.randn(shape), torch.randn(shape)
    names = {"torch": torch, "x": x, "y": y}
    other = product.replace(f"{operand}.contiguous()", operand)
    assert torch.allclose(eval(product, names), eval(other, names), atol=1e-5)
