"""Recordings whose ranks hold parts of tensors, put together by what their axes mean."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from made_ranks import call, made

import lockstep
from lockstep.cli.main import main
from lockstep.comparison import compare_recordings
from lockstep.core.dims import Mesh, dims_of
from lockstep.core.errors import UsageError
from lockstep.core.finding import Comparison, Verdict
from lockstep.core.records import Content
from lockstep.unify.dims_file import read_dims
from lockstep.unify.dtensor_placements import placed_by
from lockstep.unify.joined_parts import UnlikeDimsError, joined, rounded
from lockstep.unify.side_by_side import side_by_side

SCRIPT = Path(__file__).with_name("tensor_parallel.py")
DIMS = Path(__file__).with_name("tensor_parallel.yaml")
PLACED = Path(__file__).with_name("placed_training.py")
RUNS = {
    "whole": (1, ""),
    "spread": (2, ""),
    "gelu": (2, "1:gelu:0"),
    "norm": (2, "1:native_layer_norm:1"),
}


@pytest.fixture(scope="module")
def runs(programs: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Trainings of one rank and of two that hold parts, sound and with a wrong kernel on one rank."""
    folder = tmp_path_factory.mktemp("tensor-parallel")
    for name, (world, wrong) in RUNS.items():
        trained(programs, folder / name, SCRIPT, world, wrong)
    return folder


def trained(programs: Path, folder: Path, script: Path, world: int, wrong: str = "") -> Path:
    """One step of a training of so many ranks."""
    folder.mkdir()
    command = [str(programs / "python"), str(script), str(folder), "1", wrong]
    started = [
        subprocess.Popen(command, env={**os.environ, "RANK": str(rank), "WORLD_SIZE": str(world)})
        for rank in range(world)
    ]
    assert [one.wait() for one in started] == [0] * world
    return folder


def compared(runs: Path, name: str, *dims: Path, form: str = "recording") -> Comparison:
    sides = (lockstep.open(runs / one / form) for one in ("whole", name))
    return compare_recordings(*side_by_side(*sides, dims))


def test_two_ranks_that_hold_parts_agree_with_their_twin_of_one_rank(runs: Path) -> None:
    found = compared(runs, "spread", DIMS)
    assert (found.verdict, found.missing, found.unaligned_candidate) == (Verdict.AGREE, 0, 0)


@pytest.mark.parametrize(("name", "module"), [("gelu", "act"), ("norm", "norm2")])
def test_a_wrong_kernel_of_one_rank_is_named_by_its_operator(
    runs: Path, name: str, module: str
) -> None:
    found = compared(runs, name, DIMS)
    assert [one.module for one in found.origins] == [module]
    # what all ranks hold is one tensor, of which the copies differ
    assert ("whose copies differ" in found.origins[0].reason) == (name == "norm")


def test_dumped_parts_are_put_together_too(runs: Path, tmp_path: Path) -> None:
    dims = tmp_path / "dims.yaml"
    spread = "\n".join(f'  "attention.{one}": b s h[tp]' for one in ("query", "key", "value"))
    dims.write_text(f'sites:\n{spread}\n  "up": b s f[tp]\n  "act": b s f[tp]\n  "*": replicated\n')
    assert compared(runs, "spread", dims, form="sglang").verdict is Verdict.AGREE
    assert [one.module for one in compared(runs, "gelu", dims, form="sglang").origins] == ["act"]
    # what the dump itself notes of its axes is used without being asked for, and mended by a file beside it
    assert compared(runs, "spread", form="sglang").verdict is Verdict.AGREE
    own = shutil.copytree(runs / "spread", tmp_path / "own") / "sglang"
    (own / "dims.yaml").write_text('mesh: {tp: 2}\nsites: {"up": "b s[tp] f"}\n')
    sides = side_by_side(lockstep.open(runs / "whole" / "sglang"), lockstep.open(own))
    found = compare_recordings(*sides)
    assert (found.verdict, found.origins) == (Verdict.INCOMPARABLE, ())
    assert "along s its shape is (2, 12, 16)" in " ".join(found.not_compared)
    assert (
        compare_recordings(
            *side_by_side(*map(lockstep.open, (runs / "whole" / "sglang", own)), [dims])
        ).verdict
        is Verdict.AGREE
    )


