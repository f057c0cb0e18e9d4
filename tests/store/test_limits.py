"""Hostile files end in one sentence before they take memory or time."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lockstep.core.errors import CorruptError
from lockstep.store import integrity, limits
from lockstep.store.integrity import Files
from lockstep.store.limits import DamagedError, claims_of
from lockstep.store.tables import Chunks, read_table, unprinted_panics

# --- files that are none


@pytest.mark.parametrize("kind", ["link", "device", "pipe", "folder"])
@pytest.mark.parametrize("read", [limits.read_manifest, limits.check_table])
def test_what_is_no_regular_file_is_not_opened(tmp_path: Path, kind: str, read: Any) -> None:
    # given something that would be followed, never end, or block
    path = tmp_path / "manifest.json"
    if kind == "link":
        path.symlink_to("/dev/zero")
    elif kind == "device":
        path = Path("/dev/zero")
    elif kind == "pipe":
        os.mkfifo(path)
    else:
        path.mkdir()
    # then it is refused by name
    with pytest.raises(CorruptError, match=rf"{path}: is not a regular file"):
        read(path)


def test_a_manifest_of_many_gigabytes_is_refused_by_its_size(tmp_path: Path) -> None:
    path = tmp_path / "manifest.json"
    with path.open("wb") as file:
        file.truncate(40 << 30)
    with pytest.raises(CorruptError, match=r"has 42949672960 bytes, and a manifest at most"):
        limits.read_manifest(path)


@pytest.mark.parametrize("what", ["link", "file"])
def test_a_rank_that_is_no_directory_is_refused(tmp_path: Path, what: str) -> None:
    rank = tmp_path / "rank0"
    if what == "link":
        rank.symlink_to("/etc")
    else:
        rank.write_text("{}")
    with pytest.raises(CorruptError, match="rank0: is not a directory"):
        limits.check_directory(rank)


# --- JSON


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[" * 100 + "]" * 100, "nested more than 64 deep"),
        ('{"a":' * 100_000 + "1" + "}" * 100_000, "nested more than 64 deep"),
        ("[" + "[]," * (5 << 20) + "0]", "more than 4194304 values"),
        ("[1, 2", "Expecting"),
        (b"\xff\xfe", "codec can't decode"),
    ],
    ids=["deep", "very deep", "many", "cut", "no text"],
)
def test_hostile_json_is_refused(text: str | bytes, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        limits.values_of(text)


def test_numbers_too_long_for_a_count_are_floating_point() -> None:
    big = 2**64 - 1
    assert limits.values_of(f"[{big}, -7, {'9' * 400}, {'9' * 5000}]") == [big, -7, np.inf, np.inf]


def test_strings_come_out_printable_and_numbers_as_they_were() -> None:
    text = r'{"a\u001b[31m": ["\ud800", "x\ny", 1.5, null, true, "\u7f51"]}'
    assert limits.values_of(text) == {r"a\x1b[31m": [r"\ud800", r"x\ny", 1.5, None, True, "网"]}


# --- tables


@given(
    st.lists(
        st.tuples(
            st.integers(-(2**62), 2**62),
            st.text(max_size=8),
            st.lists(st.integers(0, 9), max_size=4),
            st.none() | st.binary(max_size=30),
        ),
        max_size=60,
    ),
    st.sampled_from(["zstd", "snappy", "uncompressed"]),
)
def test_a_table_claims_what_it_holds(rows: list[Any], compression: Any) -> None:
    # given a table as the writer makes them
    path = Path(os.environ["PYTEST_TABLE"])
    kinds = {"a": pl.Int64(), "b": pl.String(), "c": pl.List(pl.Int64()), "d": pl.Binary()}
    pl.DataFrame(rows, schema=kinds, orient="row").write_parquet(path, compression=compression)
    # then its claims are no less than that
    claimed_rows, claimed_bytes = claims_of(path)
    assert len(rows) <= claimed_rows <= max(len(rows), sum(max(1, len(row[2])) for row in rows))
    assert claimed_bytes >= sum(8 * len(row[2]) for row in rows) / 8


@pytest.fixture(autouse=True)
def _one_table_for_all_examples(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTEST_TABLE", str(tmp_path / "table.parquet"))


def sound() -> bytes:
    path = Path(os.environ["PYTEST_TABLE"])
    frame = pl.DataFrame({"a": range(500), "b": [f"name{i % 7}" for i in range(500)]})
    frame.write_parquet(path)
    return path.read_bytes()


@given(st.data())
def test_a_mutated_table_is_counted_or_refused(data: st.DataObject) -> None:
    # given a table with some bytes changed, or cut, then nothing but the one error comes of it
    damaged = bytearray(sound())
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(damaged) - 1))
        damaged[at] = data.draw(st.integers(0, 255))
    damaged = damaged[: data.draw(st.sampled_from([len(damaged), len(damaged) // 2]))]
    path = Path(os.environ["PYTEST_TABLE"])
    path.write_bytes(damaged)
    try:
        rows, size_bytes = claims_of(path)
    except DamagedError:
        return
    assert rows >= 0
    assert size_bytes >= 0


def test_a_table_of_too_many_rows_is_refused_before_it_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # given a file of a few kilobytes with three million rows, and a library that must not see it
    path = tmp_path / "calls-00000.parquet"
    count = 3_000_000
    pl.DataFrame({"step": pl.zeros(count, pl.Int32, eager=True)}).write_parquet(path)
    assert path.stat().st_size < 100_000
    monkeypatch.delattr(pl, "read_parquet")
    # when it is read, then it is refused by what it claims
    with pytest.raises(CorruptError, match=rf"claims {count} rows of \d+ bytes"):
        read_table(path, pl.Schema({"step": pl.Int32()}))


def test_a_table_that_grows_beyond_bounds_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # given a text that takes a thousandth of its room on disk, and less room than a table may have as a rule
    path = tmp_path / "modules.parquet"
    pl.DataFrame({"module": ["a" * (4 << 20)]}).write_parquet(path, compression="zstd")
    assert path.stat().st_size < 20_000
    monkeypatch.setattr(limits, "TABLE_BYTES", 1 << 20)
    with pytest.raises(CorruptError, match=r"claims 1 rows of \d{7} bytes"):
        read_table(path, pl.Schema({"module": pl.String()}))


def test_a_table_in_too_many_pieces_is_refused(tmp_path: Path) -> None:
    # given a group of rows for each row, of which the header of each is read
    frame = pl.DataFrame({"a": range(9000)})
    frame[:900].write_parquet(tmp_path / "some.parquet", row_group_size=1)
    frame.write_parquet(tmp_path / "many.parquet", row_group_size=1)
    # then some are counted, and too many are not
    assert claims_of(tmp_path / "some.parquet")[0] == 900
    with pytest.raises(DamagedError, match=r"in more than 16384 pieces|a footer of"):
        claims_of(tmp_path / "many.parquet")


@pytest.mark.parametrize(("files", "is_refused"), [(2, False), (3, True)])
def test_tables_that_are_too_large_together_are_refused(
    tmp_path: Path, files: int, is_refused: bool
) -> None:
    # given chunks that take no room on disk, each of which may be read by itself
    quota = limits.Quota()
    paths = [tmp_path / f"calls-{number:05d}.parquet" for number in range(files)]
    for path in paths:
        pl.DataFrame({"step": pl.zeros(120_000, pl.Int32, eager=True)}).write_parquet(path)
    for path in [*paths[:2], *paths[:2]]:  # read again, they are no more than they were
        quota.take("calls", path)
    quota.take("records", paths[0])
    # then the one too many is refused
    if is_refused:
        with pytest.raises(CorruptError, match="the calls up to here claim 360000 rows"):
            quota.take("calls", paths[2])


def test_chunks_of_a_long_recording_are_not_too_large(tmp_path: Path) -> None:
    # given rows as they are written, of which each takes some bytes
    quota, random = limits.Quota(), np.random.default_rng(0)
    for number in range(12):
        ids = np.arange(number << 16, (number + 1) << 16)
        frame = pl.DataFrame({"call_id": ids, "sequence": ids * 7 + random.integers(0, 7, 1 << 16)})
        path = tmp_path / f"calls-{number:05d}.parquet"
        frame.write_parquet(path, compression="zstd", compression_level=1)
        quota.take("calls", path)


def test_one_text_in_each_row_is_counted_as_often(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # given a name that is stored once, and stands in each of a thousand rows
    path = tmp_path / "modules.parquet"
    pl.DataFrame({"module": ["a" * 2000] * 1000}).write_parquet(path)
    assert path.stat().st_size < 5000
    columns = pl.Schema({"module": pl.String()})
    assert read_table(path, columns).height == 1000
    monkeypatch.setattr(integrity, "TABLE_BYTES", 1 << 20)
    with pytest.raises(CorruptError, match="holds texts of 2000000 bytes, the longest of 2000"):
        read_table(path, columns)


def test_chunks_that_are_looked_at_together_are_told_one_by_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # given two chunks, of which the second has a name that no terminal may get
    columns = pl.Schema({"module": pl.String()})
    for number, name in enumerate(("a" * 20, "b\x1b")):
        path = tmp_path / f"calls-{number:05d}.parquet"
        pl.DataFrame({"module": [name] * 100}).write_parquet(path)
    chunks = Chunks(tmp_path, Files(tmp_path, {}), closed=True)
    sound = [["a" * 20] * 100, ["b\\x1b"] * 100]
    # when they are read, then it comes back printable, also where both together hold more than one table may
    for limit in (integrity.TABLE_BYTES, 2000):
        monkeypatch.setattr(integrity, "TABLE_BYTES", limit)
        read = chunks.many("calls", (0, 1), columns)
        assert [frame["module"].to_list() for frame in read] == sound
    # and one that holds too much is named
    monkeypatch.setattr(integrity, "TEXT_BYTES", 10)
    with pytest.raises(CorruptError, match=r"calls-00000\.parquet: holds texts"):
        chunks.many("calls", (1, 0), columns)


class _Panic(BaseException):
    """As polars raises one: no Exception."""


def test_what_a_panic_prints_is_not_passed_on(capfd: pytest.CaptureFixture[str]) -> None:
    # given a library that prints past Python, and raises what is no exception
    @unprinted_panics()
    def panic() -> None:
        os.write(2, b"thread 'main' panicked at ...\n" * 65)
        raise _Panic

    with pytest.raises(_Panic):
        panic()
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize("error", [None, ValueError, KeyboardInterrupt])
def test_what_is_printed_without_a_panic_is_passed_on(
    capfd: pytest.CaptureFixture[str], error: type[BaseException] | None
) -> None:
    # given words on standard error while something is read, which ends in one way or another
    with suppress(ValueError, KeyboardInterrupt), unprinted_panics():
        os.write(2, b"a word\n")
        if error is not None:
            raise error
    os.write(2, b"and the next\n")
    assert capfd.readouterr().err == "a word\nand the next\n"


def test_a_table_at_which_the_library_panics_is_one_sentence(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    # given tables with some bits of their pages changed, each of which its own digest would fit
    frame = pl.DataFrame({"stack": range(90), "file": [f"{n % 7}.py" for n in range(90)]})
    frame.write_parquet(tmp_path / "sound.parquet")
    sound = (tmp_path / "sound.parquet").read_bytes()
    refused = 0
    for at in range(4, len(sound) - 8, 3):
        damaged = bytearray(sound)
        damaged[at] ^= 1 << at % 8
        path = tmp_path / "stacks.parquet"
        path.write_bytes(damaged)
        try:
            read_table(path, frame.schema)
        except CorruptError:
            refused += 1
    # then nothing but the error comes of it
    assert refused > 20
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize(("depth", "is_refused"), [(900, False), (1100, True)])
def test_calls_lie_within_each_other_as_deep_as_functions_do(
    tmp_path: Path, depth: int, is_refused: bool
) -> None:
    # given calls each within the one before, behind some whose parent is not there, in any order
    call_ids = np.arange(depth + 10)
    parents = np.where(call_ids < 10, -1, call_ids - 1)
    parents[3] = 2
    order = np.random.default_rng(0).permutation(call_ids.size)
    if not is_refused:
        integrity.check_tree(tmp_path, call_ids[order], parents[order])
        integrity.check_tree(tmp_path, call_ids[20:], parents[20:])
        integrity.check_tree(tmp_path, call_ids[:0], parents[:0])
        return
    with pytest.raises(CorruptError, match="a call lies within more than 1000 others"):
        integrity.check_tree(tmp_path, call_ids[order], parents[order])
