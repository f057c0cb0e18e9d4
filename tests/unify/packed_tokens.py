"""Trains a small language model on padded batches and on packed ones: `packed_tokens.py DIRECTORY NAMES`.

A name is `HOW+WORDS`: `padded`, `packed`, or `engine`, which answers many requests at once, then what goes wrong.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional

import lockstep

VOCABULARY, HEADS, WIDTH, IGNORED = 32, 2, 16, -100
DOCUMENTS = [[3, 9, 4, 7, 1], [5, 2, 8], [6, 6, 1, 9, 2, 4, 7], [8, 3]]


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.cached: list[tuple[Tensor, Tensor]] | None = None

    def forward(self, hidden: Tensor, seen: Tensor) -> Tensor:
        batch, tokens, _ = hidden.shape
        queries, keys, values = (
            self.qkv(hidden).view(batch, tokens, 3, HEADS, -1).permute(2, 0, 3, 1, 4).unbind(0)
        )
        if self.cached is not None:  # of an engine: what is kept of all requests
            self.cached.append((keys, values))
            keys, values = (torch.cat(one, 2) for one in zip(*self.cached, strict=True))
        mixed = functional.scaled_dot_product_attention(queries, keys, values, attn_mask=seen)
        return self.out(mixed.transpose(1, 2).reshape(batch, tokens, WIDTH))


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.attention = nn.LayerNorm(WIDTH), Attention()
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 32), nn.GELU(), nn.Linear(32, WIDTH))

    def forward(self, hidden: Tensor, seen: Tensor) -> Tensor:
        hidden = hidden + self.attention(self.norm(hidden), seen)
        return hidden + self.mlp(hidden)


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(VOCABULARY, WIDTH), nn.Embedding(32, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(2))
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)

    def embedded(self, ids: Tensor, places: Tensor) -> Tensor:
        return self.words(ids) + self.places(places)

    def forward(
        self,
        ids: Tensor | None = None,
        position_ids: Tensor | None = None,
        documents: Tensor | None = None,
        attention_mask: Tensor | None = None,
        *,
        hidden: Tensor | None = None,
        seen: Tensor | None = None,
        ends: Tensor | None = None,
    ) -> Tensor:
        if hidden is None:
            seen = (documents[:, :, None] == documents[:, None]).tril()[:, None]
            if attention_mask is not None:
                seen = seen & attention_mask.bool()[:, None, None]
            hidden = self.embedded(ids, position_ids)
        for block in self.blocks:
            hidden = block(hidden, seen)
        return self.head(hidden if ends is None else hidden[0, ends])


def _padded(documents: list[list[int]], words: set[str]) -> tuple[dict[str, Tensor], Tensor]:
    longest = max(map(len, documents))
    ids = torch.zeros(len(documents), longest, dtype=torch.int64)
    mask, labels = torch.zeros_like(ids), torch.full_like(ids, IGNORED)
    for row, document in enumerate(documents):
        ids[row, : len(document)] = torch.tensor(document)
        mask[row, : len(document)] = 1
        labels[row, : len(document) - 1] = torch.tensor(document[1:])
    if "counts-padding" in words:
        labels[labels == IGNORED] = 0
    places = torch.arange(longest).expand_as(ids)
    # Padding sees itself, so that no row of the attention is empty.
    given = {"ids": ids, "position_ids": places, "documents": 1 - mask}
    if "unmasked" not in words:
        given["attention_mask"] = torch.ones_like(mask) if "full-mask" in words else mask
        given["documents"] = torch.zeros_like(mask)
    return given, labels


def _packed(documents: list[list[int]], words: set[str]) -> tuple[dict[str, Tensor], Tensor]:
    if "two" in words:
        return _in_rows([_packed(some, words - {"two"}) for some in (documents[:2], documents[2:])])
    if "lost" in words:
        documents = [*documents[:-2], documents[-2][:-1], documents[-1]]
    if "other" in words:
        documents = [*documents[:-1], [documents[-1][0], 9]]
    if "dealt" in words:
        documents = documents[::-1]
    ids = torch.tensor([[token for document in documents for token in document]])
    places = torch.tensor([[place for document in documents for place in range(len(document))]])
    numbers = torch.tensor([[n for n, document in enumerate(documents) for _ in document]])
    labels = torch.tensor([[one for document in documents for one in (*document[1:], IGNORED)]])
    if "running" in words:
        places = torch.arange(places.shape[1])[None]
    if "across" in words:
        numbers = torch.zeros_like(numbers)
    if "next-document" in words:
        labels = torch.cat([ids[:, 1:], labels[:, -1:]], 1)
    return {"ids": ids, "position_ids": places, "documents": numbers}, labels


def _in_rows(parts: list[tuple[dict[str, Tensor], Tensor]]) -> tuple[dict[str, Tensor], Tensor]:
    """Packed rows below each other, padded to the longest."""
    longest = max(labels.shape[1] for _, labels in parts)

    def below(rows: list[Tensor], value: int) -> Tensor:
        return torch.cat(
            [functional.pad(row, (0, longest - row.shape[1]), value=value) for row in rows]
        )

    numbers = {"ids": 0, "position_ids": 0, "documents": len(DOCUMENTS)}
    given = {name: below([one[name] for one, _ in parts], value) for name, value in numbers.items()}
    return given, below([labels for _, labels in parts], IGNORED)


def _loss(scores: Tensor, labels: Tensor, words: set[str]) -> Tensor:
    losses = functional.cross_entropy(
        scores.flatten(0, 1), labels.flatten(), ignore_index=IGNORED, reduction="none"
    )
    count = labels.numel() if "divides-by-all" in words else (labels != IGNORED).sum()
    return losses.sum() / count


def train(directory: Path, name: str) -> None:
    """Record two steps."""
    how, *rest = name.split("+")
    words = set(rest)
    torch.manual_seed(0)
    model = Model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    with lockstep.record(directory / name, model=model, steps="0:2", save="tensors"):
        for step in range(2):
            documents = [[(token + step) % VOCABULARY for token in one] for one in DOCUMENTS]
            given, labels = (_padded if how == "padded" else _packed)(documents, words)
            loss = _loss(model(**given), labels, words)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()


CALLS = [[(0, 0, 4), (1, 0, 2)], [(0, 4, 5), (1, 2, 3), (2, 0, 3)], [(2, 3, 7), (3, 0, 2)]]
"""Which tokens an engine takes at once: sequence, first place and end of each."""


def serve(directory: Path, name: str) -> None:
    """Record an engine that takes tokens of several requests at once, by their embeddings, and caches them all."""
    words = set(name.split("+")[1:])
    torch.manual_seed(0)
    model, kept = Model(), list[tuple[int, int]]()
    for block in model.blocks:
        block.attention.cached = []
    with (
        torch.no_grad(),
        lockstep.record(directory / name, model=model, steps="0:1", save="tensors") as recording,
    ):
        for number, parts in enumerate(CALLS):
            taken = [
                (request, place) for request, begin, end in parts for place in range(begin, end)
            ]
            kept += taken
            ids = torch.tensor([DOCUMENTS[request][place] for request, place in taken])
            requests, places = torch.tensor(taken).T
            if "told" in words:
                lockstep.tokens(ids, sequences=requests, positions=places)
            if "late-place" in words and number == 2:
                places = places + 1
            everyone, all_places = torch.tensor(kept).T
            seen = (requests[:, None] == everyone) & (places[:, None] >= all_places)
            if "other-request" in words and number == 1:
                seen |= requests[:, None] == everyone + 1
            ends = torch.tensor(
                [
                    place
                    for place, one in enumerate(taken)
                    if one not in [(r, p - 1) for r, p in taken]
                ]
            )
            if "tempered" in words and number == 1:
                model.head.weight.mul_(1.001)
            model(hidden=model.embedded(ids, places)[None], seen=seen, ends=ends)
        recording.step()


def score(directory: Path, name: str) -> None:
    """Record the trainer's one call on all tokens of the requests."""
    torch.manual_seed(0)
    model = Model()
    with (
        torch.no_grad(),
        lockstep.record(directory / name, model=model, steps="0:1", save="tensors") as recording,
    ):
        model(**(_packed if "packed" in name else _padded)(DOCUMENTS, set())[0])
        recording.step()


def main(directory: Path, names: list[str]) -> None:
    """Record every run that is asked for, in this process."""
    torch.set_num_threads(1)
    for name in names:
        {"engine": serve, "score": score}.get(name.split("+")[0], train)(directory, name)
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
