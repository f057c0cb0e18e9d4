"""Pairs of PyTorch and Keras, recorded as they run; `make test-frameworks` installs TensorFlow and runs these."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path

import numpy as np
import pytest

import lockstep

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """They take minutes, and TensorFlow."""
    without = importlib.util.find_spec("tensorflow") is None
    for item in (one for one in items if HERE in one.path.parents):
        item.add_marker(pytest.mark.exhaustive)
        item.add_marker(pytest.mark.skipif(without, reason="make test-frameworks has TensorFlow"))


def lockstep_runs(*words: str) -> str:
    """What a verb prints."""
    few = {"OMP_NUM_THREADS": "1", "TF_NUM_INTEROP_THREADS": "1", "TF_NUM_INTRAOP_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-m", "lockstep", *words], env={**os.environ, **few}, capture_output=True,
        text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


Pair = Callable[..., tuple[Path, Path, Path]]


@pytest.fixture(scope="session")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Pair:
    """The PyTorch side of a model, the Keras side with a fault, and the mapping between them.

    The mapping is made of sides that start from other weights; by it the PyTorch side's are converted.
    """
    folder = tmp_path_factory.mktemp("across")

    @cache
    def recorded(side: str, model: str, *fault: str) -> Path:
        path = folder / "-".join((side, model, *fault))
        script = HERE / f"{side}_side.py"
        options = ("-o", str(path), "--steps", "0", "--save", "tensors", "--")
        lockstep_runs("record", *options, sys.executable, str(script), model, str(folder), *fault)
        return path

    @cache
    def mapped(model: str) -> Path:
        mapping = folder / f"{model}.yaml"
        sides = recorded("torch", model), recorded("keras", model, "other weights")
        lockstep_runs("map", *map(str, sides), "-o", str(mapping))
        given = dict(np.load(folder / f"{model}.npz"))
        converted = lockstep.convert_weights(given, mapping)
        np.savez(folder / f"{model}-converted.npz", **converted)
        return mapping

    def both(model: str, fault: str = "sound") -> tuple[Path, Path, Path]:
        mapping = mapped(model)
        return recorded("torch", model), recorded("keras", model, fault), mapping

    return both
