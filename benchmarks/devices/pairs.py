"""What is compared: sound pairs of recordings and planted faults, as rows of two tables."""

from __future__ import annotations

import fnmatch
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from models import NETWORKS
from trainings import PRECISIONS


@dataclass(frozen=True)
class Side:
    """One recording of a training: where it ran, its variant, which run of it, and the fault that is planted.

    `on_cpu` is the processor without emulation, else the device that is tried.
    """

    variant: str = "plain"
    on_cpu: bool = False
    again: bool = False
    fault: str = ""

    @property
    def name(self) -> str:
        """A folder's name."""
        marks = ("cpu" if self.on_cpu else "device", "again" if self.again else "", self.fault)
        return "-".join(one for one in (self.variant, *marks) if one)


@dataclass(frozen=True)
class Row:
    """One comparison of the campaign."""

    training: str
    precision: str
    pair: str
    reference: Side
    candidate: Side

    @property
    def group(self) -> str:
        """The rows whose recordings are shared: `gpt/fp32`."""
        return f"{self.training}/{self.precision}"

    @property
    def name(self) -> str:
        """`gpt/fp32/compiled`."""
        return f"{self.group}/{self.pair}"

    @property
    def sides(self) -> tuple[Side, Side]:
        """Both recordings."""
        return self.reference, self.candidate


_PLAIN, _CPU = Side(), Side(on_cpu=True)
_LOOP, _FOREACH, _FUSED = (Side(f"optimizer-{one}") for one in ("loop", "foreach", "fused"))

SOUND = (
    # pair, reference, candidate, what a network needs for it
    ("twice", _PLAIN, Side(again=True), ""),
    ("other-device", _CPU, _PLAIN, ""),
    ("compiled", _PLAIN, Side("compiled"), ""),
    ("attention-math", _PLAIN, Side("attention-math"), "attention"),
    ("attention-flash", _PLAIN, Side("attention-flash"), "attention"),
    ("attention-efficient", _PLAIN, Side("attention-efficient"), "attention"),
    ("foreach-against-loop", _LOOP, _FOREACH, ""),
    ("fused-against-loop", _LOOP, _FUSED, ""),
    ("fused-against-foreach", _FOREACH, _FUSED, ""),
    ("channels-last", _PLAIN, Side("channels-last"), "convolution"),
    ("deterministic", _PLAIN, Side("deterministic"), ""),
    ("cuda-graphs", _PLAIN, Side("cuda-graphs"), ""),
)

FAULTS = (
    # training, precision, kind of benchmarks/faults, whether the reference is the CPU's
    ("mlp", "fp32", "activation-variant", False),
    ("mlp", "fp32", "output-scaled-code", True),
    ("mlp", "bf16-autocast", "dropped-bias", True),
    ("mlp", "fp32", "weight-decay", True),
    ("resnet", "fp32", "convolution-bf16", False),
    ("resnet", "fp32", "norm-epsilon", True),
    ("resnet", "bf16-autocast", "tail-unwritten", True),
    ("resnet", "fp32", "running-momentum", False),
    ("lstm", "fp32", "recurrence-fp16", False),
    ("lstm", "fp32", "recurrent-backward", True),
    ("lstm", "fp16-scaler", "rows-rolled", True),
    ("gpt", "fp32", "matmul-fp16", True),
    ("gpt", "fp32", "attention-scale", True),
    ("gpt", "bf16-autocast", "mask-off-by-one", True),
    ("gpt", "fp16-scaler", "input-gradient-sign", False),
    ("gpt", "fp32", "one-parameter-step", False),
    ("bert", "fp32", "attention-bf16", False),
    ("bert", "fp32", "gradient-hook", True),
    ("bert", "bf16-autocast", "loss-reduction", True),
    ("bert", "bf16-pure", "weight-transposed", False),
    ("vit", "fp32", "norm-backward", True),
    ("vit", "fp32", "batch-normalised", True),
    ("vit", "bf16-autocast", "output-shifted", False),
    ("unet", "fp32", "concatenation-order", True),
    ("unet", "fp32", "one-element", False),
    ("unet", "bf16-autocast", "dropped-bias", True),
    ("unet", "fp16-scaler", "not-a-number", False),
    ("mixtral", "fp32", "softmax-dimension", True),
    ("mixtral", "fp32", "stray-detach", False),
    ("mixtral", "bf16-autocast", "parameter-not-trained", False),
    ("whisper", "fp32", "custom-function-half", True),
    ("whisper", "fp32", "init-scaled", False),
    ("whisper", "bf16-autocast", "index-offset", True),
    ("dlrm", "fp32", "output-fp16", False),
    ("dlrm", "fp32", "optimizer-epsilon", True),
    ("dlrm", "bf16-pure", "learning-rate", False),
    ("policy", "fp32", "weight-gradient-scaled", True),
    ("policy", "fp32", "gradient-fp16", False),
    ("gan", "fp32", "output-scaled-kernel", True),
    ("gan", "fp32", "input-accumulated", False),
)


def rows(patterns: Sequence[str] = ("*",)) -> list[Row]:
    """All rows whose name matches one of these, those that share recordings beside each other.

    Examples
    --------
    >>> [row.name for row in rows(["mlp/fp32/twice"])]
    ['mlp/fp32/twice']
    """
    found = [*_sound_rows(), *_fault_rows()]
    order = {
        f"{training}/{precision}": number
        for number, (training, precision) in enumerate(
            (training, precision) for training in NETWORKS for precision in PRECISIONS
        )
    }
    chosen = (row for row in found if any(fnmatch.fnmatch(row.name, one) for one in patterns))
    return sorted(chosen, key=lambda row: order[row.group])


def _sound_rows() -> Iterator[Row]:
    for training, network in NETWORKS.items():
        for precision in PRECISIONS:
            for pair, reference, candidate, trait in SOUND:
                if not trait or trait in network.traits:
                    yield Row(training, precision, pair, reference, candidate)


def _fault_rows() -> Iterator[Row]:
    for training, precision, kind, on_cpu in FAULTS:
        reference = _CPU if on_cpu else _PLAIN
        yield Row(training, precision, f"fault {kind}", reference, Side(fault=kind))
