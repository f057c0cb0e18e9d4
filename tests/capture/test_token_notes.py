"""`lockstep.tokens`: which tokens a model is given next."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import lockstep
from lockstep.core.errors import UsageError
from lockstep.core.manifest import TOKENS
from lockstep.core.site import CallKind


def test_tokens_are_recorded_before_the_call(tmp_path: Path) -> None:
    model = torch.nn.Linear(3, 2)
    given = torch.tensor([5, 7, 9])
    with lockstep.record(
        tmp_path / "engine", model=model, steps="0:1", save="tensors"
    ) as recording:
        lockstep.tokens(given, sequences=[0, 0, 1], positions=[3, 4, 0])
        given += 1  # what the engine does with its own tensor later does not matter
        model(torch.ones(3, 3))
        recording.step()
    calls = lockstep.open(tmp_path / "engine").ranks["rank0"].calls(0)
    kinds = [call.kind for call in calls]
    (place,) = (place for place, call in enumerate(calls) if call.site.op == TOKENS)
    assert place < kinds.index(CallKind.MODULE)
    assert {one.name: one.load().tolist() for one in calls[place].records} == {
        "ids": [5, 7, 9], "sequences": [0, 0, 1], "positions": [3, 4, 0],
    }  # fmt: skip


def test_without_a_recording_nothing_happens() -> None:
    lockstep.tokens([1], sequences=[0], positions=[0])


@pytest.mark.parametrize(
    ("ids", "positions", "words"),
    [
        ([1, 2], [0], "differ in shape: ids (2,), sequences (2,), positions (1,)"),
        ([1.5, 2], [0, 1], "give whole numbers"),
        (["a", "b"], [0, 1], "ids is not an array of whole numbers"),
        ([[[1]]], [0, 1], "of shape (1, 1, 1)"),
    ],
)
def test_other_than_a_number_a_token_is_refused(
    ids: object, positions: list[int], words: str
) -> None:
    with pytest.raises(UsageError) as refused:
        lockstep.tokens(ids, sequences=[0, 0], positions=positions)
    assert words in str(refused.value)
