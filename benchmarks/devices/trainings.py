"""One training of the campaign as a script, to be recorded from a shell as users record theirs.

python benchmarks/devices/trainings.py gpt --device cuda --precision bf16-autocast
python benchmarks/devices/trainings.py gpt --device cuda --variant compiled
python benchmarks/devices/trainings.py gpt --device cuda --draw dropped-bias --planted drawn.json
python benchmarks/devices/trainings.py gpt --device cuda --planted drawn.json
"""

from __future__ import annotations

import argparse
import json
import random
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from models import NETWORKS, Batch, Network
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

sys.path.append(str(Path(__file__).parents[1] / "faults"))

from training import DATA_SEED, MODEL_SEED, Training

STEPS = 3
"""Two are recorded; the third shows that training goes on."""

FAULT_SEED = 75_000


class UnavailableError(Exception):
    """This device does not have what was asked for."""


@dataclass(frozen=True)
class Precision:
    """In which numbers a training computes."""

    autocast: torch.dtype | None = None
    parameters: torch.dtype | None = None
    scales: bool = False
    tf32: bool = False


PRECISIONS = {
    "fp32": Precision(),
    "tf32": Precision(tf32=True),
    "bf16-autocast": Precision(autocast=torch.bfloat16),
    "fp16-scaler": Precision(autocast=torch.float16, scales=True),
    "bf16-pure": Precision(parameters=torch.bfloat16),
}


@dataclass
class DeviceTraining(Training):
    """A training of `benchmarks/faults`, so that its faults can be planted, on a device and in a precision."""

    network: Network = field(kw_only=True)
    device: torch.device = field(kw_only=True)
    precision: Precision = field(kw_only=True)
    called: nn.Module = field(kw_only=True)
    """What the losses call: the model, or what was compiled of it."""
    captures: bool = False

    def run(self, recording: Path | None = None, *, save: str = "") -> list[float]:
        """Train; return the loss of each step."""
        optimizers = [self._optimizer(part) for part, _ in self.network.losses]
        scaler = torch.amp.GradScaler(self.device.type, enabled=self.precision.scales)
        torch.manual_seed(self.run_seed)
        with ExitStack() as stack:
            for context in self.around_run:
                stack.enter_context(context())
            if self.captures:
                return _replayed(self, optimizers)
            losses = [
                self._steps(number, batch, optimizers, scaler)
                for number, batch in enumerate(self.batches)
            ]
        return [float(loss.detach()) for loss in losses]

    def _optimizer(self, part: str) -> torch.optim.Optimizer:
        """The optimizer of a part; a fault may have left out parameters."""
        own = {id(one) for one in self.model.get_submodule(part).parameters()}
        chosen = [one for one in self.trainable(self.model) if id(one) in own]
        return self.optimizer(chosen, **self.settings)

    def _steps(
        self, number: int, batch: Batch, optimizers: list[Any], scaler: torch.amp.GradScaler
    ) -> Tensor:
        for call in self.before_step:
            call(number)
        for optimizer, (part, loss) in zip(optimizers, self.network.losses, strict=True):
            optimizer.zero_grad()
            with ExitStack() as stack:
                for context in self.around_step:
                    stack.enter_context(context())
                with self._autocast():
                    found = loss(self.called, batch)
                for context in self.around_backward:
                    stack.enter_context(context())
                scaler.scale(found).backward()
            scaler.unscale_(optimizer)
            if self.clip_norm is not None:
                owned = self.model.get_submodule(part).parameters()
                nn.utils.clip_grad_norm_(owned, self.clip_norm)
            scaler.step(optimizer)
        scaler.update()
        return found

    def _autocast(self) -> AbstractContextManager[Any]:
        dtype = self.precision.autocast
        return nullcontext() if dtype is None else torch.autocast(self.device.type, dtype)


def training_of(name: str, device: torch.device, precision: str) -> DeviceTraining:
    """The sound training of this name."""
    network, chosen = NETWORKS[name], PRECISIONS[precision]
    _set_tf32(device, chosen.tf32)
    torch.manual_seed(MODEL_SEED)
    model = network.build().train().to(device, chosen.parameters)
    generator = torch.Generator().manual_seed(DATA_SEED)
    batches = [
        {
            key: _moved(one, device, chosen.parameters)
            for key, one in network.batch(generator).items()
        }
        for _ in range(STEPS)
    ]
    return DeviceTraining(
        model, batches, network.losses[0][1], torch.optim.AdamW, {"lr": 1e-3}, 0.2,
        network=network, device=device, precision=chosen, called=model,
    )  # fmt: skip


def _moved(tensor: Tensor, device: torch.device, dtype: torch.dtype | None) -> Tensor:
    return tensor.to(device, dtype if tensor.is_floating_point() else None)


def _set_tf32(device: torch.device, allowed: bool) -> None:
    if allowed and device.type != "cuda":
        raise UnavailableError(f"TF32 is a setting of CUDA, not of {device.type}")
    torch.backends.cuda.matmul.allow_tf32 = allowed
    torch.backends.cudnn.allow_tf32 = allowed


# ------------------------------------------------------------------------------------ variants


def _compiled(training: DeviceTraining) -> None:
    model: Any = training.model
    if isinstance(model, nn.ModuleDict):
        for part in model.values():
            part.compile()
    else:
        model.compile()


