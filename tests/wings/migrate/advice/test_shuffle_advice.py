"""Channel shuffles are found by what they do, and are one `index_select` that gives the same bits."""

from __future__ import annotations

import textwrap
from collections.abc import Callable
from typing import Any

import pytest
import torch
from advising import advise

RULE = "channel-shuffle"

STATEMENTS = """
    import torch

    def shuffle(x, groups):
        batchsize, num_channels, height, width = x.data.size()
        channels_per_group = num_channels // groups
        # reshape
        x = x.view(batchsize, groups,
                   channels_per_group, height, width)
        x = torch.transpose(x, 1, 2).contiguous()
        # flatten
        x = x.view(batchsize, -1, height, width)
        return x
"""
ONE_EXPRESSION = """
    import torch as th

    def shuffle(x, groups):
        N, C, H, W = x.size()
        return x.view(N, groups, C // groups, H, W).permute(0, 2, 1, 3, 4).reshape(N, C, H, W)
"""
OTHER_NAMES = """
    import torch

    def shuffle(images, groups):
        n = images.shape[0]
        h, w = images.size(2), images.size(-1)
        parts = images.reshape((n, groups, -1, h, w))
        swapped = parts.transpose(2, 1)
        return swapped.contiguous().view(n, groups * (images.shape[1] // groups), h, w)
"""
LINES = """
    import torch

    def shuffle(x, groups):
        y = x[..., 0]
        b, c, l = y.shape
        return y.view(b, groups, c // groups, l).transpose(1, 2).contiguous().view(b, -1, l)
"""
WRITTEN_OUT = """
    from torch import nn

    class Shuffle(nn.Module):
        def __init__(self, groups):
            super().__init__()
            self.groups = groups

        def forward(self, x):
            return (
                x.view(x.size(0), self.groups, x.size(1) // self.groups, x.size(2), x.size(3))
                .transpose(1, 2)
                .contiguous()
                .view(x.size(0), -1, x.size(2), x.size(3))
            )

    def shuffle(x, groups):
        return Shuffle(groups)(x)
"""
FORMS = [STATEMENTS, ONE_EXPRESSION, OTHER_NAMES, LINES, WRITTEN_OUT]


def function(text: str) -> Callable[[torch.Tensor, int], torch.Tensor]:
    names: dict[str, Any] = {}
    exec(textwrap.dedent(text), names)
    found: Callable[[torch.Tensor, int], torch.Tensor] = names["shuffle"]
    return found


def bits(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().contiguous().view(torch.uint8)


@pytest.mark.parametrize("target", ["npu", "neutral"])
@pytest.mark.parametrize("form", FORMS)
def test_a_shuffle_is_listed_with_its_faster_form(form: str, target: str) -> None:
    advised = advise(form, target)
    # then one place is listed, with its source and what stays equal, and nothing is changed
    (row,) = advised.of(RULE)
    assert row.outcome.value == "listed"
    assert ".index_select(1, torch.arange(" in row.replacement
    assert "porting guide" in row.reason
    assert "same values and gradients" in row.reason
    assert advised.text == textwrap.dedent(form)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int64]
)
def test_the_written_form_gives_the_same_bits(form: str, dtype: torch.dtype) -> None:
    # given the original function, and the one that --advice-apply writes
    advised = advise(form, "npu", apply=True)
    assert [row.rule for row in advised.written] == [f"advice/{RULE}"]
    assert "index_select" in advised.text
    assert "contiguous" not in advised.text
    original, written = function(form), advised.run()["shuffle"]
    generator = torch.Generator().manual_seed(3)
    # then for many shapes and numbers of groups the results are the same bit by bit, and laid out the same
    for batch, channels, groups, height, width in [
        (1, 4, 2, 3, 5),
        (3, 12, 3, 2, 2),
        (2, 12, 4, 1, 7),
        (2, 6, 1, 2, 3),
        (2, 6, 6, 2, 3),
    ]:
        x = torch.randn(batch, channels, height, width, generator=generator) * 100
        x = x.to(dtype)
        one, two = original(x, groups), written(x, groups)
        assert one.shape == two.shape
        assert one.stride() == two.stride()
        assert torch.equal(bits(one), bits(two))


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_the_written_form_gives_the_same_gradients(form: str, dtype: torch.dtype) -> None:
    original = function(form)
    written = advise(form, "npu", apply=True).run()["shuffle"]
    generator = torch.Generator().manual_seed(5)
    for groups in (1, 2, 3, 6):
        x = torch.randn(2, 12, 4, 3, generator=generator).to(dtype).requires_grad_()
        result = original(x, groups)
        gradient = torch.randn(result.shape, generator=generator).to(dtype)
        (one,) = torch.autograd.grad(result, x, gradient)
        (two,) = torch.autograd.grad(written(x, groups), x, gradient)
        assert torch.equal(bits(one), bits(two))


def test_neutral_code_keeps_the_form_that_is_faster_on_a_cpu() -> None:
    advised = advise(STATEMENTS, "neutral", apply=True)
    (row,) = advised.of(RULE)
    assert row.outcome.value == "listed"
    assert "a CPU copies faster than it selects" in row.reason
    assert advised.text == textwrap.dedent(STATEMENTS)


def test_sizes_that_nothing_reads_any_more_go() -> None:
    # given sizes with names of their own, one of which is read elsewhere too
    text = """
        import torch

        def shuffle(x, groups):
            n = x.shape[0]
            h = x.size(2)
            w = x.size(-1)
            y = x.view(n, groups, -1, h, w).transpose(1, 2).reshape(n, -1, h, w)
            return y * h
    """
    lines = advise(text, apply=True).text.splitlines()
    assert [line.strip().split(" ")[0] for line in lines[4:]] == ["h", "y", "return"]


