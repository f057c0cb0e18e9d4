"""The recordings that `lockstep.testing` ships: each is what it says, and is made without torch where it can be."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

import lockstep
from lockstep.core.errors import CorruptError, UsageError
from lockstep.core.finding import Verdict
from lockstep.testing import MadeTraining, record_training, write_recording
from lockstep.testing.fixtures import FaultyPair


def test_a_made_up_recording_reads_back_as_it_was_computed(lockstep_whole_recording: Path) -> None:
    # given the training that it was made of
    run = MadeTraining(steps=2, whole=True)
    computed = [record for step in run.steps for call in step for record in call.records]
    # when it is read
    recording = lockstep.open(lockstep_whole_recording)
    # then it is whole, and holds every tensor
    assert recording.missing == ()
    records = list(recording.records())
    assert [(one.site, one.role, one.name) for one in records] == [
        (one.site, one.role, one.name) for one in computed
    ]
    assert all(
        np.array_equal(one.load(), other.load())
        for one, other in zip(records, computed, strict=True)
    )


def test_the_planted_fault_is_named_and_its_sound_twin_agrees(
    lockstep_faulty_pair: FaultyPair, lockstep_whole_recording: Path, tmp_path: Path
) -> None:
    again = write_recording(tmp_path / "again", MadeTraining(steps=2, whole=True))
    found = lockstep.compare_recordings(lockstep_faulty_pair.reference, again)
    assert (found.verdict, found.origins) == (Verdict.AGREE, ())

    found = lockstep.compare_recordings(
        lockstep_faulty_pair.reference, lockstep_faulty_pair.candidate
    )

    (origin,) = found.origins
    assert str(origin.finding.pair.present.site) == lockstep_faulty_pair.site


def test_two_ranks_differ_and_a_damaged_recording_is_refused(
    lockstep_two_ranks: Path, lockstep_recording: Path, lockstep_damaged_recording: Path
) -> None:
    ranks = lockstep.open(lockstep_two_ranks).ranks
    assert list(ranks) == ["rank0", "rank1"]
    first, second = (rank.calls(0)[-1].records[-1].digest for rank in ranks.values())
    assert first != second
    made = lockstep.open(lockstep_recording).ranks["rank0"]
    assert (made.record_count, made.has_tensors) == (98, False)
    with pytest.raises(CorruptError):
        list(lockstep.open(lockstep_damaged_recording).records())


def test_a_real_training_leaves_the_random_state_as_it_was(tmp_path: Path) -> None:
    before = torch.random.get_rng_state()
    path = record_training(tmp_path / "trained", save="sketch")
    assert torch.equal(torch.random.get_rng_state(), before)
    (call,) = (one for one in lockstep.open(path).ranks["rank0"].calls(1) if "gelu" in one.site.op)
    assert call.arguments == {"kwargs.approximate": "tanh"}
    assert call.source.endswith("train.py:17")


def test_a_recording_of_nothing_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="give a training"):
        write_recording(tmp_path / "none")


def test_made_up_recordings_load_no_torch(tmp_path: Path) -> None:
    script = (
        "import sys; from lockstep.testing import MadeTraining, write_recording\n"
        "write_recording(sys.argv[1], MadeTraining()); assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", script, str(tmp_path / "made")], check=True)