def _attention(backend: SDPBackend) -> Callable[[DeviceTraining], None]:
    return lambda training: training.around_run.append(lambda: sdpa_kernel(backend))


def _updates(**settings: bool) -> Callable[[DeviceTraining], None]:
    return lambda training: training.settings.update(settings)


def _channels_last(training: DeviceTraining) -> None:
    training.model.to(memory_format=torch.channels_last)
    for batch in training.batches:
        for key, one in batch.items():
            if one.dim() == 4:
                batch[key] = one.contiguous(memory_format=torch.channels_last)


def _deterministic(training: DeviceTraining) -> None:
    torch.use_deterministic_algorithms(True, warn_only=True)
    torch.backends.cudnn.benchmark = False


def _captured(training: DeviceTraining) -> None:
    if training.device.type != "cuda":
        raise UnavailableError(f"CUDA graphs are not on {training.device.type}")
    training.settings["capturable"] = True
    training.captures = True


VARIANTS: dict[str, Callable[[DeviceTraining], None]] = {
    "plain": lambda training: None,
    "compiled": _compiled,
    "attention-math": _attention(SDPBackend.MATH),
    "attention-flash": _attention(SDPBackend.FLASH_ATTENTION),
    "attention-efficient": _attention(SDPBackend.EFFICIENT_ATTENTION),
    "optimizer-loop": _updates(foreach=False, fused=False),
    "optimizer-foreach": _updates(foreach=True),
    "optimizer-fused": _updates(fused=True),
    "channels-last": _channels_last,
    "deterministic": _deterministic,
    "cuda-graphs": _captured,
}


def _replayed(training: DeviceTraining, optimizers: list[Any]) -> list[float]:
    """Capture a step as a CUDA graph after one that runs as usual, and replay it with each other batch."""
    if training.precision.scales:
        raise UnavailableError("a step whose scaler may skip the update is not captured")
    still = torch.amp.GradScaler(training.device.type, enabled=False)
    held = {key: one.clone() for key, one in training.batches[0].items()}
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        losses = [float(training._steps(0, held, optimizers, still).detach())]
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        loss = training._steps(1, held, optimizers, still)
    for batch in training.batches[1:]:
        for key, one in batch.items():
            held[key].copy_(one)
        graph.replay()
        losses.append(float(loss.detach()))
    return losses


# -------------------------------------------------------------------------------------- faults


def draw(training: DeviceTraining, name: str, kind: str) -> dict[str, Any]:
    """Draw a place and an amount for a fault of `benchmarks/faults`; this trains a step, so it is done beforehand."""
    from cases import KINDS, Planted  # these take seconds to load

    places = _places(training, kind)
    if not places:
        raise UnavailableError(f"{kind}: there is no place for it in {name}")
    stream = random.Random(f"{FAULT_SEED}/{name}/{kind}")
    planted = Planted(stream.choice(places), KINDS[kind].amount.draw(stream))
    return {"kind": kind, **asdict(planted)}


def planted_of(values: dict[str, Any]) -> Any:
    """What `draw` returned, read from a file."""
    from cases import Planted
    from kinds import Target
    from sites import Place

    target = values["target"]
    place, operators = Place(**target["place"]), tuple(target["operators"])
    found = Target(**{**target, "place": place, "operators": operators})
    return Planted(found, values["amount"], values["from_step"])


def plant(training: DeviceTraining, values: dict[str, Any]) -> None:
    """Plant what was drawn."""
    from cases import KINDS

    KINDS[values["kind"]].plant(training, planted_of(values))


def _places(training: DeviceTraining, kind: str) -> list[Any]:
    from cases import KINDS
    from sites import survey

    fault = KINDS[kind]
    if fault.targets is not None:
        return fault.targets(training)
    found: list[Any] = []
    survey(training, lambda call: found.append(fault.fit(call)) if fault.fit else None)
    return [one for one in found if one is not None]


# ---------------------------------------------------------------------------------- the script


@contextmanager
def _said_if_unavailable() -> Iterator[None]:
    """Exit with 77, as test programs do that are to be skipped, where the device lacks something."""
    try:
        yield
    except UnavailableError as error:
        print(f"not on this device: {error}", file=sys.stderr)
        raise SystemExit(77) from None


def main() -> None:
    """Train."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("training", choices=NETWORKS)
    parser.add_argument("--device", type=torch.device, default="cpu")
    parser.add_argument("--precision", choices=PRECISIONS, default="fp32")
    parser.add_argument("--variant", choices=VARIANTS, default="plain")
    parser.add_argument("--planted", type=Path, help="plant the fault of this file")
    parser.add_argument("--draw", metavar="FAULT", help="draw it into the file --planted, no more")
    given = parser.parse_args()
    if given.device.type == "cpu":
        torch.set_num_threads(1)
    with _said_if_unavailable():
        training = training_of(given.training, given.device, given.precision)
        if given.draw:
            given.planted.write_text(json.dumps(draw(training, given.training, given.draw)))
            return
        VARIANTS[given.variant](training)
        if given.planted:
            plant(training, json.loads(given.planted.read_text()))
        for number, loss in enumerate(training.run()):
            print(f"step {number}: loss {loss:.6f}")


if __name__ == "__main__":
    main()
