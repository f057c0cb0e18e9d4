"""The same network built in another way: sound pairs agree, a fault is named at its module.

Real models, recorded in this process. Every way of building comes with a twin that has one fault.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import lockstep
from lockstep.core.finding import Comparison, Verdict

WIDTH, HEADS = 32, 4


class Attention(nn.Module):
    """Attention by the fused operator or written out, with `scale` times the right scale and a
    gradient of the probabilities that is `slope` times the right one."""

    def __init__(self, *, by_hand: bool = False, scale: float = 1.0, slope: float = 1.0) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.by_hand, self.scale, self.slope = by_hand, scale, slope

    def forward(self, x: Tensor) -> Tensor:
        parts = self.qkv(x).chunk(3, -1)
        query, key, value = (one.unflatten(-1, (HEADS, -1)).transpose(1, 2) for one in parts)
        if self.by_hand:
            scale = self.scale / math.sqrt(query.shape[-1])
            weights = (query @ key.transpose(-1, -2) * scale).softmax(-1)
            if self.slope != 1.0 and weights.requires_grad:
                weights.register_hook(lambda gradient: gradient * self.slope)
            mixed = weights @ value
        else:
            mixed = functional.scaled_dot_product_attention(query, key, value)
        return self.out(mixed.transpose(1, 2).flatten(2))


class Norm(nn.Module):
    """Layer normalisation written out, under other parameter names."""

    def __init__(self, *, eps: float = 1e-5) -> None:
        super().__init__()
        self.gain, self.shift = nn.Parameter(torch.ones(WIDTH)), nn.Parameter(torch.zeros(WIDTH))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        centred = x - x.mean(-1, keepdim=True)
        variance = centred.square().mean(-1, keepdim=True)
        return centred * torch.rsqrt(variance + self.eps) * self.gain + self.shift


class Mlp(nn.Module):
    """Two linear layers with a gelu in between: a module, or the formula with `half` in it."""

    def __init__(self, *, by_hand: bool = False, half: float = 0.5) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(WIDTH, 48), nn.Linear(48, WIDTH)
        if not by_hand:
            self.act = nn.GELU()
        self.by_hand, self.half = by_hand, half

    def forward(self, x: Tensor) -> Tensor:
        x = self.up(x)
        if self.by_hand:
            return self.down(self.half * x * (1 + torch.erf(x / math.sqrt(2))))
        return self.down(self.act(x))


class Block(nn.Module):
    """A pre-norm block; `skipped` makes it the identity."""

    def __init__(
        self,
        attention: Callable[[], nn.Module] = Attention,
        norm: Callable[[], nn.Module] = lambda: nn.LayerNorm(WIDTH),
        mlp: Callable[[], nn.Module] = Mlp,
    ) -> None:
        super().__init__()
        self.ln1, self.attn = norm(), attention()
        self.ln2, self.mlp = norm(), mlp()
        self.skipped = False

    def forward(self, x: Tensor) -> Tensor:
        if self.skipped:
            return x
        x = x + self.attn(self.ln1(x))
        return x + self.mlp(self.ln2(x))


class Net(nn.Module):
    """A stack of blocks and a head."""

    def __init__(self, blocks: list[Block]) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(blocks)
        self.head = nn.Linear(WIDTH, 5)

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = block(x)
        return self.head(x.mean(1))


class Renamed(nn.Module):
    """The same network under other names, one level deeper."""

    def __init__(self, net: Net) -> None:
        super().__init__()
        self.trunk = nn.Module()
        self.trunk.layers = nn.ModuleList([one for one in net.blocks if not one.skipped])
        self.score = net.head

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.trunk.layers:
            x = layer(x)
        return self.score(x.mean(1))


def net(count: int = 2, **parts: Callable[[], nn.Module]) -> Net:
    """A network of some blocks, always with the same parameters."""
    torch.manual_seed(0)
    return Net([Block(**parts) for _ in range(count)])


Build = Callable[[], nn.Module]


class Recordings:
    """One training step of each model, recorded once."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._made: dict[Build, Path] = {}

    def of(self, build: Build, inputs: Tensor | None) -> Path:
        """The recording of what `build` makes."""
        if build not in self._made:
            path = self._directory / f"recording{len(self._made)}"
            model = build()
            torch.manual_seed(1)
            inputs = torch.randn(3, 7, WIDTH) if inputs is None else inputs
            optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
            with lockstep.record(path, model=model, steps="0:1"):
                functional.cross_entropy(model(inputs), torch.tensor([0, 1, 2])).backward()
                optimizer.step()
            self._made[build] = path
        return self._made[build]

    def both_ways(
        self, reference: Build, candidate: Build, inputs: Tensor | None = None
    ) -> tuple[Comparison, Comparison]:
        """Compare two models, and the other way round."""
        left, right = self.of(reference, inputs), self.of(candidate, inputs)
        return lockstep.compare_recordings(left, right), lockstep.compare_recordings(right, left)


