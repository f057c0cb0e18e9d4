"""Folders of tensors that somebody wrote with a loop of his own, and files that are missing from a dump."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.numpy import save_file

from lockstep.comparison import compare_recordings
from lockstep.core.errors import NotARecordingError
from lockstep.core.finding import Comparison, Verdict
from lockstep.report.comparison.screen import headline
from lockstep.store.reader import open_recording
from lockstep.testing.made_dumps import probe_call, probe_leaf, probe_records

Array = np.ndarray
NAMES = "tensors:{module}.{op}.{role}.{index}"


def tensors(wrong: str = "") -> dict[str, Array]:
    """What went into three layers and came out, by names of one's own; the result of one is 1 % off."""
    value, found = np.random.default_rng(1).standard_normal((4, 8)).astype("f4"), {}
    for name in ("fc1", "act", "fc2"):
        found[f"{name}.Layer.input.0"] = value
        value = (np.tanh(value) * np.float32(1.01 if name == wrong else 1)).astype("f4")
        found[f"{name}.Layer.output.0"] = value
    return found


def _npy(folder: Path, given: dict[str, Array]) -> None:
    for name, value in given.items():
        np.save(folder / f"{name}.npy", value)


def _pt(folder: Path, given: dict[str, Array]) -> None:
    for name, value in given.items():
        torch.save(torch.from_numpy(value), folder / f"{name}.pt")


def _pt_of_many(folder: Path, given: dict[str, Array]) -> None:
    torch.save({name: torch.from_numpy(value) for name, value in given.items()}, folder / "all.pt")


def _npz(folder: Path, given: dict[str, Array]) -> None:
    np.savez(folder / "all.npz", **given)


def _safetensors(folder: Path, given: dict[str, Array]) -> None:
    save_file(given, folder / "all.safetensors")


WRITERS = {
    ".npy": _npy, ".pt": _pt, ".pt of many": _pt_of_many, ".npz": _npz, ".safetensors": _safetensors,
}  # fmt: skip
Writer = Callable[[Path, dict[str, Array]], None]


def written(folder: Path, write: Writer, given: dict[str, Array]) -> Path:
    folder.mkdir(parents=True)
    write(folder, given)
    return folder


def compared(left: Path, right: Path, form: str = NAMES) -> Comparison:
    return compare_recordings(*(open_recording(one, form=form) for one in (left, right)))


@pytest.mark.parametrize("kind", list(WRITERS))
def test_how_names_are_given_is_said_at_once_and_then_read(tmp_path: Path, kind: str) -> None:
    sides = [
        written(tmp_path / name, WRITERS[kind], tensors(wrong))
        for name, wrong in (("sound", ""), ("again", ""), ("wrong", "act"))
    ]
    with pytest.raises(NotARecordingError, match=r"--format 'tensors:.*\{op\}\.\{role\}"):
        open_recording(sides[0])
    assert compared(sides[0], sides[1]).verdict is Verdict.AGREE
    assert [one.module for one in compared(sides[0], sides[2]).origins] == ["act"]


def test_names_of_folders_and_files_are_part_of_a_pattern(tmp_path: Path) -> None:
    for name, wrong in (("sound", ""), ("wrong", "fc2")):
        for step in (0, 1):
            given = tensors(wrong if step else "")
            place = tmp_path / name / f"step_{step}"
            written(place, lambda folder, given: np.savez(folder / "rank_0.npz", **given), given)
    with pytest.raises(NotARecordingError, match=r"'tensors:\{any\}/\{module\}"):
        open_recording(tmp_path / "sound")
    for file in ("rank_{rank}", "rank_{rank}.npz"):  # with its ending or without
        form = f"tensors:step_{{step}}/{file}/{{module}}.{{op}}.{{role}}.{{index}}"
        found = compared(tmp_path / "sound", tmp_path / "wrong", form)
        assert [(one.step, one.module) for one in found.origins] == [(1, "fc2")]


@pytest.mark.parametrize(
    ("name", "is_checkpoint"),
    [("fc1.weight", True), ("attention.in_proj_bias", True), ("fc1.output", False), ("fc1", False)],
)
def test_results_are_not_taken_for_parameters(
    tmp_path: Path, name: str, is_checkpoint: bool
) -> None:
    folder = written(tmp_path / "x", _safetensors, {name: np.ones(3, "f4")})
    if is_checkpoint:
        assert [one.name for one in open_recording(folder).records()] == [name]
        return
    with pytest.raises(NotARecordingError, match="say how names are built"):
        open_recording(folder)
    # unless somebody says so
    assert [one.name for one in open_recording(folder, form="tensors").records()] == [name]


def test_zips_without_checksums_are_read_and_compared_by_their_bytes(tmp_path: Path) -> None:
    before = torch.serialization.get_crc32_options()
    torch.serialization.set_crc32_options(False)
    try:
        sides = [
            written(tmp_path / name, _pt_of_many, tensors(wrong))
            for name, wrong in (("sound", ""), ("again", ""), ("wrong", "fc1"))
        ]
    finally:
        torch.serialization.set_crc32_options(before)
    with_checksums = written(tmp_path / "summed", _pt_of_many, tensors())
    assert compared(sides[0], sides[1]).verdict is Verdict.AGREE
    assert compared(sides[0], with_checksums).verdict is Verdict.AGREE
    assert [one.module for one in compared(sides[0], sides[2]).origins] == ["fc1"]


def test_a_result_whose_file_is_missing_never_agrees(tmp_path: Path) -> None:
    sides = [written(tmp_path / name, _npy, tensors()) for name in ("a", "b")]
    (sides[1] / "fc2.Layer.output.0.npy").unlink()
    for left, right, missing in ((*sides, "candidate"), (*sides[::-1], "reference")):
        found = compared(left, right)
        assert found.verdict is Verdict.INCOMPARABLE
        words = f"1 tensor has no partner, first result of fc2 / Layer #0, forward, missing in the {missing}"
        assert words in headline(found)


def test_a_file_that_a_dump_names_and_does_not_have_is_said_in_the_headline(tmp_path: Path) -> None:
    x = np.linspace(-1, 1, 8, dtype="f4")
    sides = []
    for name in ("a", "b"):
        leaves = [probe_leaf(x), probe_leaf(np.tanh(x))]
        for number, leaf in enumerate(leaves):
            del leaf["md5"]
            leaf["data_name"] = f"{number}.npy"
        data = {"Torch.tanh.0.forward": probe_call(leaves[:1], leaves[1])}
        sides.append(probe_records(tmp_path / name, data))
        files = sides[-1] / "step0" / "rank0" / "dump_tensor_data"
        files.mkdir()
        np.save(files / "0.npy", x)
        np.save(files / "1.npy", np.tanh(x))
    assert compare_recordings(*sides).verdict is Verdict.AGREE
    (files / "1.npy").unlink()
    found = compare_recordings(*sides)
    assert found.verdict is Verdict.INCOMPARABLE
    assert "1 file that a dump names is missing: 1.npy" in headline(found)


def test_a_result_under_the_name_of_another_call_never_agrees(tmp_path: Path) -> None:
    sides = [written(tmp_path / name, _npy, tensors()) for name in ("a", "b")]
    assert compared(*sides).verdict is Verdict.AGREE
    for kind in ("input", "output"):
        first, last = (sides[1] / f"{name}.Layer.{kind}.0.npy" for name in ("fc1", "fc2"))
        kept = first.read_bytes()
        first.write_bytes(last.read_bytes())
        last.write_bytes(kept)
    assert compared(*sides).verdict is not Verdict.AGREE
