"""A cached data set gives bitwise what the data set gives, in this process and in others."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from cache_daemon import Running, Start
from torch.utils.data import DataLoader, Dataset

from lockstep_cache import CachedDataset
from lockstep_cache.places import address_of, own_folder

COUNTED = '''
import os, sys
import torch
from torch.utils.data import DataLoader, Dataset
from lockstep_cache import CachedDataset
from lockstep_cache.places import address_of
from lockstep_cache.places import address_of


class Pictures(Dataset):
    """Counts how often it computes a sample, in a file that its processes share."""

    def __init__(self, count, scale=1.0):
        self.count, self.scale = count, scale

    def __len__(self):
        return 24

    def __getitem__(self, index):
        with open(self.count, "a") as file:
            file.write(".")
        generator = torch.Generator().manual_seed(index)
        x = torch.randn(3, 5, 7, generator=generator) * self.scale
        return {"x": x, "y": index, "name": f"picture {index}"}
'''


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a module `pictures`."""
    folder = tmp_path_factory.mktemp("scripts")
    (folder / "pictures.py").write_text(COUNTED)
    return folder


def run(running: Running, folder: Path, script: str) -> str:
    """Run a script that may import `pictures`, with the daemon as its cache."""
    path = folder / "script.py"
    path.write_text(script)
    done = subprocess.run(
        [running.programs / "python", path], env=running.environment, text=True, capture_output=True, check=False
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    return done.stdout + done.stderr


READS = """
from pictures import *
cached, plain = CachedDataset(Pictures("count"), session="pictures"), Pictures("other")
for epoch in range(2):
    for with_it, without in zip(DataLoader(cached, 5), DataLoader(plain, 5), strict=True):
        assert torch.equal(with_it["x"], without["x"]) and torch.equal(with_it["y"], without["y"])
        assert with_it["name"] == without["name"]
print(len(open("count").read()) if os.path.exists("count") else 0)
"""


def test_a_second_process_reads_what_the_first_has_put_there(
    running: Running, pictures: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # given a process that reads a data set for two epochs, each batch held against the data set's own
    monkeypatch.chdir(tmp_path)
    # then it computes each sample twice, to see whether they come out the same
    assert run(running, pictures, READS) == "48\n"
    # and when a second one does the same, every sample is there: it computes some, the first two always, to check them
    (computed,) = run(running, pictures, READS).split()
    assert 48 + 2 * 2 <= int(computed) < 48 + 2 * 24
    session = running.session("pictures")
    assert (session["samples"], session["of"], session["processes"]) == (24, 24, 0)


class Arrays(Dataset[object]):
    """Samples of several kinds, with settings of its own."""

    def __init__(self, scale: float = 1.0, count: int = 6, width: int = 100) -> None:
        self.scale, self.count, self.width, self.computed = scale, count, width, []

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> object:
        if not 0 <= index < self.count:
            raise IndexError(index)
        return np.arange(index, index + self.width, dtype=np.float32) * self.scale, torch.full(
            (50,), index
        )


@pytest.mark.parametrize("width", [100, 20_000])
def test_what_is_written_into_a_sample_nobody_else_sees(width: int, running: Running) -> None:
    # given a sample from the cache, small or large, and another view of it
    plain = Arrays(scale=3.0, width=width)
    cached = CachedDataset(Arrays(scale=3.0, width=width), address=running.address)
    for _ in range(2):
        cached[2]
    array, tensor = cached[2]
    second, _ = cached[2]
    # when it is written to
    array *= 0
    tensor.add_(7)
    # then neither the other view nor later ones change, in this process and after the view has gone
    assert np.array_equal(second, plain[2][0])
    assert np.array_equal(cached[2][0], plain[2][0])
    del array, tensor, second
    for index in (1, 2, 3, 1, 2, 3):
        assert np.array_equal(cached[index][0], plain[index][0])
        assert torch.equal(cached[index][1], plain[index][1])


class Leaves(Dataset[Any]):
    """Samples that a function makes of a list."""

    def __init__(self, kind: Any, dtype: str, width: int) -> None:
        self.kind, self.dtype, self.width = kind, dtype, width

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> Any:
        made = self.kind([[float(index)] * self.width, [2.0] * self.width])
        return made.to(getattr(torch, self.dtype)) if isinstance(made, torch.Tensor) else made


@pytest.mark.parametrize(
    "kind", [np.array, torch.tensor, lambda values: {"a": [np.array(values).T]}]
)
@pytest.mark.parametrize(
    ("dtype", "width"), [("float32", 3), ("float32", 9_000), ("bfloat16", 9_000)]
)
def test_two_views_of_a_sample_do_not_see_each_other(
    kind: Any, dtype: str, width: int, running: Running
) -> None:
    def leaf(sample: Any) -> Any:
        return sample["a"][0] if isinstance(sample, dict) else sample

    # given samples of one leaf, made anew each time, and each held while the same one is asked for again
    plain = Leaves(kind, dtype, width)
    cached = CachedDataset(Leaves(kind, dtype, width), address=running.address)
    for _ in range(4):
        first, second = cached[1], cached[1]
        # when one of them is written to, then the other stays, and later ones are right
        leaf(first)[...] = 9
        assert leaf(second).tolist() == leaf(plain[1]).tolist() != leaf(first).tolist()
        assert leaf(cached[2]).tolist() == leaf(plain[2]).tolist()


def test_a_hit_of_a_large_sample_is_a_view_of_the_slab(running: Running) -> None:
    cached = CachedDataset(Arrays(scale=5.0, width=20_000), address=running.address)
    for _ in range(2):
        cached[4]
        running.stat()  # answered behind what was said before: the sample is there
    array, _ = cached[4]
    address = array.__array_interface__["data"][0]
    with open("/proc/self/maps") as maps:  # noqa: PTH123
        places = [line.split() for line in maps]
    (file,) = [
        words[5]
        for words in places
        if int(words[0].split("-")[0], 16) <= address < int(words[0].split("-")[1], 16)
    ]
    assert "slab-" in file


def test_indices_are_those_of_the_data_set(running: Running) -> None:
    cached = CachedDataset(Arrays(scale=7.0), address=running.address)
    assert torch.equal(cached[np.int64(3)][1], cached[3][1])
    with pytest.raises(IndexError):
        cached[-1]
    assert cached.scale == 7.0
    with pytest.raises(IndexError):
        cached[6]


def test_without_a_daemon_the_data_set_gives_every_sample(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cached = CachedDataset(Arrays(), address=str(tmp_path / "nobody"))
    loaded = [sample for batch in DataLoader(cached, 2) for sample in batch[1]]
    assert torch.equal(torch.stack(loaded), torch.stack([Arrays()[index][1] for index in range(6)]))
    said = capsys.readouterr().err
    assert said.count("no cache runs there") == 1
    assert "lockstep cache start" in said


def test_start_answers_once_it_can_be_used_and_stop_leaves_nothing(
    programs: Path, start: Start, tmp_path: Path
) -> None:
    # given a daemon that was started to stay
    address = str(tmp_path / "socket")
    command = [programs / "lockstep", "cache"]
    at = ["--address", address]

    def said(*words: str) -> str:
        done = subprocess.run([*command, *words, *at], capture_output=True, text=True, check=False)
        assert "Traceback" not in done.stderr
        return f"{done.returncode} {done.stdout}{done.stderr}"

    assert said("start", "--memory", "16MB") == f"0 {address}\n"
    CachedDataset(Arrays(), address=address, session="mine")[0]
    # then a second one at its address is refused, and it shows what it has
    assert "a cache runs there already (process" in said("start")
    assert "mine" in said("stat")
    assert said("session", "other") == "0 other\n"
    assert "there already" in said("session", "other")
    assert said("destroy", "other") == "0 "
    assert "there is no session other" in said("destroy", "other")
    other = address_of(str(tmp_path / "other"))
    failed = [*command, "start", "--address", other.text, "--spill", "/proc/nowhere"]
    done = subprocess.run(failed, capture_output=True, text=True, check=False)
    assert "/proc/nowhere" in done.stderr
    # and once stopped nothing of it is left
    assert said("stop") == "0 "
    assert "no cache runs there" in said("stat")
    assert not (tmp_path / "socket").exists()
    assert not list(own_folder().glob(f"{address_of(address).key}.*"))
