"""Runs small language models on the same tokens, all at once and a few at a time: `sampled_tokens.py DIRECTORY NAMES`.

A name is `MODEL+WORDS`: `llama` or `gpt2`, then how the sampler goes about it, or what it does wrong. The trainer's run
of each model, padded or not, is `MODEL+trainer` and `MODEL+trainer+padded`.
"""

from __future__ import annotations

import os
import sys
import warnings
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import (
    DynamicCache,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    StaticCache,
)

import lockstep

PROMPT, NEW, VOCABULARY = 5, 4, 64
PADDING = 2


def _model(kind: str, words: set[str]) -> Any:
    torch.manual_seed(0)
    attention = "eager" if "eager" in words else "sdpa"
    if kind == "gpt2":
        config: Any = GPT2Config(
            vocab_size=VOCABULARY, n_embd=32, n_layer=2, n_head=4, n_positions=32, attn_implementation=attention,
            bos_token_id=1, eos_token_id=None, pad_token_id=0,
        )  # fmt: skip
        return GPT2LMHeadModel(config).eval()
    config = LlamaConfig(
        vocab_size=VOCABULARY, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=32, bos_token_id=1, eos_token_id=None, pad_token_id=0,
        attn_implementation=attention,
    )  # fmt: skip
    return LlamaForCausalLM(config).eval()


def _prompt(words: set[str]) -> tuple[Tensor, Tensor]:
    """Tokens and which of them count: of the second row two are padding, if asked for."""
    ids = torch.randint(2, VOCABULARY, (2, PROMPT), generator=torch.Generator().manual_seed(7))
    mask = torch.ones_like(ids)
    if "padded" in words:
        ids[1, :PADDING], mask[1, :PADDING] = 0, 0
    return ids, mask


def _places(mask: Tensor) -> Tensor:
    return (mask.cumsum(1) - 1).clamp(min=0)


def _generated(model: Any, ids: Tensor, mask: Tensor, words: set[str]) -> Tensor:
    settings = {"cache_implementation": "static"} if "static" in words else {}
    tokens: Tensor = model.generate(
        ids, attention_mask=mask, max_new_tokens=NEW, do_sample=False, **settings
    )
    return tokens


def _by_hand(model: Any, tokens: Tensor, mask: Tensor, words: set[str]) -> None:
    """Fills the cache in chunks, and goes on token by token; `words` say what goes wrong."""
    cache = (
        StaticCache(config=model.config, max_cache_len=16)
        if "static" in words
        else DynamicCache(config=model.config)
    )
    places = _places(mask)
    chunks = [(0, 2), (2, PROMPT)] if "chunks" in words else [(0, PROMPT)]
    chunks += [(one, one + 1) for one in range(PROMPT, PROMPT + NEW - 1)]
    for number, (begin, end) in enumerate(chunks):
        seen, place = mask[:, :end].clone(), places[:, begin:end]
        last = number == len(chunks) - 1
        if "late-place" in words and last:
            place = place + 1
        if "place-of-padding" in words and number:
            place = torch.arange(begin, end).expand_as(place)
        if "sees-padding" in words:
            seen[:] = 1
        if "lost-mask" in words and last:
            seen[:, 0] = 0
        if "stale-cache" in words and last:
            cache.layers[1].keys[:, 0, 3] = cache.layers[1].keys[:, 0, 2]
        if "scaled-cache" in words and last:
            cache.layers[0].values *= 1.01
        if "other-scale" in words and number:
            model.model.layers[1].self_attn.scaling = 0.3
        if "tempered" in words and number:
            model.lm_head.weight.data *= 1.001
        model(
            tokens[:, begin:end], attention_mask=seen, position_ids=place, past_key_values=cache, use_cache=True,
            cache_position=torch.arange(begin, end),
        )  # fmt: skip


def run(directory: Path, name: str) -> None:
    """Record one run."""
    kind, *rest = name.split("+")
    words = set(rest)
    model = _model(kind, words)
    ids, mask = _prompt(words)
    with torch.no_grad():
        tokens = _generated(_model(kind, set()), ids, mask, set())
        full = torch.cat([mask, mask.new_ones(2, NEW)], 1)
        with lockstep.record(directory / name, model=model, steps="0:1", save="tensors") as step:
            if "trainer" in words:
                model(tokens, attention_mask=full, position_ids=_places(full))
            elif "generate" in words:
                _generated(model, ids, mask, words)
            else:
                _by_hand(model, tokens, full, words)
            step.step()


def main(directory: Path, names: list[str]) -> None:
    """Record every run that is asked for, in this process."""
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    for name in names:
        run(directory, name)
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