def test_a_negative_zero_in_a_gradient_loses_its_sign() -> None:
    # given what the advice says of itself
    original = function(ONE_EXPRESSION)
    written = advise(ONE_EXPRESSION, "npu", apply=True).run()["shuffle"]
    x = torch.ones(1, 4, 1, 1, requires_grad=True)
    gradient = torch.full((1, 4, 1, 1), -0.0)
    (one,) = torch.autograd.grad(original(x, 2), x, gradient)
    (two,) = torch.autograd.grad(written(x, 2), x, gradient)
    # then the values are equal, the sign of zero is not
    assert torch.equal(one, two)
    assert bool(torch.signbit(one).all())
    assert not torch.signbit(two).any()
    (row,) = advise(ONE_EXPRESSION).of(RULE)
    assert "a zero in a gradient may lose its sign" in row.reason


def test_comments_and_everything_else_stay() -> None:
    advised = advise(STATEMENTS, "npu", apply=True)
    lines = advised.text.splitlines()
    assert "    # reshape" in lines
    assert "    # flatten" in lines
    assert lines[-1] == "    return x"
    assert len(lines) == len(textwrap.dedent(STATEMENTS).splitlines()) - 3


@pytest.mark.parametrize(
    "change",
    [
        # the axes that are swapped are others
        ("transpose(x, 1, 2)", "transpose(x, 1, 3)"),
        # the rest does not come back as it was
        ("x.view(batchsize, -1, height, width)", "x.view(batchsize, -1, width, height)"),
        ("x.view(batchsize, -1, height, width)", "x.view(-1, num_channels, height, width)"),
        # sizes of something else
        ("x.data.size()", "template.size()"),
        # the shape in between is used
        ("# flatten", "print(x)"),
        # the tensor is another one by then
        ("channels_per_group = num_channels // groups", "channels_per_group = 2; x = x[:2]"),
    ],
)
def test_what_is_no_shuffle_stays_silent(change: tuple[str, str]) -> None:
    assert change[0] in STATEMENTS
    advised = advise(STATEMENTS.replace(*change), apply=True)
    assert advised.of(RULE) == []
    assert "index_select" not in advised.text


def test_a_shuffle_that_is_split_apart_is_no_shuffle() -> None:
    # given groups that become a part of the batch, as in ShuffleNetV2's split
    advised = advise(
        """
        def channel_shuffle(x):
            b, c, h, w = x.data.size()
            x = x.reshape(b * c // 2, 2, h * w)
            x = x.permute(1, 0, 2)
            x = x.reshape(2, -1, c // 2, h, w)
            return x[0], x[1]

        torch = None
        """
    )
    assert advised.of(RULE) == []


def test_a_size_from_before_a_loop_is_not_trusted_in_it() -> None:
    advised = advise(
        """
        import torch

        def shuffle(x, groups):
            b, c, h, w = x.shape
            for _ in range(3):
                x = x.view(b, groups, c // groups, h, w).transpose(1, 2).reshape(b, c, h, w)
                x = x.transpose(2, 3)
            return x
        """
    )
    assert advised.of(RULE) == []


def test_the_intermediate_result_is_needed_elsewhere() -> None:
    advised = advise(
        """
        import torch

        def shuffle(x, groups):
            b, c, h, w = x.shape
            parts = x.view(b, groups, c // groups, h, w)
            swapped = parts.transpose(1, 2).contiguous()
            result = swapped.view(b, c, h, w)
            return result, parts
        """,
        apply=True,
    )
    # then the first step stays, so there is no whole shuffle to write
    assert advised.of(RULE) == []


def test_other_devices_are_given_no_advice_on_it() -> None:
    for target in ("xpu", "hpu", "mps"):
        assert advise(STATEMENTS, target).of(RULE) == []


@pytest.mark.parametrize("call", ["F.channel_shuffle(x, 2)", "nn.ChannelShuffle(2)(x)"])
def test_torchs_own_shuffle_is_listed(call: str) -> None:
    text = f"""
        import torch.nn as nn
        import torch.nn.functional as F

        def forward(x):
            return {call}
    """
    (row,) = advise(text, apply=True).of("channel-shuffle-operator")
    assert row.outcome.value == "listed"
    assert "index_select" in row.replacement
    assert advise(text, "neutral").rows == ()


def test_a_projects_own_shuffle_function_is_no_operator_of_torch() -> None:
    advised = advise(
        "from mine import F\n\nimport torch\ny = F.channel_shuffle(torch.ones(1), 2)\n"
    )
    assert advised.rows == ()


def test_the_replacement_for_torchs_own_shuffle_is_equal() -> None:
    (row,) = advise("import torch\ny = torch.channel_shuffle(x, groups)\n").rows
    x = torch.randn(2, 6, 3, 3)
    for groups in (1, 2, 3, 6):
        written = eval(row.replacement, {"torch": torch, "x": x, "groups": groups})
        assert torch.equal(written, torch.nn.functional.channel_shuffle(x, groups))


@pytest.mark.parametrize("form", [STATEMENTS, ONE_EXPRESSION])
def test_a_batch_with_channels_last_gives_the_same(form: str) -> None:
    original, written = function(form), advise(form, "npu", apply=True).run()["shuffle"]
    x = torch.randn(2, 8, 3, 5).to(memory_format=torch.channels_last)
    one, two = original(x, 4), written(x, 4)
    assert one.stride() == two.stride()
    assert torch.equal(bits(one), bits(two))
