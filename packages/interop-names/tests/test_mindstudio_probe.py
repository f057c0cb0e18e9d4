"""Dumps of mindstudio-probe on either side of `compare`, and everywhere else that a recording is taken."""

from __future__ import annotations

import csv
import json
import pickle
import shutil
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import lockstep
from lockstep.cli.main import main
from lockstep.comparison import compare_recordings
from lockstep.core.errors import CorruptError
from lockstep.core.finding import Outcome, Verdict
from lockstep_interop_names.dumps import torch_file
from lockstep_interop_names.dumps.readers import mindstudio_probe
from lockstep_interop_names.dumps.torch_file import tensors_in

Alter = Callable[[dict[str, Any]], None]


def altered(dump: Path, alter: Alter, to: Path) -> Path:
    """A copy of a dump with other records in the first rank of its first step."""
    shutil.copytree(dump, to)
    path = next(to.glob("step0/*/dump.json"))
    values = json.loads(path.read_text())
    alter(values["data"])
    path.write_text(json.dumps(values))
    return to


@pytest.mark.parametrize(
    ("kind", "rank", "op", "module", "source"),
    [
        ("tensor", "rank0", "torch.nn.functional.gelu", "layers.1", "/home/user/work.py:38"),
        ("stat", "rank0", "torch.nn.functional.gelu", "layers.1", "/home/user/work.py:38"),
        ("md5_L1", "rank0", "torch.nn.functional.gelu", "", "/home/user/work.py:38"),
        ("2rank", "rank1", "torch.nn.functional.relu", "", "/home/user/work.py:20"),
    ],
)
def test_the_wrong_operator_of_a_pair_is_named_and_no_other(
    kind: str, rank: str, op: str, module: str, source: str, probe_dumps: Path
) -> None:
    sides = probe_dumps / f"golden_{kind}", probe_dumps / f"bad_{kind}"
    for pair in (sides, sides[::-1]) if kind != "tensor" else (sides,):
        found = compare_recordings(*pair)
        assert found.verdict is Verdict.DIVERGED
        assert [(one.rank, one.op, one.module) for one in found.origins] == [(rank, op, module)]
        assert found.origins[0].source == source
        assert found.unrecorded[:2] == (
            "what the other tool left out",
            "losses, batches and optimizers",
        )