@pytest.fixture(scope="module")
def recordings(tmp_path_factory: pytest.TempPathFactory) -> Recordings:
    return Recordings(tmp_path_factory.mktemp("other_build"))


def methods(comparison: Comparison) -> set[str]:
    return {finding.pair.method for finding in comparison.findings}


Part = Callable[[], nn.Module]
BY_HAND: dict[str, tuple[str, Part, list[tuple[Part, str]]]] = {
    "attention": (
        "attention",
        lambda: Attention(by_hand=True),
        [
            (lambda: Attention(by_hand=True, scale=1.1), "forward"),
            (lambda: Attention(by_hand=True, scale=1.001), "forward"),
            (lambda: Attention(by_hand=True, slope=1.05), "backward"),
        ],
    ),
    "gelu": (
        "mlp",
        lambda: Mlp(by_hand=True),
        [
            (lambda: Mlp(by_hand=True, half=0.49), "forward"),
            (lambda: Mlp(by_hand=True, half=0.5005), "forward"),
        ],
    ),
    "layer norm": ("norm", Norm, [(lambda: Norm(eps=1e-3), "forward")]),
}
MODULES = {"attention": "attn", "gelu": "mlp", "layer norm": "ln1"}


@pytest.mark.parametrize("what", BY_HAND)
def test_written_by_hand_agrees_with_the_library(recordings: Recordings, what: str) -> None:
    # given a network with one kind of part from the library, and one with it written out
    part, sound, _ = BY_HAND[what]
    forth, back = recordings.both_ways(net, lambda: net(**{part: sound}))
    # then they agree, and the library's operator stands against the last one of the formula
    assert forth.verdict is back.verdict is Verdict.AGREE
    assert forth.origins == back.origins == ()
    assert forth.unaligned_candidate == back.unaligned_reference > 0
    assert any(method.startswith("content (nearest sketch, rel ") for method in methods(forth))


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("what", "number"),
    [(what, number) for what, (_, _, faults) in BY_HAND.items() for number in range(len(faults))],
)
def test_a_fault_in_what_is_written_by_hand_is_named_at_its_module(
    recordings: Recordings, what: str, number: int
) -> None:
    part, _, faults = BY_HAND[what]
    faulty, phase = faults[number]
    for comparison in recordings.both_ways(net, lambda: net(**{part: faulty})):
        assert comparison.verdict is Verdict.DIVERGED
        first = comparison.origins[0]
        block = 0 if phase == "forward" else 1
        assert (first.step, first.phase.value) == (0, phase)
        assert first.module == f"blocks.{block}.{MODULES[what]}"


def test_a_renamed_network_agrees_in_all_phases(recordings: Recordings) -> None:
    forth, back = recordings.both_ways(net, lambda: Renamed(net()))
    for comparison in (forth, back):
        assert comparison.verdict is Verdict.AGREE
        phases = {one.pair.present.site.phase.value for one in comparison.findings}
        assert phases == {"init", "data", "forward", "backward", "optimizer"}
    # everything has its partner but the calls of the list that one side unpacks elsewhere
    assert forth.unaligned_reference == 0
    assert "renamed module blocks -> trunk.layers, by equal contents" in forth.notes
    assert "renamed module trunk.layers -> blocks, by equal contents" in back.notes
    assert "renamed module head -> score, by equal contents" in methods(forth)


