"""States on disk: every bit comes back, equal contents lie there once, and damage is said with its place."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from lockstep.capture.windows.setting import tensor_of
from lockstep.capture.windows.taking import given
from lockstep.core.errors import CorruptError
from lockstep.store.window_states import STATES, StateWriter, read_state, state_steps

TENSORS = {
    "weight": torch.tensor([[1.5, float("nan")], [float("-inf"), -0.0]]),
    "half": torch.arange(5, dtype=torch.bfloat16),
    "count": torch.tensor(7),
    "mask": torch.tensor([True, False]),
    "nothing": torch.empty(0, 3),
}


def written(directory: Path) -> Path:
    """Two states, of which the second has one other tensor."""
    writer = StateWriter(directory)
    writer.write(0, {name: given(one) for name, one in TENSORS.items()}, {"lr": 0.1})
    later = TENSORS | {"weight": torch.ones(2, 2)}
    writer.write(40, {name: given(one) for name, one in later.items()}, {"lr": 0.2})
    return directory / STATES


def test_every_bit_comes_back(tmp_path: Path) -> None:
    written(tmp_path)

    state = read_state(tmp_path, 0)

    assert state_steps(tmp_path) == [0, 40]
    assert state.values == {"lr": 0.1}
    for name, one in TENSORS.items():
        back = tensor_of(state, name)
        assert (back.dtype, back.shape) == (one.dtype, one.shape)
        assert given(back).digest == given(one).digest


def test_equal_contents_lie_there_once(tmp_path: Path) -> None:
    states = written(tmp_path)

    assert set(load_file(states / "step-0.safetensors")) == set(TENSORS)
    assert set(load_file(states / "step-40.safetensors")) == {"weight"}
    assert torch.equal(tensor_of(read_state(tmp_path, 40), "half"), TENSORS["half"])


def test_a_step_that_begins_once_more_is_written_anew(tmp_path: Path) -> None:
    writer = StateWriter(tmp_path)
    writer.write(0, {"early": given(torch.ones(3))}, {})
    writer.write(0, {"early": given(torch.ones(3)), "late": given(torch.zeros(3))}, {})

    state = read_state(tmp_path, 0)

    assert torch.equal(tensor_of(state, "early"), torch.ones(3))
    assert torch.equal(tensor_of(state, "late"), torch.zeros(3))


def test_a_state_has_a_digest_of_its_own(tmp_path: Path) -> None:
    written(tmp_path)

    assert read_state(tmp_path, 0).digest != read_state(tmp_path, 40).digest


def test_a_cut_file_is_named(tmp_path: Path) -> None:
    path = written(tmp_path) / "step-0.safetensors"
    path.write_bytes(path.read_bytes()[:-8])

    with pytest.raises(CorruptError, match=r"step-0\.safetensors: was changed"):
        read_state(tmp_path, 40).check()


def test_a_flipped_bit_is_named(tmp_path: Path) -> None:
    path = written(tmp_path) / "step-40.safetensors"
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)

    read_state(tmp_path, 0).check()
    with pytest.raises(CorruptError, match=r"step-40\.safetensors: was changed"):
        tensor_of(read_state(tmp_path, 40), "weight")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda text: text[: len(text) // 2], "list of a state"),
        (lambda text: text.replace("0.2", "0.3"), "digest is another"),
        (lambda text: "{}", "list of a state"),
    ],
)
def test_a_changed_list_is_named(tmp_path: Path, change, words: str) -> None:
    path = written(tmp_path) / "step-40.json"
    path.write_text(change(path.read_text()))

    with pytest.raises(CorruptError, match=words):
        read_state(tmp_path, 40)


def test_a_state_that_was_not_finished_is_none(tmp_path: Path) -> None:
    (written(tmp_path) / "step-40.json").unlink()

    assert state_steps(tmp_path) == [0]
    with pytest.raises(CorruptError, match="is not there"):
        read_state(tmp_path, 40)
