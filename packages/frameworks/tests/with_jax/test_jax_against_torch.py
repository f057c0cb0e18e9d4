"""Ports of PyTorch models to JAX from converted weights: three steps agree, and a mistake of the port is named."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import lockstep
from lockstep.core.finding import Comparison, Verdict
from lockstep.core.site import Phase
from lockstep.report.comparison.verdict_words import headline

HERE = Path(__file__).parent
Pair = Callable[..., Comparison]


@pytest.fixture(scope="session")
def pair(
    tmp_path_factory: pytest.TempPathFactory, run: Callable[..., Any], record_here: Any
) -> Pair:
    """Compare the PyTorch side of a model with its JAX side, from the weights of the first."""
    folder = tmp_path_factory.mktemp("ports")

    @cache
    def recorded(side: str, *words: str) -> Path:
        path = folder / "-".join((side, *words))
        if side == "jax":
            given = words[0], words[1], str(folder), *words[2:]
            record_here(path, "jax_models", *given, steps="0:3", save="tensors")
            return path
        script = HERE / f"{side}_models.py"
        command = (sys.executable, str(script), words[0], words[1], str(folder), *words[2:])
        options = ("-o", str(path), "--steps", "0:3", "--save", "tensors", "--")
        done = run("-m", "lockstep", "record", *options, *command)
        assert done.returncode == 0, done.stdout + done.stderr
        return path

    @cache
    def mapped(model: str) -> Path:
        mapping = folder / f"{model}.yaml"
        sides = recorded("torch", model, "sgd"), recorded("jax", model, "sgd", "other weights")
        done = run("-m", "lockstep", "map", *map(str, sides), "-o", str(mapping))
        assert done.returncode == 0, done.stdout + done.stderr
        weights = lockstep.convert_weights(dict(np.load(folder / f"{model}.npz")), mapping)
        np.savez(folder / f"{model}-converted.npz", **weights)
        return mapping

    def compared(model: str, optimizer: str, fault: str = "sound") -> Comparison:
        mapping = mapped(model)
        sides = recorded("torch", model, optimizer), recorded("jax", model, optimizer, fault)
        return lockstep.compare_recordings(*sides, mapping=mapping)

    return compared


@pytest.mark.parametrize("model", ["mlp", "cnn", "gpt"])
@pytest.mark.parametrize("optimizer", ["sgd", "adamw"])
def test_a_sound_port_agrees_over_three_steps(pair: Pair, model: str, optimizer: str) -> None:
    found = pair(model, optimizer)
    assert found.verdict is Verdict.AGREE, headline(found)
    assert found.compared > 80


@pytest.mark.parametrize(
    ("model", "optimizer", "fault", "phase", "module"),
    [
        ("mlp", "sgd", "gelu", Phase.FORWARD, ""),
        ("mlp", "sgd", "rate", Phase.OPTIMIZER, "fc1"),
        ("mlp", "adamw", "decay", Phase.OPTIMIZER, "fc2"),
        ("cnn", "adamw", "decay", Phase.OPTIMIZER, "c1"),
        ("gpt", "adamw", "decay", Phase.OPTIMIZER, "embed"),
        ("cnn", "sgd", "same", Phase.FORWARD, "c2"),
        ("gpt", "sgd", "scale", Phase.FORWARD, "block"),
    ],
)
def test_a_mistake_of_the_port_is_named(
    pair: Pair, model: str, optimizer: str, fault: str, phase: Phase, module: str
) -> None:
    found = pair(model, optimizer, fault)
    print(headline(found))
    assert found.verdict is Verdict.DIVERGED
    origin = found.origins[0]
    assert (origin.step, origin.phase, origin.module) == (0, phase, module)
