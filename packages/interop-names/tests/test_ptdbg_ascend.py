"""Dumps of ptdbg_ascend, and dumps of two tools beside a recording of the same training."""

from __future__ import annotations

import pickle
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import lockstep
from lockstep.cli.main import main
from lockstep.comparison import compare_recordings
from lockstep.core.errors import CorruptError
from lockstep.core.finding import Verdict
from lockstep.core.read_calls import ReadCall
from lockstep.testing import MadeTraining, write_recording
from lockstep.testing.made_dumps import probe_dump, ptdbg_dump
from lockstep_interop_names.dumps.readers import ptdbg_ascend

Make = Callable[..., Path]


@pytest.fixture(scope="module")
def recordings(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, Path]:
    """A training with whole tensors, the same with a wrong relu, and the same with rounding of its own."""
    folder = tmp_path_factory.mktemp("made")

    def rounded(value: np.ndarray) -> np.ndarray:
        return np.nextafter(value, np.float32(np.inf), where=value > 0, out=value.copy())

    made = [
        MadeTraining(whole=True),
        MadeTraining(whole=True, alter={"relu": lambda value: value * np.float32(1.05)}),
        MadeTraining(whole=True, alter={"fc1": rounded}),
    ]
    names = ("sound", "wrong", "rounded")
    return tuple(write_recording(folder / name, one) for name, one in zip(names, made, strict=True))  # type: ignore[return-value]


FORMS: list[tuple[Make, dict[str, object]]] = [
    (ptdbg_dump, {"mark": "_"}),
    (ptdbg_dump, {"mark": "."}),
    (ptdbg_dump, {"mark": ".", "whole": False}),
    (probe_dump, {}),
]


@pytest.mark.sampled(3)
@pytest.mark.parametrize(("form", "options"), FORMS)
def test_a_dump_names_the_wrong_operator_beside_a_dump_and_beside_a_recording(
    form: Make, options: dict[str, object], recordings: tuple[Path, Path, Path], tmp_path: Path
) -> None:
    sound, wrong, other = (
        form(lockstep.open(one), tmp_path / one.name, **options) for one in recordings
    )
    for pair in ((sound, wrong), (recordings[0], wrong), (sound, recordings[1])):
        found = compare_recordings(*pair)
        assert [one.op for one in found.origins] == ["torch.nn.functional.relu"], pair
    # and of runs that are apart by rounding alone nothing is named
    for pair in ((sound, other), (recordings[0], other), (sound, recordings[2])):
        found = compare_recordings(*pair)
        assert not found.origins, pair
        assert not found.uniform
    # what a dump lacks leaves no agreement with a recording that has it
    assert compare_recordings(recordings[0], sound).verdict is Verdict.INCOMPARABLE


def test_an_old_dump_is_read_as_far_as_it_goes(tmp_path: Path) -> None:
    # given the oldest layout: one file of lines, whatever its name, and tensors in a folder of that name
    folder = tmp_path / "rank0"
    (folder / "myDump").mkdir(parents=True)
    np.save(folder / "myDump" / "Tensor_permute_1_forward.npy", np.ones((2, 3), np.float32))
    lines = '["Tensor_permute_1_forward", 1, [], "torch.bfloat16", [2, 3], [1.0, 1.0, 1.0]]\n'
    lines += '["Tensor_permute_1_forward_input.1", 1, [], "<class \'int\'>", "[]", [3, 3, 3]]\n'
    (folder / "myDump.pkl").write_text(lines)
    (call,) = lockstep.open(tmp_path).ranks["rank0"].calls(0)
    assert (call.site.op, call.arguments) == ("torch.Tensor.permute", {"args.1": 3})
    (record,) = call.records
    assert (record.name, record.dtype) == ("result", "bfloat16")
    assert record.load().tolist() == [[1, 1, 1], [1, 1, 1]]


@pytest.mark.parametrize("beside", ["api_stack_dump", "dump"])
def test_tensors_of_a_dump_with_stacks_are_found_by_either_name(
    beside: str, tmp_path: Path
) -> None:
    folder = tmp_path / "rank0"
    (folder / beside).mkdir(parents=True)
    np.save(folder / beside / "Torch_relu_0_forward_output.0.npy", np.ones(2, np.float32))
    lines = '["Torch_relu_0_forward_output.0", 1, [], "torch.float32", [2], [1.0, 1.0, 1.0]]\n'
    (folder / "api_stack_dump.pkl").write_text(lines)
    (record,) = lockstep.open(tmp_path).records()
    assert record.load().tolist() == [1, 1]


def test_lines_that_are_cut_off_anywhere_are_refused_or_fewer(
    recordings: tuple[Path, Path, Path], tmp_path: Path
) -> None:
    dump = ptdbg_dump(lockstep.open(recordings[0]), tmp_path / "dump", whole=False)
    place = next(dump.rglob("dump.pkl"))
    whole = b"".join(place.read_bytes().splitlines(keepends=True)[:6])
    place.write_bytes(whole)
    every = [one for one in ptdbg_ascend.read(dump) if isinstance(one, ReadCall)]
    for length in range(len(whole)):
        place.write_bytes(whole[:length])
        if not ptdbg_ascend.recognises(dump):
            continue
        if whole[length - 1 : length] != b"\n" and whole[length : length + 1] != b"\n":
            with pytest.raises(CorruptError, match=r"dump.pkl: line"):
                list(ptdbg_ascend.read(dump))
        else:
            found = [one for one in ptdbg_ascend.read(dump) if isinstance(one, ReadCall)]
            assert len(found) <= len(every)


def test_a_pickle_is_no_dump_and_is_never_loaded(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    class Code:
        def __reduce__(self) -> tuple[object, ...]:
            return (Path("ran").touch, ())

    monkeypatch.chdir(tmp_path)
    (tmp_path / "rank0").mkdir()
    (tmp_path / "rank0" / "dump.pkl").write_bytes(pickle.dumps(Code()))
    assert main(["show", str(tmp_path)]) == 2
    assert "not a Lockstep recording" in capsys.readouterr().err
    assert not (tmp_path / "ran").exists()


def test_two_forms_in_one_folder_are_told_apart_by_nobody(
    probe_dumps: Path,
    recordings: tuple[Path, Path, Path],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    ptdbg = ptdbg_dump(lockstep.open(recordings[0]), tmp_path / "ptdbg", whole=False)
    mixed = shutil.copytree(probe_dumps / "golden_2rank", tmp_path / "mixed")
    shutil.copy(next(ptdbg.rglob("dump.pkl")), mixed / "step0" / "rank0")
    assert main(["show", str(mixed)]) == 2
    printed = capsys.readouterr().err
    assert "holds dumps of mindstudio-probe and of ptdbg_ascend" in printed