@pytest.mark.parametrize(
    ("told", "mended", "said"),
    [
        (
            '"act": b s f[tp]',
            '"act": b s[tp] f',
            "along s its shape is (2, 12, 16) put together as 'b s[tp] f'",
        ),
        (
            '"act": b s f[tp]',
            '"act": b f[tp]',
            "dims 'b f[tp]' have 2 axes, and rank0's part (2, 6, 16) has 3",
        ),
        ('"act": b s f[tp]', '"act": b s f[cp]', "name cp, which the mesh of ranks has not"),
        ('"*": replicated', '"act": b s f[tp]', "no dims say how its parts belong together"),
        ('"up.bias": f[tp]', '"up.bias": replicated', "put together"),
    ],
)
def test_wrong_dims_are_said_and_no_operator_is_blamed(
    runs: Path, tmp_path: Path, told: str, mended: str, said: str
) -> None:
    wrong = tmp_path / "wrong.yaml"
    wrong.write_text(DIMS.read_text().replace(told, mended))
    if told == '"*": replicated':
        wrong.write_text("mesh: {tp: 2}\nsites: {}\n")
    sides = side_by_side(
        *(lockstep.open(runs / one / "recording") for one in ("whole", "spread")), [wrong]
    )
    found = compare_recordings(*sides)
    if mended != '"up.bias": replicated':
        assert (found.verdict, found.origins) == (Verdict.INCOMPARABLE, ())
        assert said in " ".join((*found.not_compared, *(one.reason for one in found.findings)))
    else:  # parts that are told to be copies
        assert found.verdict is not Verdict.AGREE


