"""Models of Transformers on one rank, or on two: `models.py DIRECTORY NAMES`; nothing goes wrong in them.

A name is `MODEL+HOW`: `gpt2`, `llama` or `mixtral`; `ddp`, `fsdp2`, `tp` or `pp`. Of one rank `pp` has the model's
blocks in a module that can be cut in stages, and the others have the model itself.
"""

from __future__ import annotations

import gc
import os
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import transformers
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import lockstep

RANKS, RANK = int(os.environ.get("WORLD_SIZE", "1")), int(os.environ.get("RANK", "0"))
VOCABULARY, WIDTH, LENGTH, BATCH, PARTS = 64, 32, 8, 4, 2


def _config(kind: str) -> Any:
    if kind == "gpt2":
        return transformers.GPT2Config(
            vocab_size=VOCABULARY, n_embd=WIDTH, n_layer=2, n_head=4, n_positions=LENGTH, resid_pdrop=0.0,
            embd_pdrop=0.0, attn_pdrop=0.0, bos_token_id=1, eos_token_id=1, use_cache=False,
        )  # fmt: skip
    shared = {
        "vocab_size": VOCABULARY, "hidden_size": WIDTH, "intermediate_size": 64, "num_hidden_layers": 2,
        "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": LENGTH, "use_cache": False,
    }  # fmt: skip
    if kind == "llama":
        return transformers.LlamaConfig(**shared)
    return transformers.MixtralConfig(
        **shared, num_local_experts=4, num_experts_per_tok=2, experts_implementation="eager"
    )


def _model(kind: str) -> Any:
    return transformers.AutoModelForCausalLM.from_config(_config(kind))


class Staged(nn.Module):
    """A model by its blocks; a stage has none of what other stages hold."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.is_gpt2 = kind == "gpt2"
        whole = _model(kind)
        inner = whole.transformer if self.is_gpt2 else whole.model
        self.tokens: Any = inner.wte if self.is_gpt2 else inner.embed_tokens
        self.places: Any = inner.wpe if self.is_gpt2 else None
        self.turns: Any = None if self.is_gpt2 else inner.rotary_emb
        layers = inner.h if self.is_gpt2 else inner.layers
        self.blocks = nn.ModuleDict({str(number): one for number, one in enumerate(layers)})
        self.norm: Any = inner.ln_f if self.is_gpt2 else inner.norm
        # not tied to the embedding, which another stage holds
        self.head: Any = nn.Linear(WIDTH, VOCABULARY, bias=False)

    def cut(self) -> None:
        """Leave what this rank's stage holds."""
        del self.blocks[str(1 - RANK)]
        if RANK == 0:
            self.norm = self.head = None
        else:
            self.tokens = self.places = None

    def forward(self, hidden: Tensor) -> Tensor:
        places = torch.arange(LENGTH)[None]
        if self.tokens is not None:
            hidden = self.tokens(hidden)
        if self.places is not None:
            hidden = hidden + self.places(places)
        given = {} if self.is_gpt2 else {"position_embeddings": self.turns(hidden, places)}
        for block in self.blocks.values():
            made = block(hidden, attention_mask=None, **given)
            hidden = made[0] if isinstance(made, tuple) else made
        return hidden if self.norm is None else self.head(self.norm(hidden))


def _tensor_parallel(model: Any, kind: str) -> None:
    """As Megatron splits attention and MLP; GPT-2 keeps its weights the other way round, and is split by hand."""
    if kind == "gpt2":
        for block in model.transformer.h:
            _split_by_hand(block.mlp)
        return
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        RowwiseParallel,
        parallelize_module,
    )

    mesh = init_device_mesh("cpu", (RANKS,), mesh_dim_names=("tp",))
    plan = {f"self_attn.{one}_proj": ColwiseParallel() for one in "qkv"}
    plan["self_attn.o_proj"] = RowwiseParallel()
    if kind == "llama":
        plan |= {"mlp.gate_proj": ColwiseParallel(), "mlp.up_proj": ColwiseParallel()}
        plan["mlp.down_proj"] = RowwiseParallel()
    for layer in model.model.layers:
        parallelize_module(layer, mesh, dict(plan))


