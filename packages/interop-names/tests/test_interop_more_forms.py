"""torch.utils.dumper's .h5, MindSpore's dumps and SGLang's tensors, each written here after its published layout."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import torch

import lockstep
from lockstep.cli.main import main
from lockstep.comparison import compare_recordings
from lockstep.core.errors import CorruptError
from lockstep.core.finding import Verdict
from lockstep.report.comparison.screen import headline
from lockstep_interop_names.dumps.hdf5_file import data_sets

Array = np.ndarray
STAMP = 1664000000000000


def chain(wrong: int = -1) -> list[tuple[Array, Array]]:
    """Five operators one behind the other: what goes in, what comes out."""
    value = np.random.default_rng(1).standard_normal((4, 16)).astype("f4")
    found = []
    for number in range(5):
        result = (np.tanh(value) * np.float32(1.05 if number == wrong else 1)).astype("f4")
        found.append((value, result))
        value = result
    return found


def dumper(path: Path, wrong: int = -1, *, device: str = "Cudnn", together: bool = True) -> Path:
    """As `torch.utils.dumper` writes it; with numbers of each operator's own where they are not `together`."""
    names = ["Addmm", "Tanh", "Addmm", f"{device}ConvolutionBackward", "AddmmBackward"]
    with h5py.File(path, "w") as file:
        for number, (value, result) in enumerate(chain(wrong)):
            seq = number + 1 if together else 1 + names[:number].count(names[number])
            for place, array in (("input/mat1", value), ("output/0", result)):
                one = file.create_dataset(f"{names[number]}/{seq}/{place}", data=array)
                one.attrs.update({"Type": 0, "DataType": 1, "DeviceType": 1})
            file.create_dataset(f"{names[number]}/{seq}/input/beta", data=1.0).attrs["Type"] = 5
    return path


def test_two_files_of_the_dumper_are_compared_also_of_two_devices(tmp_path: Path) -> None:
    gpu = dumper(tmp_path / "gpu.h5")
    for wrong, op in ((1, "Tanh"), (3, "ConvolutionBackward")):
        npu = dumper(tmp_path / f"npu{wrong}.h5", wrong, device="Npu")
        assert [one.op for one in compare_recordings(gpu, npu).origins] == [op]
    same = compare_recordings(gpu, dumper(tmp_path / "same.h5", device="Npu"))
    assert same.verdict is Verdict.AGREE
    assert "modules" in same.unrecorded
    call = lockstep.open(gpu).ranks["rank0"].calls(0)[0]
    assert (call.site.op, call.arguments) == ("Addmm", {"beta": 1.0})
    # numbers that each operator counts by itself are no order
    apart = lockstep.open(dumper(tmp_path / "apart.h5", together=False))
    assert "the order of the calls" in [gap.what for gap in apart.manifest.not_seen]


