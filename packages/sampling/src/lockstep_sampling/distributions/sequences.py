"""Saved tokens and log-probabilities: JSON lines, one sequence a line.

A line has `tokens`, and `logprobs` with an entry for each token: its log-probability alone, those of the whole
vocabulary (a list; null for a token that cannot be drawn), those of some tokens (an object by token id), or null for
none, as of a prompt. `id` names the sequence, `dtype` the dtype of the scores, `layers` how many layers the model has.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from lockstep.errors import UsageError
from lockstep_sampling.distributions.positions import MASKED, OPERATORS_OF_LAYER, Scores

_ROUNDED_UP = 2**-8
"""What bfloat16 may make of the logarithm of 1."""


@dataclass(frozen=True, slots=True)
class Told:
    """One sequence of one side.

    name: Its id, or its number.
    tokens: Token ids.
    scores: Of each token.
    dtype: Of the scores; "" where the line does not tell.
    operators: How many the model runs one after the other; 0 where nothing tells it.
    """

    name: str
    tokens: tuple[int, ...]
    scores: tuple[Scores, ...]
    dtype: str = ""
    operators: int = 0


def read_sequences(path: Path) -> list[Told]:
    """Read saved sequences. Raises UsageError if the file cannot be read, or a line is none of these."""
    try:
        lines = path.read_text("utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{path}: cannot be read ({error})") from error
    found: list[Told] = []
    for number, line in enumerate(lines):
        if line.strip():
            try:
                found.append(_sequence(json.loads(line), str(len(found))))
            except (ValueError, TypeError, KeyError, AttributeError) as error:
                raise UsageError(
                    f"{path}: line {number + 1} is no sequence ({error}); give"
                    ' {"tokens": [5, 7], "logprobs": [...]}, an entry for each token'
                ) from error
    if not found:
        raise UsageError(f"{path}: holds no sequence")
    twice = [name for name, count in Counter(one.name for one in found).items() if count > 1]
    if twice:
        raise UsageError(f"{path}: two sequences have the id {twice[0]}; give each its own")
    return found


def _sequence(told: Mapping[str, Any], number: str) -> Told:
    tokens = tuple(told["tokens"])
    if not all(type(one) is int for one in tokens):
        raise ValueError("a token is no whole number")
    entries = told["logprobs"]
    if len(entries) != len(tokens):
        raise ValueError(f"{len(tokens)} tokens, {len(entries)} logprobs")
    scores = tuple(_scores(one, token) for one, token in zip(entries, tokens, strict=True))
    operators = OPERATORS_OF_LAYER * int(told.get("layers", 0))
    if operators < 0:
        raise ValueError("layers is less than 0")
    name, dtype = str(told.get("id", number)), str(told.get("dtype", ""))
    return Told(name, tokens, scores, dtype, operators)


def _scores(entry: Any, token: int) -> Scores:
    if entry is None:  # a token of the prompt
        return Scores(np.empty(0), np.empty(0, np.int64))
    if isinstance(entry, Mapping):
        ids = np.array([int(one) for one in entry], np.int64)
        return Scores(_logarithms(list(entry.values())), ids)
    if isinstance(entry, Sequence) and not isinstance(entry, str):
        return Scores(_values(entry))
    return Scores(_logarithms([entry]), np.array([token], np.int64))


def _logarithms(entries: Sequence[Any]) -> Any:
    values = _values(entries)
    if values.max(initial=-np.inf) > _ROUNDED_UP:
        raise ValueError("a log-probability is above 0")
    return values


def _values(entries: Sequence[Any]) -> Any:
    values = np.array([-np.inf if one is None else float(one) for one in entries], np.float64)
    if np.isnan(values).any() or (values == np.inf).any():
        raise ValueError("a log-probability is NaN or infinite")
    values[values <= MASKED] = -np.inf
    return values


__all__ = ["Told", "read_sequences"]
