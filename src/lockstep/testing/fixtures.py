"""Recordings as fixtures of pytest, each made once in a session: `pytest_plugins = ["lockstep.testing.fixtures"]`.

They are shared: a test that changes one copies it first.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from lockstep.core.records import Array
from lockstep.testing.made_recordings import damage, write_recording
from lockstep.testing.made_training import MadeTraining
from lockstep.testing.trained_recordings import record_training

STEPS = 2


@dataclass(frozen=True, slots=True)
class FaultyPair:
    """Two recordings that part at one site.

    Parameters
    ----------
    reference, candidate
        Where they lie; both with whole tensors.
    site
        What is wrong in the candidate, as it is printed.
    """

    reference: Path
    candidate: Path
    site: str


@pytest.fixture(scope="session")
def lockstep_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the recordings of these fixtures lie."""
    return tmp_path_factory.mktemp("lockstep")


@pytest.fixture(scope="session")
def lockstep_recording(lockstep_folder: Path) -> Path:
    """Two steps of a made-up training, with sketches."""
    return write_recording(lockstep_folder / "sketched", MadeTraining(steps=STEPS))


@pytest.fixture(scope="session")
def lockstep_whole_recording(lockstep_folder: Path) -> Path:
    """The same training with whole tensors."""
    return write_recording(lockstep_folder / "whole", MadeTraining(steps=STEPS, whole=True))


@pytest.fixture(scope="session")
def lockstep_faulty_pair(lockstep_folder: Path, lockstep_whole_recording: Path) -> FaultyPair:
    """The same, beside a candidate whose relu is off by a thousandth; later tensors inherit it."""
    wrong = MadeTraining(steps=STEPS, whole=True, alter={"relu": _off_by_a_thousandth})
    candidate = write_recording(lockstep_folder / "faulty", wrong)
    site = "net / torch.nn.functional.relu #0, forward"
    return FaultyPair(lockstep_whole_recording, candidate, site)


@pytest.fixture(scope="session")
def lockstep_two_ranks(lockstep_folder: Path) -> Path:
    """Two ranks of one training, each with batches of its own."""
    ranks = [MadeTraining(steps=STEPS, seed=seed) for seed in (0, 1)]
    return write_recording(lockstep_folder / "ranks", *ranks)


@pytest.fixture(scope="session")
def lockstep_damaged_recording(lockstep_folder: Path) -> Path:
    """A recording one of whose tables is cut in half; to read it raises a `CorruptError`."""
    return damage(write_recording(lockstep_folder / "damaged", MadeTraining()))


@pytest.fixture(scope="session")
def lockstep_trained_recording(lockstep_folder: Path) -> Path:
    """A real training of PyTorch's with whole tensors: the model and loop of `trained_recordings.SCRIPT`."""
    return record_training(lockstep_folder / "trained")


def _off_by_a_thousandth(value: Array) -> Array:
    return value * np.float32(1.001)
