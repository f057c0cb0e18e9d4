"""Folders and files of tensors whose names tell their calls, beside each other and beside recordings."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

import lockstep
from lockstep.cli.main import main
from lockstep.comparison import compare_recordings
from lockstep.core.errors import CorruptError, UsageError
from lockstep.core.finding import Comparison, Verdict
from lockstep.store.reader import open_recording
from lockstep.store.written_calls import digested
from lockstep.testing import MadeTraining, write_recording
from lockstep_interop_names.dumps.named_sites import pattern_of
from lockstep_interop_names.dumps.named_tensors import named_tensors

Array = np.ndarray
Steps = list[tuple[str, Array, Array]]
STAMP = 1664000000000000
DASHED = "tensors:{module}-{op}-{role}-{index}.npy"


def network(*, wrong: int = -1, noise: float = 0.0) -> Steps:
    """Six layers by name, with what goes into each and what comes out; one of them wrong."""
    source = np.random.default_rng(0)
    value = source.standard_normal((8, 16)).astype("f4")
    steps: Steps = []
    for number in range(6):
        weight = source.standard_normal((16, 16)).astype("f4") / 4
        result = np.tanh(value @ weight)
        result = (result * (1 + noise * np.sign(np.sin(1e3 * result)))).astype("f4")
        result = result * np.float32(1.05 if number == wrong else 1)
        # such that order in time is not that of names
        steps.append((f"net_{'fbdeca'[number]}_MatMul", value, result))
        value = result
    return steps


def tfdbg(folder: Path, steps: Steps) -> Path:
    """As one list of `pt` commands leaves it: one time stamp for all."""
    folder.mkdir()
    for name, _, result in steps:
        np.save(folder / f"{name}.0.{STAMP}.npy", result)
    return folder


def ascend(folder: Path, steps: Steps) -> Path:
    """As converted dumps of a device are named."""
    folder.mkdir()
    for number, (name, value, result) in enumerate(steps):
        start = f"MatMul.{name}.{number + 3}.2.{STAMP + 37 * number}"
        np.save(folder / f"{start}.input.0.npy", value)
        np.save(folder / f"{start}.output.0.npy", result)
    return folder


Write = Callable[[Path, Steps], Path]


@pytest.mark.parametrize("forms", [(tfdbg, ascend), (ascend, tfdbg), (ascend, ascend)])
def test_the_wrong_operator_of_two_folders_is_named_and_noise_is_not(
    forms: tuple[Write, Write], tmp_path: Path
) -> None:
    reference = forms[0](tmp_path / "reference", network())
    found = compare_recordings(reference, forms[1](tmp_path / "wrong", network(wrong=3)))
    assert [one.module for one in found.origins] == ["net_e_MatMul"]
    for name, steps in (("noisy", network(noise=1e-7)), ("same", network())):
        twin = compare_recordings(reference, forms[1](tmp_path / name, steps))
        assert twin.verdict is Verdict.AGREE
        assert "settings of calls" in twin.unrecorded
        assert ("what went into calls" in twin.unrecorded) == (tfdbg in forms)


def test_two_folders_without_an_order_say_that_the_first_is_so_by_name(tmp_path: Path) -> None:
    reference = tfdbg(tmp_path / "reference", network())
    found = compare_recordings(reference, tfdbg(tmp_path / "wrong", network(wrong=2)))
    assert found.verdict is Verdict.DIVERGED
    assert (
        "the first by name: neither recording says which call came first"
        in found.origins[0].finding.reason
    )
    assert "the order of the calls" in found.unrecorded
    # and what may be noise that has grown over calls is neither found wrong nor right
    off = [(name, value, result * np.float32(1 + 1e-4)) for name, value, result in network()]
    unsure = compare_recordings(reference, tfdbg(tmp_path / "off", off))
    assert unsure.verdict is Verdict.INCOMPARABLE
    assert "6 tensors could not be judged" in unsure.not_compared[0]


def test_what_is_in_one_folder_alone_never_meets_another_name(tmp_path: Path) -> None:
    left = tfdbg(tmp_path / "left", [("one", np.ones((4, 4)), np.ones((4, 4), "f4"))])
    right = tfdbg(tmp_path / "right", [("two", np.ones((4, 4)), np.ones((4, 4), "f4"))])
    assert compare_recordings(left, right).verdict is Verdict.INCOMPARABLE


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A training with whole tensors, and the same with a wrong relu."""
    folder = tmp_path_factory.mktemp("made_for_folders")
    wrong = MadeTraining(whole=True, alter={"relu": lambda value: value * np.float32(1.05)})
    return write_recording(folder / "sound", MadeTraining(whole=True)), write_recording(
        folder / "wrong", wrong
    )


