"""A tiny GRPO training on a CPU: a trainer beside its sampler, which is `generate` or an engine with a paged cache.

    python grpo.py --sampler paged --output out
    lockstep weights out/trainer out/engine
    lockstep logprobs out/trainer.jsonl out/engine.jsonl

`--fault NAME` plants one of `FAULTS`; `--control NAME` has the sampler do the same by other means, as `CONTROLS` say.
The model has random weights; nothing is downloaded.
"""

from __future__ import annotations

import argparse
import copy
import json
from pathlib import Path

import torch
from transformers import DynamicCache, Qwen2Config, Qwen2ForCausalLM

import lockstep

FAULTS = (
    "temperature", "stale-weights", "stale-layer", "left-padding", "template-twice", "bf16-head", "top-p",
    "masked-eos", "wrong-log-probability", "cache-off-by-one",
)  # fmt: skip
CONTROLS = {
    "sampling-seed": "draws from another seed",
    "shuffled": "takes the prompts in another order",
    "split-batch": "takes the prompts in batches of one",
    "bfloat16-both": "both models have weights that were cast to bfloat16 and back",
    "pruned-cache": "drops the last page of its cache now and then, and computes it again",
    "no-cache": "computes all tokens again for each new one",
    "more-padding": "pads its prompts further, and masks that",
    "eager": "computes the attention by other operators",
    "double": "computes in double precision",
    "temperature-both": "both divide their scores by 0.7",
}
VOCABULARY, EOS, TEMPLATE, PAGE, LAYERS = 64, 2, (1, 9), 4, 2
PROMPTS = ((11, 12, 13, 14), (21, 22, 23, 24, 25, 26))
NEW_TOKENS, GROUP, STEPS, CLIP = 6, 2, 3, 0.2


