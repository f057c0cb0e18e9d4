"""`lockstep extract`: what is in the file, bit by bit, and one clear sentence for bad input."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import torch
from safetensors.torch import load_file

import lockstep
from lockstep.cli.main import main


class Net(torch.nn.Module):
    """Two layers, the second one in bfloat16, and a parameter that an operator takes twice."""

    def __init__(self) -> None:
        super().__init__()
        self.shift = torch.nn.Parameter(torch.ones(8))
        self.first = torch.nn.Linear(8, 6)
        self.second = torch.nn.Linear(6, 4, dtype=torch.bfloat16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        shifted = x + torch.add(self.shift, self.shift)
        self.look_at(shifted)
        return self.second(torch.nn.functional.gelu(self.first(shifted)).bfloat16())

    def look_at(self, x: torch.Tensor) -> None:
        """Make tensors of all sorts, whose lines a log would print."""
        with torch.no_grad():
            torch.fft.fft(x)
            torch.gt(x, 0)
            torch.argmax(x, dim=1)
            torch.amax(x)
            torch.clone(x[:0])
            torch.div(x, 3).half()
            torch.stack([x, x]) / torch.zeros(())


@pytest.fixture(scope="module")
def recordings(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`whole`, a training of two steps with whole tensors, and `sketch`, the same without."""
    folder = tmp_path_factory.mktemp("recordings")
    for name, save in (("whole", "tensors"), ("sketch", "sketch")):
        torch.manual_seed(0)
        model = Net()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        with lockstep.record(folder / name, model=model, steps="0:2", save=save):
            for _ in range(2):
                optimizer.zero_grad()
                model(torch.randn(5, 8)).float().square().mean().backward()
                optimizer.step()
    return folder