def test_a_fault_in_a_renamed_network_is_named_by_the_references_path(
    recordings: Recordings,
) -> None:
    faulty = net()
    faulty.blocks[1].mlp = Mlp(by_hand=True, half=0.49)
    faulty.blocks[1].mlp.load_state_dict(net().blocks[1].mlp.state_dict())
    forth, back = recordings.both_ways(net, lambda: Renamed(faulty))
    assert forth.origins[0].module == "blocks.1.mlp"
    assert back.origins[0].module == "trunk.layers.1.mlp"


def test_a_renamed_network_without_one_block_finds_the_others(recordings: Recordings) -> None:
    # given a network that skips its second block, and a renamed one that does not have it
    whole, shorter = net(3), net(3)
    whole.blocks[1].skipped = shorter.blocks[1].skipped = True
    forth, back = recordings.both_ways(lambda: whole, lambda: Renamed(shorter))
    # then the third block stands against the second, and the second alone: nothing trained depends on it
    assert forth.verdict is back.verdict is Verdict.AGREE
    assert (forth.origins, back.origins) == ((), ())
    assert "renamed module blocks.2 -> trunk.layers.1, by equal contents" in forth.notes
    lone = {one.pair.reference.site.module for one in forth.findings if one.pair.candidate is None
            and one.pair.reference is not None}  # fmt: skip
    assert {path for path in lone if path.startswith("blocks.")} >= {"blocks.1"}
    assert not any(path.startswith(("blocks.0", "blocks.2")) for path in lone)


# --- layouts --------------------------------------------------------------------------------------