@pytest.mark.parametrize("kind", ["tensor", "md5_L1"])
def test_the_same_dump_elsewhere_agrees_and_says_what_it_lacks(
    kind: str, probe_dumps: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    # given a dump that was moved from where its data_dir says that it is
    moved = shutil.copytree(probe_dumps / f"golden_{kind}", tmp_path / "moved")
    assert main(["compare", str(probe_dumps / f"golden_{kind}"), str(moved)]) == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert "all equal bit by bit" in printed
    assert "not recorded: what the other tool left out, losses, batches and optimizers" in printed


@pytest.mark.parametrize("kind", ["stat", "2rank"])
def test_equal_statistics_are_no_agreement(kind: str, probe_dumps: Path, tmp_path: Path) -> None:
    moved = shutil.copytree(probe_dumps / f"golden_{kind}", tmp_path / "moved")
    found = compare_recordings(probe_dumps / f"golden_{kind}", moved)
    assert found.verdict is Verdict.INCOMPARABLE
    assert not found.origins
    assert "different tensors can have the same" in found.not_compared[0]


def test_a_module_begins_before_what_it_calls_and_gradients_stand_with_their_call(
    probe_dumps: Path,
) -> None:
    rank = lockstep.open(probe_dumps / "golden_tensor").ranks["rank0"]
    calls = {str(call.site): call for call in rank.calls(0)}
    block = calls["layers.1 / Block #0, forward"]
    gelu = calls["layers.1 / torch.nn.functional.gelu #0, forward"]
    assert gelu.parent == block.id
    assert block.sequence < gelu.sequence < max(one.sequence for one in block.records)
    assert gelu.arguments == {"kwargs.approximate": "none"}
    assert [(one.role.value, one.name) for one in gelu.records] == [
        ("input", "args.0"), ("output", "result"), ("grad_output", "result"), ("grad_input", "grad_fn.0"),
    ]  # fmt: skip
    names = {one.name for call in calls.values() for one in call.records}
    assert {"head.weight", "head.bias", "layers.0.attn.qkv.weight"} <= names
    parameters = [call for call in rank.calls(0) if call.kind.value == "gradient"]
    assert {one.records[0].name for one in parameters} >= {"head.weight", "emb.weight"}


def test_a_tensor_is_read_when_it_is_asked_for(
    probe_dumps: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # given that every look at the bytes of a tensor is noted
    read: list[str] = []
    of_file = torch_file._bytes_of

    def noting(path: Path, *given: Any, **options: Any) -> Any:
        read.append(path.name)
        return of_file(path, *given, **options)

    with monkeypatch.context() as patch:
        patch.setattr(torch_file, "_bytes_of", noting)
        recording = lockstep.open(probe_dumps / "golden_tensor")
        records = {(str(one.site), one.name): one for one in recording.records()}
        # then all is there but the elements, equal ones known as such by what the file says of them
        embedded = records["emb / torch.nn.functional.embedding #0, forward", "result"]
        taken = records["layers.0 / Block #0, forward", "args.0"]
        assert embedded.digest == taken.digest
        # and masks alone were looked at, whose -inf leave no number of them in the dump
        assert all("mask" in name or "Block" in name for name in read)
    # and these come when they are asked for
    recording = lockstep.open(probe_dumps / "golden_tensor")
    one = next(one for one in recording.records() if one.site.op == "torch.nn.functional.gelu")
    assert one.load().shape == one.shape == (2, 4, 16)
    assert one.statistics is not None
    assert float(np.max(one.load())) == pytest.approx(one.statistics.maximum)


def test_extract_and_show_take_a_dump(
    probe_dumps: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    dump = str(probe_dumps / "golden_tensor")
    site = "layers.1 / torch.nn.functional.gelu #0, forward"
    assert main(["extract", dump, site, "-o", str(tmp_path / "o.npz")]) == 0
    with np.load(tmp_path / "o.npz") as arrays:
        assert any("output.result" in name for name in arrays.files)
    for path in (
        dump,
        str(probe_dumps / "golden_2rank" / "step0" / "rank1"),
        str(probe_dumps / "golden_debug"),
    ):
        assert main(["show", path]) == 0
    assert "save #0 -> float32[2, 4, 16]" in capsys.readouterr().out


def test_numbers_that_are_none_are_held_against_each_other_as_far_as_they_are_known(
    probe_dumps: Path, tmp_path: Path
) -> None:
    # given a dump in which an output holds NaN; how many was not written
    def spoil(data: dict[str, Any]) -> None:
        output = data["Functional.gelu.1.forward"]["output"][0]
        output.update(dict.fromkeys(("Max", "Min", "Mean", "Norm"), float("nan")))

    golden = probe_dumps / "golden_stat"
    spoiled = altered(golden, spoil, tmp_path / "spoiled")
    # then it is named beside one without
    found = compare_recordings(golden, spoiled)
    assert found.origins[0].op == "torch.nn.functional.gelu"
    # and beside one that holds NaN as well nothing is said of it
    found = compare_recordings(spoiled, shutil.copytree(spoiled, tmp_path / "again"))
    told = [one for one in found.findings if "NaN" in one.pair.present.content.note]
    assert told
    assert all(one.outcome is Outcome.INCOMPARABLE for one in told)


def test_whole_numbers_that_differ_in_their_extremes_differ(
    probe_dumps: Path, tmp_path: Path
) -> None:
    def other_word(data: dict[str, Any]) -> None:
        for name in ("Functional.embedding.0.forward", "Module.emb.Embedding.forward.0"):
            data[name]["input_args"][0]["Max"] = 14

    golden = probe_dumps / "golden_stat"
    found = compare_recordings(golden, altered(golden, other_word, tmp_path / "other"))
    assert found.verdict is Verdict.DIVERGED
    assert found.origins[0].role.value == "input"


def test_ranks_that_are_not_there_are_told(
    probe_dumps: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    # given a dump of which two ranks of four were lost
    for rank in (0, 3):
        shutil.copytree(
            probe_dumps / "golden_2rank/step0/rank0", tmp_path / f"dump/step0/rank{rank}"
        )
    assert main(["show", str(tmp_path / "dump")]) == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert "MISSING rank1: not in this recording, as 2 of the training's 4 processes" in printed
    assert lockstep.open(tmp_path / "dump").unrecorded[-1] == "some of 4 ranks"


def test_steps_follow_each_other(probe_dumps: Path, tmp_path: Path) -> None:
    for step in (0, 2, 10):
        shutil.copytree(probe_dumps / "golden_2rank/step0", tmp_path / f"dump/step{step}")
    rank = lockstep.open(tmp_path / "dump").ranks["rank1"]
    assert rank.steps == (0, 2, 10)
    moments = [
        one.sequence for step in rank.steps for call in rank.calls(step) for one in call.records
    ]
    assert len(set(moments)) == len(moments)


# --- bad input -------------------------------------------------------------------------------------------------------


def test_a_dump_that_is_cut_off_anywhere_is_refused(probe_dumps: Path, tmp_path: Path) -> None:
    values = json.loads((probe_dumps / "golden_2rank/step0/rank0/dump.json").read_text())
    values["data"] = {"Functional.relu.0.forward": values["data"]["Functional.relu.0.forward"]}
    whole = json.dumps(values).encode()
    place = tmp_path / "rank0" / "dump.json"
    place.parent.mkdir()
    for length in range(len(whole)):
        place.write_bytes(whole[:length])
        if mindstudio_probe.recognises(place):
            with pytest.raises(CorruptError, match="cut off"):
                list(mindstudio_probe.read(place))
    place.write_bytes(whole)
    assert len(list(mindstudio_probe.read(place))) > 1


def test_a_tensor_that_is_cut_off_or_damaged_anywhere_is_refused_or_the_same(
    tmp_path: Path,
) -> None:
    path = tmp_path / "x.pt"
    torch.save(torch.arange(6.0).reshape(2, 3), path)
    data = path.read_bytes()
    ((_, known),) = tensors_in(path)
    assert known.load is not None
    bits = known.load().tobytes()
    damaged = [data[:length] for length in range(len(data))]
    damaged += [
        data[:at] + bytes([data[at] ^ 0x5A]) + data[at + 1 :] for at in range(0, len(data), 3)
    ]
    for one in damaged:
        path.write_bytes(one)
        try:
            found = [later for _, later in tensors_in(path)]
            if [(one.dtype, one.shape, one.digest) for one in found] != [
                (known.dtype, known.shape, known.digest)
            ]:
                continue  # it says so: another tensor
            assert found[0].load is not None
            assert found[0].load().tobytes() == bits
        except CorruptError:
            continue


@pytest.mark.parametrize("share", [0.1, 0.5, 0.9])
def test_bytes_that_their_checksum_does_not_fit_are_never_equal(
    share: float, probe_dumps: Path, tmp_path: Path
) -> None:
    # Given a dump beside itself, where one tensor's bytes were overwritten and its checksum was not
    dump = shutil.copytree(probe_dumps / "golden_tensor", tmp_path / "dump")
    assert compare_recordings(probe_dumps / "golden_tensor", dump).origins == ()
    file = sorted(dump.rglob("*.pt"))[0]
    with zipfile.ZipFile(file) as archive:
        stored = next(one for one in archive.infolist() if "/data/" in one.filename)
        held = archive.read(stored)
    data = bytearray(file.read_bytes())
    data[data.index(held) + int(share * len(held))] ^= 0x5A
    file.write_bytes(data)
    # Then the bytes decide
    with pytest.raises(CorruptError, match="is not what was written"):
        compare_recordings(probe_dumps / "golden_tensor", dump)


def test_a_checksum_of_the_dump_does_not_stand_for_a_file(
    probe_dumps: Path, tmp_path: Path
) -> None:
    # Given two dumps that tell one checksum of a tensor, whose files hold others
    def tell(data: dict[str, Any]) -> None:
        told = data["Functional.gelu.1.forward"]["output"][0]
        told["md5"], told["data_name"] = "12345678", "told.npy"

    dumps = [altered(probe_dumps / "golden_tensor", tell, tmp_path / name) for name in "ab"]
    for number, dump in enumerate(dumps):
        told_in = next(dump.glob("step0/*/dump_tensor_data/Functional.gelu.1.forward.output.0.pt"))
        tensors, told = told_in.parent, next(one for _, one in tensors_in(told_in))
        values = np.full(told.shape, 1.0 + number, told.dtype)
        np.save(tensors / "told.npy", values)
    assert compare_recordings(*dumps).origins


class Code:
    def __reduce__(self) -> tuple[Any, ...]:
        return (Path("ran").touch, ())


def test_code_in_a_tensor_file_is_refused_and_never_run(
    probe_dumps: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    dump = shutil.copytree(probe_dumps / "golden_tensor", tmp_path / "dump")
    torch.save({"x": torch.ones(2), "code": Code()}, next(dump.rglob("*.pt")), pickle_protocol=2)
    assert main(["show", str(dump)]) == 2
    assert (
        "nothing but tensors is read" in capsys.readouterr().err
    )  # its middle is cut where paths are long
    assert not (tmp_path / "ran").exists()
    # and a bare pickle, which an old torch wrote, is none that can be read without
    next(dump.rglob("*.pt")).write_bytes(pickle.dumps(Code()))
    assert main(["show", str(dump)]) == 2
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize(
    ("name", "words"),
    [("../../secret.pt", "which is outside"), ("gone.pt", None)],
)
def test_a_tensor_is_taken_from_the_dump_alone(
    name: str,
    words: str | None,
    probe_dumps: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def point(data: dict[str, Any]) -> None:
        data["Functional.gelu.1.forward"]["output"][0]["data_name"] = name

    dump = altered(probe_dumps / "golden_tensor", point, tmp_path / "dump")
    assert main(["show", str(dump)]) == (2 if words else 0)
    printed = capsys.readouterr()
    assert words is None or words in printed.err


def test_what_torch_saves_comes_back_bit_by_bit(tmp_path: Path) -> None:
    tensors = {
        "half": torch.randn(3, 5).half(), "brain": torch.randn(7).bfloat16(), "double": torch.randn(2, 2).double(),
        "turned": torch.arange(12).reshape(3, 4).t(), "part": torch.arange(10.0)[3:7], "none": torch.zeros(0, 3),
        "number": torch.tensor(2.5), "mask": torch.tensor([True, False]), "complex": torch.randn(3) + 2j,
        "weight": torch.nn.Parameter(torch.ones(2)), "tiny": torch.randn(4).to(torch.float8_e4m3fn),
    }  # fmt: skip
    torch.save({"all": [tensors], "plain": 3}, tmp_path / "x.pt")
    found = dict(tensors_in(tmp_path / "x.pt"))
    assert list(found) == [f"all.0.{name}" for name in tensors]
    for name, tensor in tensors.items():
        one = found[f"all.0.{name}"]
        assert one.load is not None
        assert (one.dtype, one.shape) == (str(tensor.dtype)[6:], tuple(tensor.shape))
        assert one.load().tobytes() == bytes(
            tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy()
        )


TITLES = {
    "tensor": "Cosine,EucDist,MaxAbsErr,MaxRelativeErr,One Thousandth Err Ratio,Five Thousandths Err Ratio",
    "stat": "Max diff,Min diff,Mean diff,L2norm diff,MaxRelativeErr,MinRelativeErr,MeanRelativeErr,NormRelativeErr",
    "md5_L1": "NPU MD5,BENCH MD5",
}
"""What that tool's tables of the three tasks have between the columns that all have."""


@pytest.mark.parametrize("kind", list(TITLES))
def test_the_table_has_the_columns_of_that_tool(
    kind: str, probe_dumps: Path, tmp_path: Path
) -> None:
    golden, target = (str(probe_dumps / f"{one}_{kind}") for one in ("golden", "bad"))
    assert main(["msprobe", "compare", "-tp", target, "-gp", golden, "-o", str(tmp_path)]) == 1
    rows = list(csv.DictReader(next(tmp_path.glob("*.csv")).read_text().splitlines()))
    titles = list(rows[0])
    assert ",".join(titles[8:]).startswith(TITLES[kind])
    assert titles[6:8] == ["NPU Requires_grad", "Bench Requires_grad"]
    last = ["Requires_grad Consistent", "Result", "Err_message", "NPU_Stack_Info"]
    assert titles[-5:] == [*last, "Data_name"] if kind == "tensor" else titles[-4:] == last
    wrong = next(row for row in rows if row["NPU Name"] == "Functional.gelu.1.forward.output.0")
    told = {"stat": ("MaxRelativeErr", "89.80314309346568%"), "md5_L1": ("NPU MD5", "46fb00c5")}
    key, value = told.get(kind, ("Data_name", str(["Functional.gelu.1.forward.output.0.pt"] * 2)))
    assert (wrong[key], wrong["Result"]) == (value, "error")
    assert wrong["Err_message"].startswith("origin: ")
    assert [row for row in rows if row["Result"] == "error"] == [wrong]
    # a plain argument has a row, with its value in place of numbers
    eps = next(row for row in rows if row["NPU Name"] == "Functional.layer_norm.0.forward.input.4")
    assert (eps["NPU Dtype"], eps["Result"]) == ("<class 'float'>", "pass")
    assert eps["NPU MD5" if kind == "md5_L1" else "NPU max"] in ("effb4679", "1e-05")
    # where a call was made stands in its first row alone
    called = [
        row["NPU_Stack_Info"]
        for row in rows
        if row["NPU Name"].startswith("Functional.gelu.1.forward")
    ]
    assert ["File " in one for one in called] == [True, False, False]


def test_a_plain_argument_that_differs_is_told_in_its_row(
    probe_dumps: Path, tmp_path: Path
) -> None:
    golden = probe_dumps / "golden_md5_L1"

    def other_eps(data: dict[str, Any]) -> None:
        data["Functional.layer_norm.0.forward"]["input_args"][4]["value"] = 1e-3

    target = altered(golden, other_eps, tmp_path / "target")
    main(["msprobe", "compare", "-tp", str(target), "-gp", str(golden), "-o", str(tmp_path)])
    rows = list(csv.DictReader(next(tmp_path.glob("*.csv")).read_text().splitlines()))
    other = [row["NPU Name"] for row in rows if row["Result"] != "pass"]
    assert other == ["Functional.layer_norm.0.forward.input.4"]