def dashed(recording: Path, folder: Path, rename: Callable[[str], str] = str) -> Path:
    """What went into operators and came out, by a pattern of names."""
    folder.mkdir()
    for call in lockstep.open(recording).ranks["rank0"].calls(0):
        for one in call.records if call.kind.value == "operator" else ():
            if one.role.value in ("input", "output"):
                name = f"{rename(call.site.module) or '(model)'}-{call.site.op}-{one.role.value}-{one.index}"
                np.save(folder / f"{name}.npy", one.load())
    return folder


def compared(reference: Path, candidate: Path, mapping: Path | None = None) -> Comparison:
    """The comparison of what lies there, by the names that `dashed` writes where it is no recording."""
    return compare_recordings(
        open_recording(reference, form=DASHED),
        open_recording(candidate, form=DASHED),
        mapping=mapping,
    )


def test_names_by_a_pattern_meet_a_recording_also_under_other_names(
    pair: tuple[Path, Path], tmp_path: Path
) -> None:
    sound, wrong = (dashed(one, tmp_path / one.name) for one in pair)
    for sides in ((pair[0], wrong), (sound, pair[1]), (sound, wrong)):
        assert [one.op for one in compared(*sides).origins] == ["torch.nn.functional.relu"], sides
    assert not compared(pair[0], sound).origins
    # a mapping file says what a module is called there
    other = dashed(pair[1], tmp_path / "other", lambda path: path.replace("net", "my_net"))
    (tmp_path / "names.yaml").write_text("modules: {net: my_net}\n")
    assert compared(pair[0], other).verdict is not Verdict.AGREE
    assert [one.module for one in compared(pair[0], other, tmp_path / "names.yaml").origins] == [
        "net"
    ]


