"""Train a small network in one of several ways; with `--fault` its activation is a different one from step 8 on."""

from __future__ import annotations

import copy
import sys
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

STEPS, LATE = 12, 8


class Net(nn.Module):
    """Two layers, norm and dropout; with labels it gives a loss too."""

    def __init__(self, *, fault: bool, norm: nn.Module) -> None:
        super().__init__()
        self.first, self.norm, self.drop, self.last = (
            nn.Linear(16, 32), norm, nn.Dropout(0.1), nn.Linear(32, 4),
        )  # fmt: skip
        self.fault, self.now = fault, 0

    def forward(self, x: Tensor, labels: Tensor | None = None) -> Any:
        """Return the scores of four classes."""
        hidden = self.norm(self.first(x))
        late = self.fault and self.now >= LATE
        hidden = functional.gelu(hidden, approximate="tanh" if late else "none")
        scores = self.last(self.drop(hidden))
        if labels is None:
            return scores
        return {"loss": functional.cross_entropy(scores, labels), "logits": scores}


class Data(torch.utils.data.Dataset[dict[str, Tensor]]):
    """Random samples."""

    def __init__(self) -> None:
        self.x, self.labels = torch.randn(128, 16), torch.randint(0, 4, (128,))

    def __len__(self) -> int:
        return 128

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        return {"x": self.x[index], "labels": self.labels[index]}


def without_end(loader: Any) -> Iterator[dict[str, Tensor]]:
    """Batches of one epoch after the other."""
    while True:
        yield from loader


def loop(
    net: Net,
    model: nn.Module,
    optimizers: list[torch.optim.Optimizer],
    batches: Any,
    update: Callable[[Tensor], object],
    accumulates: int = 1,
) -> None:
    """A plain loop; `update` is called with the last loss of a step."""
    drawn = without_end(batches)
    for net.now in range(STEPS):
        for optimizer in optimizers:
            optimizer.zero_grad()
        for number in range(accumulates):
            batch = next(drawn)
            loss = functional.cross_entropy(model(batch["x"]), batch["labels"]) / accumulates
            if number < accumulates - 1:
                loss.backward()
        update(loss)


def train(way: str, *, fault: bool) -> None:
    """Train in a way."""
    torch.manual_seed(0)
    norm = nn.LayerNorm(32) if way == "fsdp2" else nn.BatchNorm1d(32)
    net, data = Net(fault=fault, norm=norm), Data()
    loader = torch.utils.data.DataLoader(data, 8, shuffle=True)
    if way in ("ddp", "fsdp2"):
        _ranks(way, net, data)
    elif way == "trainer":
        _trainer(net, data)
    elif way == "accelerate":
        _accelerate(net, loader)
    else:
        _plain(way, net, loader)


def _plain(way: str, net: Net, loader: Any) -> None:
    optimizers: list[torch.optim.Optimizer] = []
    after: Callable[[], object] = lambda: None  # noqa: E731
    model: Any = net
    if way == "optimizers":
        optimizers = [
            torch.optim.AdamW([*net.first.parameters(), *net.norm.parameters()], 1e-2),
            torch.optim.SGD(net.last.parameters(), 1e-2, momentum=0.9),
        ]
    elif way == "copy":
        mean = copy.deepcopy(net).eval()

        def after() -> None:
            with torch.no_grad():
                for one, now in zip(mean.parameters(), net.parameters(), strict=True):
                    one.lerp_(now, 0.1)

    elif way == "averaged":
        average = torch.optim.swa_utils.get_ema_multi_avg_fn(0.9)
        averaged = torch.optim.swa_utils.AveragedModel(net, multi_avg_fn=average)
        after = lambda: averaged.update_parameters(net)  # noqa: E731
    elif way == "compile":
        model = torch.compile(net, backend="aot_eager")

    optimizers = optimizers or [torch.optim.AdamW(net.parameters(), 1e-2)]
    scaler = torch.amp.GradScaler("cpu", init_scale=256.0, growth_interval=5)

    def update(loss: Tensor) -> None:
        if way == "scaler":
            scaler.scale(loss).backward()
            scaler.step(optimizers[0])
            scaler.update()
        else:
            loss.backward()
            for one in optimizers:
                one.step()
        after()

    loop(net, model, optimizers, loader, update, 3 if way == "accumulate" else 1)
    if way == "compile":
        counters = torch._dynamo.utils.counters  # type: ignore[attr-defined]
        print(f"frames {counters['frames']['total']}, recompiled {len(counters['recompiles'])}")


def _accelerate(net: Net, loader: Any) -> None:
    from accelerate import Accelerator

    optimizer = torch.optim.AdamW(net.parameters(), 1e-2)
    accelerator = Accelerator(cpu=True)
    model, optimizer, loader = accelerator.prepare(net, optimizer, loader)

    def update(loss: Tensor) -> None:
        accelerator.backward(loss)
        accelerator.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()

    loop(net, model, [optimizer], loader, update)


def _trainer(net: Net, data: Data) -> None:
    import transformers

    class Tells(transformers.TrainerCallback):  # type: ignore[misc]
        def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            net.now = state.global_step

    arguments = transformers.TrainingArguments(
        "out", max_steps=STEPS, per_device_train_batch_size=8, use_cpu=True, report_to=[],
        save_strategy="no", logging_steps=4, learning_rate=1e-2, disable_tqdm=True,
    )  # fmt: skip
    transformers.Trainer(net, arguments, train_dataset=data, callbacks=[Tells()]).train()


def _ranks(way: str, net: Net, data: Data) -> None:
    torch.distributed.init_process_group("gloo")
    model: nn.Module = net
    if way == "ddp":
        model = nn.parallel.DistributedDataParallel(net)
    else:
        from torch.distributed.fsdp import fully_shard

        fully_shard(net.first)
        fully_shard(net)
    sampler = torch.utils.data.distributed.DistributedSampler(data)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-2)

    def update(loss: Tensor) -> None:
        loss.backward()
        optimizer.step()

    loader = torch.utils.data.DataLoader(data, 8, sampler=sampler)
    loop(net, model, [optimizer], loader, update)
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    train(sys.argv[1], fault="--fault" in sys.argv)