class _Copied(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, hidden: Tensor) -> Tensor:
        return hidden.view_as(hidden)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        gradient = gradient.clone()
        dist.all_reduce(gradient)
        return gradient


class _Reduced(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, hidden: Tensor) -> Tensor:
        hidden = hidden.clone()
        dist.all_reduce(hidden)
        return hidden

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return gradient


def _split_by_hand(mlp: Any) -> None:
    first, last = mlp.c_fc, mlp.c_proj
    for module, name, axis in ((first, "weight", 1), (first, "bias", 0), (last, "weight", 0)):
        part = getattr(module, name).detach().chunk(RANKS, axis)[RANK].clone()
        setattr(module, name, nn.Parameter(part))
    first.nf //= RANKS
    first.forward = _before(first.forward)
    last.forward = lambda hidden: _Reduced.apply(hidden @ last.weight) + last.bias


def _before(forward: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    return lambda hidden: forward(_Copied.apply(hidden))


def _spread(model: Any, kind: str, how: str) -> Any:
    if RANKS == 1:
        return model
    if how == "ddp":
        return nn.parallel.DistributedDataParallel(model)
    if how == "tp":
        _tensor_parallel(model, kind)
        return model
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh("cpu", (RANKS,), mesh_dim_names=("dp",))
    for layer in model.transformer.h if kind == "gpt2" else model.model.layers:
        fully_shard(layer, mesh=mesh)
    return fully_shard(model, mesh=mesh)


def _loss(scores: Tensor, targets: Tensor) -> Tensor:
    return cross_entropy(scores.flatten(0, 1), targets.flatten())


def _step_of(kind: str, how: str) -> tuple[Any, Any, Callable[[Tensor, Tensor], None]]:
    """The model, what holds its parameters, and what runs a forward and a backward."""
    if how == "pp":
        staged = Staged(kind)
        if RANKS == 1:
            return staged, staged, lambda ids, targets: _loss(staged(ids), targets).backward()
        from torch.distributed.pipelining import PipelineStage, ScheduleGPipe

        staged.cut()
        stage = PipelineStage(staged, RANK, RANKS, torch.device("cpu"))
        schedule = ScheduleGPipe(stage, PARTS, loss_fn=_loss)
        if RANK == 0:
            return staged, staged, lambda ids, targets: schedule.step(ids)
        return staged, staged, lambda ids, targets: schedule.step(target=targets)
    model = _model(kind)
    net = _spread(model, kind, how)

    def step(ids: Tensor, targets: Tensor) -> None:
        if how != "tp":
            ids, targets = ids.chunk(RANKS)[RANK], targets.chunk(RANKS)[RANK]
        _loss(net(input_ids=ids).logits, targets).backward()

    return model, net, step


def train(directory: Path, name: str) -> None:
    """Record two steps."""
    kind, how = name.split("+")
    torch.manual_seed(0)
    model, net, step = _step_of(kind, how)
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)
    draw = torch.Generator().manual_seed(7)
    with lockstep.record(directory / name, model=model, steps="0:2", save="tensors"):
        for _ in range(2):
            tokens = torch.randint(0, VOCABULARY, (BATCH, LENGTH + 1), generator=draw)
            optimizer.zero_grad()
            step(tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous())
            optimizer.step()


def main(directory: Path, names: list[str]) -> None:
    """Record every training that is asked for, in this process."""
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    if RANKS > 1:
        dist.init_process_group("gloo")
    for name in names:
        train(directory, name)
        gc.collect()  # else the next recording finds what this one has trained
    if RANKS > 1:
        dist.barrier()
        dist.destroy_process_group()
    sys.stdout.flush()
    os._exit(0)  # torch's own groups may abort while they are taken apart


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