def test_a_file_of_the_dumper_that_is_cut_off_or_leads_elsewhere_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = dumper(tmp_path / "gpu.h5")
    data = path.read_bytes()
    for length in (*range(0, 2000, 37), len(data) // 2, len(data) - 1):
        path.write_bytes(data[:length])
        with pytest.raises(CorruptError):
            list(data_sets(path))
    path.write_bytes(data)
    for name, leads in (
        ("soft", h5py.SoftLink("/Addmm")),
        ("out", h5py.ExternalLink("/etc/passwd", "/")),
    ):
        with h5py.File(tmp_path / f"{name}.h5", "w") as file:
            file["Addmm/1/input/mat1"] = np.ones(3)
            file["Addmm/1/input/mat2"] = leads
        assert main(["show", str(tmp_path / f"{name}.h5"), "--format", "torch.utils.dumper"]) == 2
        assert "leads elsewhere" in capsys.readouterr().err
    with h5py.File(tmp_path / "huge.h5", "w") as file:
        file.create_dataset("Addmm/1/input/mat1", shape=(1 << 40,), dtype="f4", chunks=(1 << 20,))
    with pytest.raises(CorruptError, match="claims the shape"):
        list(data_sets(tmp_path / "huge.h5"))


def mindspore(folder: Path, wrong: int = -1, *, arrays: bool = True, ranks: int = 1) -> Path:
    """Ranks, a net, a graph, an iteration: a table and, with `arrays`, a file for each tensor."""
    for rank in range(ranks):
        place = folder / f"rank_{rank}" / "net" / "0" / "3"
        place.mkdir(parents=True)
        head = "Op Type,Op Name,Task ID,Stream ID,Timestamp,IO,Slot,Data Size,Data Type,Shape"
        lines = [f"{head},Max Value,Min Value,Avg Value,L2Norm Value"]
        for number, pair in enumerate(chain(wrong)):
            name, time = f"Default_net-Tanh-op{9 - number}", STAMP + number
            for io, array in zip(("input", "output"), pair, strict=True):
                shape = ",".join(map(str, array.shape))
                size = np.linalg.norm(array.astype("f8"))
                numbers = f"{array.max()},{array.min()},{array.mean()},{size}"
                lines.append(
                    f'Tanh,{name},0,0,{time},{io},0,{array.nbytes},float32,"({shape})",{numbers}'
                )
                if arrays:
                    np.save(place / f"Tanh.{name}.0.0.{time}.{io}.0.DefaultFormat.npy", array)
        (place / "statistic.csv").write_text("\n".join(lines) + "\n")
    return folder


@pytest.mark.parametrize("arrays", [True, False])
def test_dumps_of_mindspore_are_read_with_and_without_arrays(arrays: bool, tmp_path: Path) -> None:
    sound, fault = (
        mindspore(tmp_path / f"of{one}", one, arrays=arrays, ranks=2) for one in (-1, 2)
    )
    found = compare_recordings(sound, fault)
    assert [(one.module, one.step) for one in found.origins] == [("Default_net-Tanh-op7", 3)]
    twin = compare_recordings(sound, mindspore(tmp_path / "twin", arrays=arrays, ranks=2))
    # equal numbers alone are no agreement
    assert twin.verdict is (Verdict.AGREE if arrays else Verdict.INCOMPARABLE)
    assert ("tensors' elements" in twin.unrecorded) == (not arrays)
    # a dump of which a rank is missing does not agree with the whole
    assert (
        compare_recordings(sound, mindspore(tmp_path / "one", arrays=arrays)).verdict
        is Verdict.INCOMPARABLE
    )


def test_a_table_of_mindspore_that_is_cut_off_is_refused_or_shorter(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = mindspore(tmp_path / "dump", arrays=False)
    file = next(folder.rglob("statistic.csv"))
    whole = file.read_bytes()
    header = whole.index(b"\n")
    for length in range(header, len(whole), 23):
        file.write_bytes(whole[:length])
        kept = 0
        with suppress(CorruptError):
            kept = sum(1 for _ in lockstep.open(folder).records())
        assert kept <= 10
    file.write_bytes(whole[:-30])
    assert main(["show", str(folder)]) == 2
    assert "statistic.csv: line" in capsys.readouterr().err


def sglang(folder: Path, wrong: int = -1, *, later: str = "") -> Path:
    """A file for each tensor; later versions number them, and keep what is known beside the value."""
    newest = later == "step"
    place = folder / ("dump_20261126_1406" if newest else "sglang_dump_1700000000.5_0")
    place.mkdir(parents=True)
    for number, (_, result) in enumerate(chain(wrong)):
        told = f"forward_pass_id=2___name=hidden___layer_id={number}"
        value: Any = torch.from_numpy(result.copy())
        if later:
            meta = {"a": 1, "name": "hidden", "layer_id": number, "rank": 0}
            value = {"value": value, "meta": meta}
            told = f"{told}___dump_index={number}___rank=0"
        if newest:
            told = f"step=2___rank=0___dump_index={number}___name=hidden___layer_id={number}"
        torch.save(value, place / f"{told}.pt")
    return folder


@pytest.mark.parametrize("later", ["", "index", "step"])
def test_tensors_of_sglang_are_compared_pass_by_pass(later: str, tmp_path: Path) -> None:
    sound, fault = (sglang(tmp_path / f"of{one}", one, later=later) for one in (-1, 3))
    found = compare_recordings(sound, fault)
    assert [(one.module, one.step) for one in found.origins] == [("layer_id3.hidden", 2)]
    assert ("the order of the calls" in found.unrecorded) == (not later)
    assert (
        compare_recordings(sound, sglang(tmp_path / "twin", later=later)).verdict is Verdict.AGREE
    )


@pytest.mark.parametrize("later", ["index", "step"])
def test_files_of_sglang_that_say_that_they_are_of_others_never_agree(
    later: str, tmp_path: Path
) -> None:
    sound, swapped = (sglang(tmp_path / name, later=later) for name in ("sound", "swapped"))
    first, second = sorted(swapped.rglob("*.pt"))[:2]
    kept = first.read_bytes()
    first.write_bytes(second.read_bytes())
    second.write_bytes(kept)
    found = compare_recordings(sound, swapped)
    assert (found.verdict, found.origins) == (Verdict.INCOMPARABLE, ())
    assert f"in the candidate, {first.name} is of layer_id 1 by what stands in it" in headline(
        found
    )


def test_data_sets_come_back_however_they_lie_in_their_file(tmp_path: Path) -> None:
    path, value = tmp_path / "some.h5", np.arange(60, dtype="f4").reshape(3, 20)
    with h5py.File(path, "w") as file:
        file["plain"], file["turned"], file["one"] = value, value.astype(">f4"), np.float32(2)
        file["empty"] = np.zeros((0, 3), "f4")
        file.create_dataset("packed", data=value, compression="gzip")
    found = {one.path: one.tensor for one in data_sets(path)}
    read = {
        name: one.load().view("f4")
        for name, one in found.items()
        if one is not None and one.load is not None
    }
    for name in ("plain", "turned", "packed"):
        assert np.array_equal(read[name], value.ravel())
    assert (read["one"].tolist(), read["empty"].size) == ([2.0], 0)
    # what lies elsewhere by now is not read from where it was
    with h5py.File(path, "a") as file:
        file["plain"][0, 0] = 5
    os.utime(path, ns=(0, 0))
    assert found["plain"] is not None
    assert found["plain"].load is not None
    with pytest.raises(CorruptError, match="has changed since"):
        found["plain"].load()