class PagedCache(DynamicCache):
    """Keys and values in pages of a few tokens, gathered when they are read."""

    def __init__(self, off_by_one: bool) -> None:
        super().__init__()
        self.off_by_one, self.pages = off_by_one, {}

    def prune(self) -> int:
        """Drop the last page; returns how many tokens are left."""
        length = self.get_seq_length()
        left = (length - 1) // PAGE * PAGE
        self.crop(left - length)
        self.pages = {layer: pages[: left // PAGE] for layer, pages in self.pages.items()}
        return left

    def update(self, keys, values, layer, *given, **named):
        super().update(keys, values, layer, *given, **named)
        pages = self.pages.setdefault(layer, [])
        for token in zip(keys.unbind(2), values.unbind(2), strict=True):
            if not pages or len(pages[-1]) == PAGE:
                pages.append([])
            pages[-1].append(token)
        told = [token for page in pages for token in page]
        gathered = [torch.stack(one, 2) for one in zip(*told, strict=True)]
        if self.off_by_one and keys.shape[2] < len(told):  # not while it reads the prompt
            gathered[0] = gathered[0].roll(1, 2)
        return tuple(gathered)


def made(seed: int) -> Qwen2ForCausalLM:
    torch.manual_seed(seed)
    settings = Qwen2Config(
        vocab_size=VOCABULARY, hidden_size=32, intermediate_size=64, num_hidden_layers=LAYERS, num_attention_heads=4,
        num_key_value_heads=2, initializer_range=0.3, eos_token_id=EOS, pad_token_id=0, bos_token_id=None,
    )  # fmt: skip
    return Qwen2ForCausalLM(settings).eval()


def with_template(prompt: tuple[int, ...], times: int = 1) -> list[int]:
    return [*TEMPLATE * times, *prompt]


def changed(scores: torch.Tensor, fault: str, control: str = "") -> torch.Tensor:
    """The scores that tokens are drawn from."""
    if fault == "temperature" or control == "temperature-both":
        return scores / 0.7
    if fault == "masked-eos":
        return scores.index_fill(-1, torch.tensor([EOS]), -torch.inf)
    if fault == "top-p":
        order = scores.argsort(-1, descending=True)
        mass = scores.softmax(-1).gather(-1, order).cumsum(-1)
        cut = (mass - scores.softmax(-1).gather(-1, order)) >= 0.9
        return scores.masked_fill(torch.zeros_like(cut).scatter(-1, order, cut), -torch.inf)
    return scores.bfloat16().float() if fault == "bf16-head" else scores


@torch.no_grad()
def sampled_by_generate(engine, prompts, fault: str, control: str):
    """One batch, padded on the left; the log-probabilities are those that were drawn from."""
    if control == "split-batch" and len(prompts) > 1:
        return [sampled_by_generate(engine, [one], fault, control)[0] for one in prompts]
    longest = max(map(len, prompts)) + (3 if control == "more-padding" else 0)
    ids = torch.tensor([[0] * (longest - len(one)) + one for one in prompts])
    mask = torch.tensor([[0] * (longest - len(one)) + [1] * len(one) for one in prompts])
    done = engine.generate(
        ids, attention_mask=torch.ones_like(mask) if fault == "left-padding" else mask, do_sample=True, top_k=0,
        max_new_tokens=NEW_TOKENS, min_new_tokens=NEW_TOKENS, eos_token_id=None, output_logits=True,
        return_dict_in_generate=True, logits_processor=[lambda _, scores: changed(scores, fault, control)],
        use_cache=control != "no-cache",
    )  # fmt: skip
    scores = torch.stack(
        [changed(one.float(), fault, control) for one in done.logits], 1
    ).log_softmax(-1)
    return [(row[longest:].tolist(), one) for row, one in zip(done.sequences, scores, strict=True)]


@torch.no_grad()
def sampled_by_engine(engine, prompts, fault: str, control: str):
    """Each sequence with a cache of its own."""
    found = []
    for prompt in prompts:
        cache, given, tokens, rows = PagedCache(fault == "cache-off-by-one"), prompt, [], []
        for number in range(NEW_TOKENS):
            if control == "no-cache":
                cache, given = PagedCache(False), [*prompt, *tokens]
            if control == "pruned-cache" and number % 2:
                given = [*prompt, *tokens][cache.prune() :]
            out = engine(torch.tensor([given]), past_key_values=cache, use_cache=True)
            rows.append(changed(out.logits[0, -1].float(), fault, control).log_softmax(-1))
            given = [int(torch.multinomial(rows[-1].exp(), 1))]
            tokens += given
        found.append((tokens, torch.stack(rows)))
    return found


def log_probabilities(model, prompt: list[int], tokens: list[int], control: str) -> torch.Tensor:
    """The trainer's, of the whole vocabulary at each drawn token."""
    scores = changed(model(torch.tensor([[*prompt, *tokens]])).logits[0].float(), "", control)
    return scores.log_softmax(-1)[len(prompt) - 1 : -1]


def hand_on(model, engine, before, fault: str) -> None:
    """Copy the trainer's weights to the engine."""
    weights = model.state_dict()
    if fault == "stale-weights":
        weights = before
    if fault == "stale-layer":
        weights = {name: before[name] if ".layers.1." in name else one for name, one in weights.items()}  # fmt: skip
    engine.load_state_dict(weights)


def drawn_by(sample, engine, given, fault: str, control: str):
    """What the sampler draws for each prompt, in the order of the prompts."""
    if control == "sampling-seed":
        torch.manual_seed(1234)
    order = list(range(len(given)))
    if control == "shuffled":
        order.reverse()
    drawn = sample(engine, [given[number] for number in order], fault, control)
    return [drawn[order.index(number)] for number in range(len(given))]


def saved(file, name: str, tokens: list[int], rows: torch.Tensor) -> None:
    drawn = [[None if x == -torch.inf else x for x in row] for row in rows.tolist()]
    values = [None] * (len(tokens) - len(drawn)) + drawn  # a prompt is not drawn
    told = {"id": name, "tokens": tokens, "logprobs": values, "dtype": "float32", "layers": LAYERS}
    file.write(json.dumps(told) + "\n")


def train(sampler: str, fault: str, output: Path, seed: int, control: str = "") -> None:
    model = made(seed)
    if control == "bfloat16-both":
        model.bfloat16().float()
    engine, before = copy.deepcopy(model), copy.deepcopy(model.state_dict())
    if control == "eager":
        engine.set_attn_implementation("eager")
    if control == "double":
        engine.double()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    sample = sampled_by_generate if sampler == "generate" else sampled_by_engine
    output.mkdir(parents=True)
    with (output / "trainer.jsonl").open("w") as ours, (output / "engine.jsonl").open("w") as theirs:  # fmt: skip
        for step in range(STEPS):
            hand_on(model, engine, before, fault)
            lockstep.weights(model, step=step, directory=output / "trainer")
            lockstep.weights(engine, step=step, directory=output / "engine")
            before = copy.deepcopy(model.state_dict())
            prompts = [with_template(one) for one in PROMPTS for _ in range(GROUP)]
            twice = 2 if fault == "template-twice" else 1
            given = [with_template(one, twice) for one in PROMPTS for _ in range(GROUP)]
            losses = []
            drawn = drawn_by(sample, engine, given, fault, control)
            odd = [sum(token % 2 for token in tokens) for tokens, _ in drawn]
            rewards = torch.tensor(odd) / NEW_TOKENS
            groups = rewards.view(-1, GROUP)
            advantages = (groups - groups.mean(1, keepdim=True)).flatten()
            for number, ((tokens, old), prompt) in enumerate(zip(drawn, prompts, strict=True)):
                if fault == "wrong-log-probability":  # of the token before
                    old = old.roll(1, 0)
                new = log_probabilities(model, prompt, tokens, control)
                name = f"step {step} sample {number}"
                full = [*given[number], *tokens]
                saved(theirs, name, full, old)
                saved(ours, name, [*prompt, *tokens], new.detach())
                place = torch.tensor(tokens)[:, None]
                ratio = (new.gather(1, place) - old.gather(1, place)).exp()
                clipped = ratio.clamp(1 - CLIP, 1 + CLIP)
                losses.append(-torch.min(ratio * advantages[number], clipped * advantages[number]).mean())  # fmt: skip
            torch.stack(losses).mean().backward()
            optimizer.step()
            optimizer.zero_grad()
            if control == "bfloat16-both":
                model.bfloat16().float()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="A tiny GRPO training.")
    parser.add_argument("--sampler", choices=("generate", "paged"), default="generate")
    parser.add_argument("--fault", choices=FAULTS, default="")
    parser.add_argument("--control", choices=CONTROLS, default="")
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args()
    train(asked.sampler, asked.fault, asked.output, asked.seed, asked.control)
