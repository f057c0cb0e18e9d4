"""Train a small GPT-2 with random weights on text from a Markov chain made on the spot."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from itertools import islice

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim.lr_scheduler import LinearLR
from transformers import GPT2Config, GPT2LMHeadModel

import faults
import options as shared

SUCCESSORS = 8
WARMUP_STEPS = 10


def parse_options() -> argparse.Namespace:
    parser = shared.parser(__doc__, batch_size=4)
    parser.add_argument("--layers", type=int, default=2, help="transformer blocks")
    parser.add_argument("--width", type=int, default=64, help="size of the residual stream")
    parser.add_argument("--heads", type=int, default=4, help="attention heads per block")
    parser.add_argument("--vocab", type=int, default=512, help="distinct tokens")
    parser.add_argument("--sequence", type=int, default=32, help="tokens per sample")
    return parser.parse_args()


def build_model(options: argparse.Namespace) -> GPT2LMHeadModel:
    config = GPT2Config(
        n_layer=options.layers,
        n_embd=options.width,
        n_head=options.heads,
        vocab_size=options.vocab,
        n_positions=options.sequence,
        activation_function="gelu_pytorch_tanh",
        use_cache=False,
        bos_token_id=None,
        eos_token_id=None,
    )
    return GPT2LMHeadModel(config).train()


def markov_batches(*, batch_size: int, sequence: int, vocab: int, seed: int) -> Iterator[Tensor]:
    """Yield token batches (batch_size, sequence) in which 8 tokens may follow each token."""
    generator = torch.Generator().manual_seed(seed)
    successors = torch.randint(vocab, (vocab, SUCCESSORS), generator=generator)
    while True:
        tokens = torch.empty(batch_size, sequence, dtype=torch.long)
        tokens[:, 0] = torch.randint(vocab, (batch_size,), generator=generator)
        choices = torch.randint(SUCCESSORS, (batch_size, sequence), generator=generator)
        for position in range(1, sequence):
            tokens[:, position] = successors[tokens[:, position - 1], choices[:, position]]
        yield tokens


def main() -> None:
    options = parse_options()
    shared.apply(options)
    model = build_model(options)
    batches = markov_batches(
        batch_size=options.batch_size,
        sequence=options.sequence,
        vocab=options.vocab,
        seed=options.seed,
    )
    adamw = faults.CoarseEpsilonAdamW if options.fault == "optimizer" else torch.optim.AdamW
    optimizer = adamw(model.parameters(), lr=1e-3)
    batches = plant(options.fault, model, batches, optimizer)
    schedule = LinearLR(optimizer, start_factor=0.1, total_iters=WARMUP_STEPS)

    for step, tokens in enumerate(islice(batches, options.steps)):
        logits = model(input_ids=tokens).logits
        loss = F.cross_entropy(logits[:, :-1].flatten(0, 1), tokens[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), max_norm=1.0)
        optimizer.step()
        schedule.step()
        print(f"step {step} loss {loss.item()!r}", flush=True)


# ---------------------------------------------------------------------------------------------
# The faults: each in one place, everything else as it was ("optimizer" is chosen in main)


def plant(
    fault: str,
    model: GPT2LMHeadModel,
    batches: Iterator[Tensor],
    optimizer: torch.optim.Optimizer,
) -> Iterator[Tensor]:
    """Plant ``fault`` in the model or the optimizer, or return batches that have it."""
    last_block = model.transformer.h[-1]
    match fault:
        case "data":
            return with_one_token_changed(batches, vocab=model.config.vocab_size)
        case "init":
            model.transformer.h[0].attn.c_attn.weight.data.mul_(1.01)
        case "forward":
            last_block.mlp.act.__class__ = faults.ErfGELU
        case "backward":
            last_block.ln_2.__class__ = faults.MeanlessGradientLayerNorm
        case "learning-rate":
            optimizer.param_groups[0]["lr"] *= 1.1
    return batches


def with_one_token_changed(batches: Iterator[Tensor], *, vocab: int) -> Iterator[Tensor]:
    """Put another token in the middle of the very first sample."""
    tokens = next(batches)
    middle = tokens.shape[1] // 2
    tokens[0, middle] = (tokens[0, middle] + 1) % vocab
    yield tokens
    yield from batches


if __name__ == "__main__":
    main()
