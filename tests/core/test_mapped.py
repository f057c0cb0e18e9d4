"""Arrays in mapped files: their memory is given back, and they can be read again."""

from __future__ import annotations

import mmap
import sys
from pathlib import Path

import numpy as np
import pytest

from lockstep.core import mapped
from lockstep.core.mapped import Pages, give_back, release_pages, release_part


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * mmap.PAGESIZE


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_tensor_in_a_mapped_file_gives_its_memory_back(tmp_path: Path) -> None:
    # Given 32 MB of a file that were read through a map,
    path = tmp_path / "shard"
    path.write_bytes(bytes(range(256)) * (1 << 17))
    with path.open("rb") as file:
        held = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    tensor = np.frombuffer(held, np.uint8, offset=8).reshape(2, -1)
    total = int(tensor.sum(dtype=np.int64))
    before = resident_bytes()
    # when a view of a part is let go of,
    release_pages(tensor[1, 5:])
    # then the whole tensor's memory is free, and its numbers are still there.
    assert resident_bytes() < before - tensor.nbytes / 2
    assert int(tensor.sum(dtype=np.int64)) == total


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_part_of_a_tensor_gives_back_its_own_memory_alone(tmp_path: Path) -> None:
    # Given 32 MB of a file that were read through a map,
    path = tmp_path / "shard"
    path.write_bytes(bytes(range(256)) * (1 << 17))
    with path.open("rb") as file:
        held = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    tensor = np.frombuffer(held, np.uint8, offset=8)
    total = int(tensor.sum(dtype=np.int64))
    before = resident_bytes()
    # when a quarter is let go of,
    release_part(tensor[: tensor.size // 4])
    # then its memory is free and that of the rest is not, and the numbers are still there.
    given_back = before - resident_bytes()
    assert tensor.size / 8 < given_back < tensor.size / 2
    assert int(tensor.sum(dtype=np.int64)) == total


def test_what_can_be_written_to_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "values"
    np.arange(5000.0).tofile(path)
    private = np.memmap(path, np.float64, "c")
    private[:] = 7
    frozen = private[10:]
    frozen.flags.writeable = False
    release_pages(private)
    release_part(frozen)
    assert (private == 7).all()


def test_ordinary_and_empty_arrays_are_left_alone() -> None:
    for array in (np.ones(3), np.empty(0), np.asarray(2.0), np.frombuffer(b"abcd", np.uint8)):
        before = array.copy()
        release_pages(array)
        release_part(array)
        assert (array == before).all()


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_parts_are_given_back_a_good_deal_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Given 32 MB of a file that were read through a map, of which a quarter may be kept though nobody needs it,
    path = tmp_path / "shard"
    path.write_bytes(bytes(range(256)) * (1 << 17))
    with path.open("rb") as file:
        held = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    tensor = np.frombuffer(held, np.uint8, offset=8)
    monkeypatch.setattr(mapped, "_MOST_BYTES", tensor.size // 4)
    total, pages, eighth = int(tensor.sum(dtype=np.int64)), Pages(tensor), tensor.size // 8
    before = resident_bytes()
    # when an eighth is let go of, then it is still there;
    pages.release(0, eighth)
    assert before - resident_bytes() < eighth / 2
    # when it is half of all, then all that was let go of has been given back, and the numbers are still there;
    for start in range(eighth, 4 * eighth, eighth):
        pages.release(start, start + eighth)
    assert before - resident_bytes() > 2.5 * eighth
    assert int(tensor.sum(dtype=np.int64)) == total
    # and what is left is given back when somebody says so.
    pages.release(7 * eighth, tensor.size)
    before = resident_bytes()
    give_back()
    assert before - resident_bytes() > eighth / 2
