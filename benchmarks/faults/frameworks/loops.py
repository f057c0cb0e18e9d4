"""Training loops written by hand: alone, with accelerate, on two ranks."""

from __future__ import annotations

import copy
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from architectures import Batch
from torch import Tensor, nn
from torch.nn import functional as F

from frameworks.script import Outcome, Script, Zero


class Loop:
    """The loop as most people write it; others override what their library has them write otherwise."""

    def __init__(self, script: Script) -> None:
        self.script = script
        self.losses: list[Tensor] = []
        self.model = script.made()
        self.network = self.spread(script.wrapped(self.model))
        self.optimizer = script.make_optimizer(self.updated())
        for edit in script.before_training:
            edit(self.network)
        self.scheduler: Any = None
        if script.schedule and not isinstance(self.optimizer, torch.optim.LBFGS):
            self.scheduler = torch.optim.lr_scheduler.LambdaLR(self.optimizer, script.factor)
        self.scaler: Any = torch.amp.GradScaler("cpu", init_scale=1024.0) if script.scaled else None
        self.teacher = copy.deepcopy(self.model) if script.teacher else None
        self.steps = 0

    def spread(self, model: nn.Module) -> nn.Module:
        """The model over all ranks."""
        return model

    def updated(self) -> nn.Module:
        """The module whose parameters are trained."""
        return self.model

    def run(self) -> Outcome:
        """Train to the end."""
        for number, batches in enumerate(self.script.load(self.script.batches)):
            torch.manual_seed(self.script.seed + number)
            for edit in self.script.before_step:
                edit(self.network)
            self.step(batches)
        return Outcome.of(self.losses, self.network)

    def step(self, batches: list[Batch]) -> None:
        """One update from the micro-batches given."""
        zero = self.script.zero
        if zero is Zero.BEFORE_BACKWARD:
            self.optimizer.zero_grad()
        for position, batch in enumerate(batches):
            if zero is Zero.EACH_BACKWARD:
                self.optimizer.zero_grad()
            with self.collecting(last=position == len(batches) - 1):
                loss = self.loss(batch)
                self.losses.append(loss)
                if self.script.divided and len(batches) > 1:
                    loss = loss / len(batches)
                self.backward(loss)
        if zero is Zero.BEFORE_UPDATE:
            self.optimizer.zero_grad()
        self.update()
        if self.script.teacher is not None:
            self.follow()

    def collecting(self, *, last: bool) -> AbstractContextManager[Any]:
        """Around a micro-batch; only the last one's gradients need to travel."""
        return nullcontext()

    def loss(self, batch: Batch) -> Tensor:
        """The loss of a batch."""
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=self.script.autocast):
            answer = self.network(**batch)
            loss: Tensor = self.script.loss(answer.loss)
            if self.teacher is not None and self.script.teacher is not None:
                wanted = self.teacher(**batch).logits.detach()
                loss = loss + self.script.teacher.weight * F.mse_loss(answer.logits, wanted)
        return loss

    def backward(self, loss: Tensor) -> None:
        """Gradients of a loss, added to those that are there."""
        if self.scaler is not None:
            loss = self.scaler.scale(loss)
        for number in range(self.script.backwards):
            loss.backward(retain_graph=number + 1 < self.script.backwards)
        for edit in self.script.after_backward:
            edit(self.network)

    def clip(self) -> None:
        """Keep the gradient's norm below the limit."""
        if self.script.clip_norm is not None:
            nn.utils.clip_grad_norm_(self.network.parameters(), self.script.clip_norm)

    def update(self) -> None:
        """Change the parameters."""
        if self.scaler is not None:
            if self.script.unscaled:
                self.scaler.unscale_(self.optimizer)
            self.clip()
            self.scaler.step(self.optimizer)
            self.scaler.update()
        else:
            self.clip()
            self.optimizer.step()
        if self.scheduler is not None:
            self.scheduler.step()

    @torch.no_grad()
    def follow(self) -> None:
        """The teacher follows the model."""
        assert self.teacher is not None
        assert self.script.teacher is not None
        settings = self.script.teacher
        source = self.teacher if settings.follows_itself else self.model
        for kept, latest in zip(self.teacher.parameters(), source.parameters(), strict=True):
            kept.mul_(settings.decay).add_(latest, alpha=1 - settings.decay)


class ClosureLoop(Loop):
    """For optimizers that ask for the loss several times a step."""

    def step(self, batches: list[Batch]) -> None:
        """One update of several evaluations."""

        def closure() -> Tensor:
            if self.script.zero is not Zero.NEVER:
                self.optimizer.zero_grad()
            loss = self.loss(batches[0])
            self.losses.append(loss)
            loss.backward()
            return loss

        self.optimizer.step(closure)


class BareLoop(Loop):
    """No optimizer at all: parameters are changed by the loop itself."""

    def step(self, batches: list[Batch]) -> None:
        """One update by hand, with momentum."""
        zero, rate = self.script.zero, self.script.options["lr"] * self.script.factor(self.steps)
        loss = self.loss(batches[0])
        self.losses.append(loss)
        if zero is not Zero.NEVER:
            self.model.zero_grad()
        self.backward(loss)
        self.clip()
        with torch.no_grad():
            for parameter in self.model.parameters():
                if parameter.grad is not None:
                    parameter.sub_(parameter.grad, alpha=rate)
        self.steps += 1