class ChannelsFirstNorm(nn.Module):
    """Layer normalisation over axis 1."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(channels))
        self.bias = nn.Parameter(torch.zeros(channels))

    def forward(self, x: Tensor) -> Tensor:
        centred = x - x.mean(1, keepdim=True)
        scaled = centred / torch.sqrt(centred.square().mean(1, keepdim=True) + 1e-6)
        return self.weight[:, None, None] * scaled + self.bias[:, None, None]


class ConvBlock(nn.Module):
    """A ConvNeXt block in NCHW with 1x1 convolutions, or in NHWC with linear layers."""

    def __init__(
        self, *, channels_last: bool, eps: float = 1e-6, approximate: str = "none"
    ) -> None:
        super().__init__()
        self.depthwise = nn.Conv2d(12, 12, 3, padding=1, groups=12)
        self.norm = nn.LayerNorm(12, eps=eps) if channels_last else ChannelsFirstNorm(12)
        self.up = nn.Linear(12, 24) if channels_last else nn.Conv2d(12, 24, 1)
        self.act = nn.GELU(approximate=approximate)
        self.down = nn.Linear(24, 12) if channels_last else nn.Conv2d(24, 12, 1)
        self.channels_last = channels_last

    def forward(self, x: Tensor) -> Tensor:
        y = self.depthwise(x)
        y = y.permute(0, 2, 3, 1) if self.channels_last else y
        y = self.down(self.act(self.up(self.norm(y))))
        return x + (y.permute(0, 3, 1, 2) if self.channels_last else y)


class ConvNet(nn.Module):
    """Two such blocks between a stem and a head."""

    def __init__(self, block: Callable[[], nn.Module]) -> None:
        super().__init__()
        self.stem, self.head = nn.Conv2d(3, 12, 2, 2), nn.Linear(12, 5)
        self.blocks = nn.ModuleList([block() for _ in range(2)])

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        for block in self.blocks:
            x = block(x)
        return self.head(x.mean((2, 3)))


def conv_net(
    *, channels_last: bool = True, eps: float = 1e-6, approximate: str = "none"
) -> ConvNet:
    """A network in either layout, always with the same parameters."""
    torch.manual_seed(0)
    source = ConvNet(lambda: ConvBlock(channels_last=False)).state_dict()
    made = ConvNet(lambda: ConvBlock(channels_last=channels_last, eps=eps, approximate=approximate))
    shapes = {name: value.shape for name, value in made.state_dict().items()}
    made.load_state_dict({name: value.reshape(shapes[name]) for name, value in source.items()})
    return made


def channels_first() -> ConvNet:
    return conv_net(channels_last=False)


IMAGES = torch.linspace(-1, 1, 3 * 3 * 16 * 10).sin().mul(50).cos().reshape(3, 3, 16, 10)


def test_nhwc_agrees_with_nchw_and_says_what_was_compared(recordings: Recordings) -> None:
    for comparison in recordings.both_ways(channels_first, conv_net, IMAGES):
        assert comparison.verdict is Verdict.AGREE
        layouts = {one.pair.layout for one in comparison.findings if one.pair.layout is not None}
        assert len(layouts) == 2  # that of activations, and extents of 1 in weights
        said = [one.reason for one in comparison.findings if "only statistics" in one.reason]
        assert len(said) > 20


@pytest.mark.parametrize(
    ("faulty", "module"),
    [
        (lambda: conv_net(eps=1e-2), "blocks.0.norm"),
        (lambda: conv_net(approximate="tanh"), "blocks.0.act"),
    ],
    ids=["norm", "gelu"],
)
def test_a_fault_in_another_layout_is_named(
    recordings: Recordings, faulty: Callable[[], nn.Module], module: str
) -> None:
    for comparison in recordings.both_ways(channels_first, faulty, IMAGES):
        assert comparison.verdict is Verdict.DIVERGED
        assert (comparison.origins[0].phase.value, comparison.origins[0].module) == (
            "forward",
            module,
        )


class Transposed(nn.Module):
    """A linear layer that keeps its weight transposed, as GPT-2's does."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(inputs, outputs) / 6)
        self.bias = nn.Parameter(torch.zeros(outputs))

    def forward(self, x: Tensor) -> Tensor:
        rows = torch.addmm(self.bias, x.flatten(0, 1), self.weight)
        return rows.view(*x.shape[:-1], rows.shape[-1])


class Stack(nn.Module):
    """Linear layers of either kind, one of them square; `shift` rolls what that one returns."""

    def __init__(self, linear: Callable[[int, int], nn.Module], shift: int = 0) -> None:
        super().__init__()
        self.up, self.down, self.square = linear(WIDTH, 48), linear(48, WIDTH), linear(WIDTH, WIDTH)
        self.head = nn.Linear(WIDTH, 5)
        self.shift = shift

    def forward(self, x: Tensor) -> Tensor:
        x = self.square(x + self.down(functional.gelu(self.up(x))))
        return self.head((x.roll(self.shift, -1) if self.shift else x).mean(1))


def transposed_stack() -> Stack:
    torch.manual_seed(0)
    return Stack(Transposed)


def stack(*, shift: int = 0) -> Stack:
    """The same numbers in usual linear layers."""
    plain = Stack(nn.Linear, shift)
    turned = {f"{name}.weight" for name in ("up", "down", "square")}
    values = transposed_stack().state_dict().items()
    plain.load_state_dict(
        {name: value.t().contiguous() if name in turned else value for name, value in values}
    )
    return plain


def test_weights_kept_transposed_agree(recordings: Recordings) -> None:
    for comparison in recordings.both_ways(transposed_stack, stack):
        assert comparison.verdict is Verdict.AGREE


def test_a_fault_among_transposed_weights_is_named(recordings: Recordings) -> None:
    for comparison in recordings.both_ways(transposed_stack, lambda: stack(shift=1)):
        assert comparison.origins[0].phase.value == "forward"
        assert comparison.origins[0].module == ""