def test_a_rank_that_is_missing_is_said(
    runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lone = shutil.copytree(runs / "spread" / "recording", tmp_path / "lone")
    shutil.rmtree(lone / "rank1")
    assert main(["compare", str(runs / "whole" / "recording"), str(lone), "--dims", str(DIMS)]) == 2
    out = " ".join(capsys.readouterr().out.split())
    assert "rank1 is not in the recording" in out
    assert "the part at tp=1 is not in the recording" in out


def test_what_no_dims_can_be_for_is_refused(
    runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    whole, spread = (str(runs / one / "recording") for one in ("whole", "spread"))
    file = tmp_path / "dims.yaml"
    for text, said in (
        ("mesh: {tp: 3}", "mesh {tp: 3} is one of 3 ranks, and the training had 2"),
        ("mesh: {tp: x}", "write for example `mesh: {dp: 2, tp: 4}`"),
        ("sites: {act: 'b s[tp'}", "sites: act: 's[tp' in 'b s[tp' is no axis"),
        ("sites: {act: 'b s[tp] h[tp]'}", "names tp twice"),
        ("sites: {act: 3}", "is not a pattern with dims"),
        ("parameters: {up.weight: {a: b}}", "is not a pattern with dims"),
        ("sites: [a]", "is not a list of `pattern: dims`"),
        ("act: b s", "holds something other than mesh, parameters, sites"),
        ("sites: {a: 'b[tp]', c: 'b[dp]'}", "nothing says which mesh its 2 ranks make"),
        ("sites: &a {b: *a}", "is not a pattern with dims"),
        ("sites: {", "is not valid YAML"),
    ):
        file.write_text(text)
        assert main(["compare", whole, spread, "--dims", str(file)]) == 2
        assert said in " ".join(capsys.readouterr().err.split())
    assert main(["compare", whole, whole + "/.", "--dims", str(DIMS)]) == 2
    copy = shutil.copytree(whole, tmp_path / "copy")
    assert main(["compare", whole, str(copy), "--dims", str(DIMS)]) == 2
    assert "both recordings are of one rank" in capsys.readouterr().err
    with pytest.raises(UsageError, match="given three times"):
        side_by_side(lockstep.open(whole), lockstep.open(spread), [DIMS] * 3)
    with pytest.raises(UsageError, match="is not a file"):
        read_dims(tmp_path)


@pytest.mark.exhaustive
def test_tensors_that_torch_distributed_placed_are_put_together_without_a_word(
    programs: Path, tmp_path: Path
) -> None:
    whole, spread = (
        trained(programs, tmp_path / name, PLACED, world)
        for name, world in (("one", 1), ("two", 2))
    )
    found = compare_recordings(
        *side_by_side(*(lockstep.open(one / "recording") for one in (whole, spread)))
    )
    assert (found.verdict, found.unaligned_reference) == (Verdict.AGREE, 0)


def test_what_one_rank_alone_has_is_never_an_agreement(tmp_path: Path) -> None:
    one, other = np.arange(4, dtype="f4"), np.ones(3, "f4")
    both = [call("exp", one), call("log", other)]
    dims = tmp_path / "dims.yaml"
    dims.write_text('mesh: {tp: 2}\nsites: {"*": replicated}\n')
    whole = made(tmp_path / "whole", both)
    agreed = compare_recordings(*side_by_side(whole, made(tmp_path / "alike", both, both), [dims]))
    assert agreed.verdict is Verdict.AGREE
    for number, (ranks, said) in enumerate(
        (
            ((both, both[:1]), "rank1 did not record it"),
            ((both[:1], both), "rank1 alone made them"),
            ((both, [call("exp", one, other), both[1]]), "rank1 alone recorded them"),
            (([*both, call("sin", one)], both), "rank1 did not record it"),
        )
    ):
        spread = made(tmp_path / str(number), *ranks)
        found = compare_recordings(*side_by_side(whole, spread, [dims]))
        assert found.verdict is Verdict.INCOMPARABLE, said
        assert said in " ".join(found.not_compared)


def test_parts_that_are_equal_by_chance_blame_no_operator(tmp_path: Path) -> None:
    # Given halves of a tensor of zeros, of which nothing is told
    whole = made(tmp_path / "whole", [call("exp", np.zeros((2, 8), "f4"))])
    half = [call("exp", np.zeros((2, 4), "f4"))]
    spread = made(tmp_path / "spread", half, half)
    dims = tmp_path / "dims.yaml"
    dims.write_text("mesh: {tp: 2}\n")
    found = compare_recordings(*side_by_side(whole, spread, [dims]))
    assert (found.verdict, found.origins) == (Verdict.INCOMPARABLE, ())
    # and with dims they are whole
    dims.write_text('sites: {"fc": "b h[tp]"}\n')
    assert compare_recordings(*side_by_side(whole, spread, [dims])).verdict is Verdict.AGREE


SPREADS: dict[str, Callable[[np.ndarray, int], list[np.ndarray]]] = {
    "": lambda whole, n: np.split(whole, n, 1),
    ":zigzag": lambda whole, n: [
        np.concatenate([np.split(whole, 2 * n, 1)[one] for one in (rank, 2 * n - 1 - rank)], 1)
        for rank in range(n)
    ],
    ":partial": lambda whole, n: [
        whole * (1.0 if rank == 0 else 0.0) + rank - (n - 1) / 2 for rank in range(n)
    ],
}


@given(
    st.sampled_from([*SPREADS]),
    st.integers(2, 4),
    st.integers(1, 3),
    st.sampled_from(["float32", "int64"]),
)
def test_parts_that_were_dealt_out_are_put_together_again(
    how: str, ranks: int, chunk: int, dtype: str
) -> None:
    whole = np.arange(2 * 2 * ranks * chunk * 3).reshape(2, 2 * ranks * chunk, 3).astype(dtype)
    if how == ":partial" and dtype == "int64":
        ranks = 3  # whose summands are whole numbers
    parts = (
        [one.astype(dtype) for one in SPREADS[how](whole, ranks)]
        if how == ":partial" or whole.shape[1] % ranks == 0
        else []
    )
    if not parts:
        return
    found = joined(dict(enumerate(parts)), dims_of(f"b t[cp{how}] h"), Mesh({"cp": ranks}), dtype)
    assert np.array_equal(found.array, whole)
    assert found.copies == 1


def test_axes_that_two_axes_of_a_mesh_share_are_put_together_from_within() -> None:
    whole = np.arange(32.0).reshape(16, 2)
    mesh = Mesh({"sp": 2, "cp": 2, "dp": 2})
    dealt = SPREADS[":zigzag"](whole.T, 2)
    parts = {
        rank: np.split(dealt[mesh.place(rank)["cp"]].T, 2)[mesh.place(rank)["sp"]]
        for rank in range(8)
    }
    found = joined(parts, dims_of("t[cp:zigzag,sp] d"), mesh, "float64")
    assert (np.array_equal(found.array, whole), found.copies) == (True, 1)
    # a copy of another group of ranks that is off by more than rounding is kept beside the first
    parts[7] = parts[7] * 1.001
    apart = joined(parts, dims_of("t[cp:zigzag,sp] d"), mesh, "float64")
    assert (apart.copies, apart.array.shape) == (2, (2, 16, 2))
    del parts[6]
    with pytest.raises(UnlikeDimsError, match="the part at sp=1 is not in the recording"):
        joined(parts, dims_of("t[cp:zigzag,sp] d"), mesh, "float64")


@pytest.mark.parametrize(
    ("text", "parts", "said"),
    [
        (
            "a b[tp]",
            [np.ones((2, 3)), np.ones((3, 3))],
            r"along a of 'a b\[tp\]' parts over tp have \[2, 3\]",
        ),
        (
            "a[tp:zigzag] b",
            [np.ones((3, 2)), np.ones((3, 2))],
            "a part has 3 elements, no two chunks",
        ),
        ("a b[tp:partial]", [np.ones((3, 2)), np.ones((3, 2))], "all ranks there hold the same"),
        (
            "a b",
            [np.ones((3, 2)), np.ones((4, 2))],
            "copies .* have the shapes .*, which differ along a of 'a b'",
        ),
    ],
)
def test_parts_that_do_not_fit_their_dims_are_refused(
    text: str, parts: list[np.ndarray], said: str
) -> None:
    with pytest.raises(UnlikeDimsError, match=said):
        joined(dict(enumerate(parts)), dims_of(text), Mesh({"tp": 2}), "float64")


def test_copies_are_equal_within_rounding_alone() -> None:
    dims, mesh = dims_of("replicated"), Mesh({"tp": 2})
    one = np.array([1.0, 3.0, np.nan, np.inf], "f4")
    for factor, copies in ((1.0, 1), (1 + 1e-7, 1), (1.001, 2)):
        found = joined({0: one, 1: (one * np.float32(factor)).astype("f4")}, dims, mesh, "float32")
        assert found.copies == copies
    assert joined({0: one, 1: one[::-1].copy()}, dims, mesh, "float32").copies == 2
    # an average of squares is twice as far apart as what is squared
    squares = {0: one, 1: (one * np.float32(1 + 6 * 2**-24)).astype("f4")}
    assert joined(squares, dims, mesh, "float32", "enter.weight|exp_avg").copies == 2
    assert joined(squares, dims, mesh, "float32", "enter.weight|exp_avg_sq").copies == 1
    assert joined({0: np.array([1]), 1: np.array([2])}, dims, mesh, "int64").copies == 2
    # a sum in bfloat16 is rounded as bfloat16 is
    assert rounded(np.array([1.0 + 2**-8, 1.0 + 3 * 2**-8, np.nan], "f4"), "bfloat16").tolist()[
        :2
    ] == [1.0, 1.015625]


def test_placed_tensors_say_their_dims() -> None:
    def placed(note: str) -> tuple[str, dict[str, int]] | None:
        found = placed_by(Content(0, "float32", (2, 2), "cpu", None, None, note=note))
        return found and (found[0].text, dict(found[1].sizes))

    assert placed("part of (50, 32): Shard(dim=0), Replicate() on mesh (dp=2, tp=4)") == (
        "d0[dp] d1",
        {"dp": 2, "tp": 4},
    )
    assert placed("part of (50, 32): Shard(dim=1), Shard(dim=1) on mesh (2, 2)") == (
        "d0 d1[m0,m1]",
        {"m0": 2, "m1": 2},
    )
    assert placed("part of (50,): Partial(sum) on mesh (2)") == ("d0[m0:partial]", {"m0": 2})
    for other in ("Partial(avg)", "_StridedShard(dim=0, sf=2)"):
        assert placed(f"part of (50, 32): {other} on mesh (2)") is None
    assert placed("no numbers") is None