class AccelerateLoop(Loop):
    """The loop as accelerate's guide has it."""

    def __init__(self, script: Script) -> None:
        from accelerate import Accelerator

        self.accelerator = Accelerator(
            cpu=True, gradient_accumulation_steps=script.accumulate,
            mixed_precision="bf16" if script.autocast else "no",
        )  # fmt: skip
        super().__init__(script)
        prepared = self.accelerator.prepare(self.network, self.optimizer, self.scheduler)
        self.network, self.optimizer, self.scheduler = prepared

    def step(self, batches: list[Batch]) -> None:
        """One update; accelerate itself leaves out what is not due in a micro-batch."""
        for batch in batches:
            with self.accelerator.accumulate(self.network):
                answer = self.network(**batch)
                loss = self.script.loss(answer.loss)
                self.losses.append(loss)
                if not self.script.divided:
                    loss = loss * self.script.accumulate
                for number in range(self.script.backwards):
                    self.accelerator.backward(loss, retain_graph=number + 1 < self.script.backwards)
                for edit in self.script.after_backward:
                    edit(self.network)
                if self.accelerator.sync_gradients and self.script.clip_norm is not None:
                    self.accelerator.clip_grad_norm_(
                        self.network.parameters(), self.script.clip_norm
                    )
                if self.script.zero is Zero.BEFORE_UPDATE:
                    self.optimizer.zero_grad()
                self.optimizer.step()
                self.scheduler.step()
                if self.script.zero is not Zero.NEVER:
                    self.optimizer.zero_grad()


# ------------------------------------------------------------------------------------------- ranks


class DistributedLoop(Loop):
    """DistributedDataParallel."""

    def spread(self, model: nn.Module) -> nn.Module:
        """The model over all ranks."""
        network = nn.parallel.DistributedDataParallel(model, **self.script.arguments)
        if self.script.summed:
            network.register_comm_hook(None, _added_up)
        return network

    def collecting(self, *, last: bool) -> AbstractContextManager[Any]:
        """Around a micro-batch."""
        due = last and self.script.synchronised
        return nullcontext() if due else self.network.no_sync()  # type: ignore[operator]


def _added_up(state, bucket):  # type: ignore[no-untyped-def] # torch reads annotations, as objects
    """Gradients are added over the ranks, and not divided."""
    reduced = torch.distributed.all_reduce(bucket.buffer(), async_op=True).get_future()
    return reduced.then(lambda future: future.value()[0])


class ShardedLoop(Loop):
    """`fully_shard`: FSDP2."""

    def spread(self, model: nn.Module) -> nn.Module:
        """The model with its parameters cut over the ranks, block by block."""
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard

        mesh = init_device_mesh("cpu", (torch.distributed.get_world_size(),))
        for name in self.script.subject.places["block"]:
            fully_shard(model.get_submodule(name), mesh=mesh, **self.script.arguments)
        return fully_shard(model, mesh=mesh, **self.script.arguments)

    def collecting(self, *, last: bool) -> AbstractContextManager[Any]:
        """Around a micro-batch."""
        network: Any = self.network
        network.set_requires_gradient_sync(last and self.script.synchronised)
        return nullcontext()


class FlatShardedLoop(Loop):
    """FullyShardedDataParallel: FSDP1, which keeps a block's parameters in one flat one."""

    def spread(self, model: nn.Module) -> nn.Module:
        """The model with its parameters cut over the ranks."""
        from torch.distributed.fsdp import FullyShardedDataParallel
        from torch.distributed.fsdp.wrap import ModuleWrapPolicy

        blocks = {type(model.get_submodule(name)) for name in self.script.subject.places["block"]}
        return FullyShardedDataParallel(
            model, device_id=torch.device("cpu"), auto_wrap_policy=ModuleWrapPolicy(blocks),
            **{"use_orig_params": True, **self.script.arguments},
        )  # fmt: skip

    def updated(self) -> nn.Module:
        """The module whose parameters are trained."""
        return self.network

    def collecting(self, *, last: bool) -> AbstractContextManager[Any]:
        """Around a micro-batch."""
        due = last and self.script.synchronised
        return nullcontext() if due else self.network.no_sync()  # type: ignore[operator]

    def clip(self) -> None:
        """Keep the norm of all ranks' gradients below the limit."""
        if self.script.clip_norm is not None:
            self.network.clip_grad_norm_(self.script.clip_norm)  # type: ignore[operator]


def by(loop: type[Loop]) -> Callable[[Script], Outcome]:
    """Train with a loop."""
    return lambda script: loop(script).run()


__all__ = [
    "AccelerateLoop", "BareLoop", "ClosureLoop", "DistributedLoop", "FlatShardedLoop", "Loop",
    "ShardedLoop", "by",
]  # fmt: skip