def test_what_extract_writes_is_read_again_from_every_file(
    pair: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for recording in pair:
        for suffix in (".safetensors", ".npz"):
            name = str(tmp_path / f"{recording.name}{suffix}")
            assert main(["extract", str(recording), "*", "-o", name]) == 0
    (sound, wrong), other = (
        (tmp_path / "sound.safetensors", tmp_path / "wrong.npz"),
        tmp_path / "sound.npz",
    )
    for sides in ((sound, wrong), (pair[0], wrong), (sound, pair[1])):
        assert [one.op for one in compare_recordings(*sides).origins] == [
            "torch.nn.functional.relu"
        ], sides
    found = compare_recordings(sound, other)
    assert found.verdict is Verdict.AGREE
    assert found.compared == sum(1 for _ in lockstep.open(sound).records())


def test_two_checkpoints_are_compared_by_their_parameters(tmp_path: Path) -> None:
    from safetensors.torch import save_file

    values = {"body.weight": torch.randn(4, 4).to(torch.bfloat16), "body.bias": torch.zeros(4)}
    torch.save({"model": values}, tmp_path / "one.pt")
    torch.save(values, tmp_path / "flat.pt")
    save_file(values, tmp_path / "two.safetensors")
    same = compare_recordings(tmp_path / "flat.pt", tmp_path / "two.safetensors")
    assert same.verdict is Verdict.AGREE
    assert "every call" in same.unrecorded
    values["body.bias"] = torch.ones(4)
    torch.save(values, tmp_path / "other.pt")
    found = compare_recordings(tmp_path / "two.safetensors", tmp_path / "other.pt")
    assert [one.tensor for one in found.origins] == ["body.bias"]
    # and of other names nothing is said
    assert (
        compare_recordings(tmp_path / "one.pt", tmp_path / "two.safetensors").verdict
        is Verdict.INCOMPARABLE
    )


def test_a_checkpoint_that_lacks_a_parameter_or_holds_code_does_not_agree(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    class Code:
        def __reduce__(self) -> tuple[object, ...]:
            return (Path("ran").touch, ())

    monkeypatch.chdir(tmp_path)
    values = {"body.weight": torch.randn(4, 4), "body.bias": torch.zeros(4)}
    torch.save(values, tmp_path / "one.pt")
    torch.save({"body.weight": values["body.weight"]}, tmp_path / "less.pt")
    torch.save({**values, "odd": Code()}, tmp_path / "code.pt")
    found = compare_recordings(tmp_path / "one.pt", tmp_path / "less.pt")
    assert found.verdict is Verdict.INCOMPARABLE
    assert "body.bias occurs only in the reference" in found.not_compared[0]
    assert main(["show", str(tmp_path / "code.pt")]) == 2
    assert "and would run it: nothing but tensors is read" in capsys.readouterr().err
    assert not (tmp_path / "ran").exists()


def small_files(folder: Path) -> list[Path]:
    """One small file of each kind."""
    from safetensors.numpy import save_file

    array = np.arange(6, dtype="f4").reshape(2, 3)
    np.save(folder / "a.npy", array)
    np.savez(folder / "a.npz", one=array)
    save_file({"one": array}, str(folder / "a.safetensors"))
    torch.save({"one": torch.from_numpy(array)}, folder / "a.pt")
    return sorted(folder.glob("a.*"))


@pytest.mark.parametrize("number", range(4))
def test_a_file_that_is_cut_off_at_any_byte_ends_in_a_sentence(number: int, tmp_path: Path) -> None:
    file = small_files(tmp_path)[number]
    data = file.read_bytes()
    assert [tensor.shape for _, tensor in named_tensors(file)] == [(2, 3)]
    for length in range(len(data)):
        file.write_bytes(data[:length])
        with pytest.raises(CorruptError):
            [digested(tensor) for _, tensor in named_tensors(file)]


def test_hostile_files_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tfdbg(tmp_path / "folder", network())
    kept = compare_recordings(folder, tfdbg(tmp_path / "twin", network())).compared
    # a link is not followed, and said
    (folder / f"link.0.{STAMP}.npy").symlink_to("/etc/passwd")
    recording = lockstep.open(folder)
    assert any("link.0" in gap.reason for gap in recording.manifest.not_seen)
    assert sum(1 for _ in recording.records()) == kept
    # a header that claims more than there is, a negative extent, objects
    for header in ("(1099511627776, 8)", "(-4, 2)", "(2,), 'descr': '|O'"):
        text = (
            f"{{'descr': '<f4', 'fortran_order': False, 'shape': {header}, }}".encode().ljust(117)
            + b"\n"
        )
        (folder / f"huge.0.{STAMP}.npy").write_bytes(
            b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text
        )
        assert main(["show", str(folder)]) == 2
        assert "is not a .npy file of numbers" in capsys.readouterr().err
    objects = io.BytesIO()
    np.save(objects, np.array([{}], dtype=object), allow_pickle=True)
    with zipfile.ZipFile(tmp_path / "odd.npz", "w") as archive:
        archive.writestr("rank0/step0/m/torch.relu#0/output.result.npy", objects.getvalue())
    with pytest.raises(CorruptError, match="holds objects"):
        list(named_tensors(tmp_path / "odd.npz"))


def test_names_of_two_tools_in_one_folder_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tfdbg(tmp_path / "folder", network())
    for file in ascend(tmp_path / "npu", network()).iterdir():
        file.rename(folder / file.name)
    assert main(["show", str(folder)]) == 2
    assert "of two runs" in capsys.readouterr().err


def test_a_form_that_there_is_not_and_names_that_tell_nothing_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tfdbg(tmp_path / "folder", network())
    for form, words in (
        ("odd", "there is no form odd; there are"),
        ("npy:{op}", "npy has names of its own"),
        ("tensors:{what}", "give each of"),
        ("tensors:{op}-{role}", "holds no tensor by a known name"),
    ):
        assert main(["show", str(folder), "--format", form]) == 2
        assert words in capsys.readouterr().err
    for text in ("{op}{op}", "{index}", "{}"):
        with pytest.raises(UsageError):
            pattern_of(text)
    assert main(["show", str(folder), "--format", "tensors:{op}.{index}.{time}.npy"]) == 0


@pytest.mark.parametrize("suffix", [".pt", ".npz"])
def test_a_folder_of_ones_own_says_at_once_how_names_are_given(
    suffix: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    # given a folder of tensors with names of one's own, and no manifest
    if suffix == ".pt":
        torch.save(torch.ones(3), tmp_path / "layer1_out.pt")
    else:
        np.savez(tmp_path / "acts.npz", layer1_out=np.ones(3, "f4"))
    # when it is shown, and shown again with the pattern that the sentence gives
    assert main(["show", str(tmp_path)]) == 2
    said = " ".join(capsys.readouterr().err.split())
    form = said.partition("--format '")[2].partition("'")[0]
    # then it is read
    assert main(["show", "--format", form, str(tmp_path)]) == 0
    assert "layer1_out" in capsys.readouterr().out