def test_a_file_of_tensors_holds_every_bit_of_the_recording(
    recordings: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    # When the bfloat16 layer of one step is extracted
    output = tmp_path / "second.safetensors"
    assert (
        main(["extract", str(recordings / "whole"), "second", "--steps", "1", "-o", str(output)])
        == 0
    )

    # Then the file has its tensors, with dtype, shape and bits as recorded, and so says the command
    found = load_file(output)
    said = capsys.readouterr().out
    calls = [
        call
        for call in lockstep.open(recordings / "whole").ranks["rank0"].calls(1)
        if call.site.module == "second"
    ]
    expected = {
        f"rank0/step1/second/{call.site.op}#{call.site.call}/{record.role.value}.{record.name}": record
        for call in calls
        for record in call.records
    }
    assert found.keys() == expected.keys()
    assert {"input", "output", "grad_output", "grad_input", "param", "param_grad"} <= {
        record.role.value for record in expected.values()
    }
    assert torch.bfloat16 in {tensor.dtype for tensor in found.values()}
    for name, record in expected.items():
        assert str(found[name].dtype) == f"torch.{record.dtype}"
        np.testing.assert_array_equal(found[name].float().numpy(), record.load())
        assert f"{name}  {record.dtype} {list(record.shape)}\n" in said
    assert f"{len(found)} of {len(found)} tensors of {len(calls)} calls in {output}" in said


@pytest.mark.parametrize("suffix", ["npz", "h5", "txt"])
def test_every_format_holds_the_same_numbers(recordings: Path, tmp_path: Path, suffix: str) -> None:
    # Given all tensors of both steps as .safetensors: complex ones, truths, integers, numbers, none at all, not finite
    command = ["extract", str(recordings / "whole"), "*", "-o"]
    assert main([*command, str(tmp_path / "all.safetensors")]) == 0
    expected = load_file(tmp_path / "all.safetensors")
    assert {name.split("/")[1] for name in expected} == {"step0", "step1"}
    kinds = {str(tensor.dtype).removeprefix("torch.") for tensor in expected.values()}
    assert kinds >= {"complex64", "bool", "int64", "float16", "bfloat16", "float32"}
    assert {0, 1} <= {tensor.numel() for tensor in expected.values()}

    # When they are written in another format
    other = tmp_path / f"all.{suffix}"
    assert main([*command, str(other)]) == 0

    # Then names, shapes and numbers are the same, to the last bit
    found = READERS[suffix](other)
    assert found.keys() == expected.keys()
    for name, tensor in expected.items():
        array = (tensor.float() if tensor.dtype == torch.bfloat16 else tensor).numpy()
        read = found[name].astype(array.dtype).reshape(array.shape)
        np.testing.assert_array_equal(read, array, strict=True)


def test_a_tensor_that_an_operator_takes_twice_is_there_twice(
    recordings: Path, tmp_path: Path
) -> None:
    output = tmp_path / "add.npz"

    assert (
        main(["extract", str(recordings / "whole"), "torch.add", "--steps", "0", "-o", str(output)])
        == 0
    )

    inputs = [name for name in read_npz(output) if "/input." in name]
    assert [name.rpartition("/")[2] for name in inputs] == ["input.shift", "input.shift~2"]


def read_npz(path: Path) -> dict[str, Any]:
    with np.load(path, allow_pickle=False) as file:
        return dict(file)


def read_hdf5(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = {}

    def visit(name: str, item: Any) -> None:
        if isinstance(item, h5py.Dataset):
            found[name] = item[()]
            assert item.attrs["dtype"] in (str(item.dtype), "bfloat16")

    with h5py.File(path) as file:
        file.visititems(visit)
    return found


def read_text(path: Path) -> dict[str, Any]:
    found = {}
    for part in path.read_text().split("# ")[1:]:
        head, *rows = part.splitlines()
        name, dtype, *_ = head.split(" [")[0].rsplit(" ", 1)
        values = " ".join(rows).split()
        found[name] = np.array(
            [complex(one) if dtype == "complex64" else float(one) for one in values]
        )
    return found


READERS = {"npz": read_npz, "h5": read_hdf5, "txt": read_text}


@pytest.mark.parametrize(
    "site",
    [
        "first / torch.nn.functional.linear #0, forward",
        "first / torch.nn.functional.linear #0",
        "first / torch.nn.functional.linear",
    ],
)
def test_a_site_may_be_given_as_it_is_printed(recordings: Path, tmp_path: Path, site: str) -> None:
    output = tmp_path / "linear.npz"

    assert (
        main(["extract", str(recordings / "whole"), site, "--steps", "0", "-o", str(output)]) == 0
    )

    names = {name.rpartition("/")[0] for name in read_npz(output)}
    assert names == {"rank0/step0/first/torch.nn.functional.linear#0"}


def test_without_whole_tensors_the_command_that_records_them_is_printed(
    recordings: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "first.npz"

    assert main(["extract", str(recordings / "sketch"), "first", "-o", str(output)]) == 2

    said = capsys.readouterr().err
    assert "none of the 42 tensors of first was saved whole" in said
    assert (
        f"record --only first --save tensors --steps 0,1 --exit-after -o {recordings / 'sketch'}-whole -- "
        in said
    )
    assert not output.exists()


@pytest.mark.parametrize(
    ("site", "options", "sentence"),
    [
        ("frist", (), "pattern 'frist' matches no module and no operator; nearest: first"),
        ("first", ("--steps", "7"), "has no step 7; it has 0-1"),
        ("first", ("--ranks", "rank3"), "has no rank3; it has rank0"),
    ],
)
def test_what_is_not_there_is_said_with_what_is(
    recordings: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    site: str,
    options: tuple[str, ...],
    sentence: str,
) -> None:
    output = tmp_path / "out.npz"

    assert main(["extract", str(recordings / "whole"), site, *options, "-o", str(output)]) == 2

    assert sentence in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_is_there_is_replaced_only_when_asked(
    recordings: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "out.npz"
    output.write_text("mine")
    command = ["extract", str(recordings / "whole"), "first", "-o", str(output)]

    assert main(command) == 2
    assert "exists already" in capsys.readouterr().err
    assert output.read_text() == "mine"

    assert main([*command, "--force"]) == 0
    assert read_npz(output)


def test_an_unknown_suffix_and_a_missing_library_are_said_first(
    recordings: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    whole = str(recordings / "whole")

    assert main(["extract", whole, "first", "-o", str(tmp_path / "out.pt")]) == 2
    assert "give a name that ends in .safetensors, .npz, .h5" in capsys.readouterr().err

    monkeypatch.delitem(sys.modules, "h5py")
    monkeypatch.setattr(sys, "meta_path", [Without(), *sys.meta_path])
    assert main(["extract", whole, "first", "-o", str(tmp_path / "out.h5")]) == 2
    assert "need h5py" in capsys.readouterr().err


class Without:
    """Finds no h5py."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> None:
        if name == "h5py":
            raise ModuleNotFoundError("No module named 'h5py'", name=name)


def test_a_disk_that_does_not_take_it_leaves_nothing(
    recordings: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    # Given a name that no file system takes
    output = tmp_path / f"{'long' * 80}.npz"

    # When a file is to be written there, then that is said, and nothing lies about
    assert main(["extract", str(recordings / "whole"), "first", "-o", str(output)]) == 2
    assert "lockstep: " in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_a_shard_of_another_dtype_is_said_to_be_damaged(
    recordings: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    # Given a recording whose tensor file calls float16 what its tables call bfloat16
    damaged = tmp_path / "damaged"
    shutil.copytree(recordings / "whole", damaged)
    for shard in damaged.glob("rank0/tensors-*.safetensors"):
        shard.write_bytes(shard.read_bytes().replace(b'"BF16"', b'"F16" '))

    # When it is extracted, then no wrong file comes out of it
    assert main(["extract", str(damaged), "second", "-o", str(tmp_path / "out.safetensors")]) == 2
    assert "record again" in capsys.readouterr().err
    assert not (tmp_path / "out.safetensors").exists()


def test_of_many_tensors_the_first_are_printed_and_how_many_follow(
    recordings: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "all.npz"

    assert main(["extract", str(recordings / "whole"), "*", "-o", str(output)]) == 0

    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 22
    assert lines[-2] == f"and {len(read_npz(output)) - 20} more"
