"""Calls between ranks are recorded as calls, and a slip in one is named as one."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from harness import Call, CallKind, Role
from two_ranks import run_two_ranks

import lockstep
from lockstep.core.finding import Comparison, Verdict
from lockstep.store.reader import Recording

SCRIPT = Path(__file__).with_name("rank_collectives.py")
SLIPS = ("missing", "doubled", "operation", "group")


@pytest.fixture(scope="module")
def recorded(programs: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("collectives")
    run_two_ranks(programs, SCRIPT, str(directory))
    return directory


def _between_ranks(recording: Recording, rank: int) -> list[Call]:
    calls = recording.ranks[f"rank{rank}"].calls(0)
    return [one for one in calls if one.kind is CallKind.OPERATOR and "c10d" in one.site.op]


def _compared(directory: Path, slip: str) -> Comparison:
    return lockstep.compare_recordings(directory / "sound", directory / slip, rerun=False)


@pytest.mark.parametrize("rank", [0, 1])
def test_recording_collectives_changes_no_bit(recorded: Path, rank: int) -> None:
    # given trainings run bare and recorded, then both left the same parameters
    same = json.loads((recorded / f"same{rank}.json").read_text())
    assert set(same) == {"sound", *SLIPS, "kinds"}
    assert all(same.values())


@pytest.mark.parametrize("rank", [0, 1])
def test_every_kind_of_collective_is_a_call_with_what_it_takes_and_gives(
    recorded: Path, rank: int
) -> None:
    # given classic and functional collectives, when they are recorded
    calls = _between_ranks(lockstep.open(recorded / "kinds"), rank)

    # then each is a call, in the order of the script, and gives what torch says that it gives
    names = [
        re.sub("_into_tensor|_tensor|_single", "", one.site.op.rpartition(".")[2]) for one in calls
    ]
    exchange = "recv" if rank else "send"
    functional = ["all_reduce", "all_gather", "reduce_scatter"]
    classic = [exchange, "broadcast", "all_gather", "all_gather", "reduce_scatter", "all_to_all"]
    assert names == functional + classic
    for call, name in zip(calls, names, strict=True):
        given = call.with_role(Role.OUTPUT)
        assert bool(given) == (name != "send"), call.site
        assert all(one.digest is not None for one in given), call.site
    summed, received = calls[0], calls[3]
    assert summed.arguments["args.1"] == "sum"
    if rank:
        assert received.with_role(Role.OUTPUT)[0].load().tolist() == [0.0, 0.0]


def test_a_collective_that_is_waited_for_later_is_one_call(recorded: Path) -> None:
    # given gradients that are reduced at once, and waited for afterwards
    calls = _between_ranks(lockstep.open(recorded / "sound"), 0)

    # then each sum is one call, by its operation and the ranks of its group, with what came out after the wait
    assert [one.site.op.rpartition(".")[2] for one in calls] == ["all_reduce"] * 4
    for call in calls:
        (given,), (summed,) = call.with_role(Role.INPUT), call.with_role(Role.OUTPUT)
        assert given.digest != summed.digest
        assert (call.arguments["kwargs.op"], call.arguments["kwargs.group"]) == (
            "sum",
            "ranks 0, 1",
        )


def test_process_groups_stand_in_the_manifest(recorded: Path) -> None:
    # given two groups beside that of all ranks
    told = lockstep.open(recorded / "sound").ranks["rank1"].manifest.distributed

    # then the manifest tells the ranks of each
    groups = [told[name] for name in sorted(told) if name.startswith("group ")]
    assert groups == ["ranks 0, 1 (gloo)", "ranks 0, 1 (gloo, pairs)", "ranks 1 (gloo, alone)"]
    assert (told["rank"], told["world_size"]) == ("1", "2")


def test_a_missing_collective_is_named_with_its_line(recorded: Path) -> None:
    # given a candidate that does not reduce one gradient
    first = _compared(recorded, "missing").origins[0]

    # then the call is named, with the line of the script, on the first rank that lacks it
    assert (first.rank, first.tensor, first.role) == ("rank0", "0.bias", Role.PARAM_GRAD)
    assert re.search(
        r"the reference calls \S+all_reduce at \S*rank_collectives.py:\d+; the candidate",
        first.reason,
    )


def test_a_doubled_collective_is_named_with_its_line(recorded: Path) -> None:
    # given a candidate that reduces one gradient twice
    first = _compared(recorded, "doubled").origins[0]

    # then the call that the reference lacks is named
    assert (first.rank, first.op.rpartition(".")[2]) == ("rank0", "all_reduce")
    assert re.search(
        r"the candidate calls \S+all_reduce at \S*rank_collectives.py:\d+; the reference",
        first.reason,
    )


@pytest.mark.parametrize(
    ("slip", "told"),
    [
        ("operation", 'op is "sum" in the reference and "max" in the candidate'),
        ("group", 'group is "ranks 0, 1" in the reference and "ranks 0" in the candidate'),
    ],
)
def test_another_operation_or_group_is_named_at_the_collective(
    recorded: Path, slip: str, told: str
) -> None:
    # given a candidate that reduces one gradient otherwise
    first = _compared(recorded, slip).origins[0]

    # then the origin is the call, with both settings
    assert (first.rank, first.op.rpartition(".")[2]) == ("rank0", "all_reduce")
    assert told in first.reason


def test_the_same_collectives_agree(recorded: Path) -> None:
    # given the twin of all of them, when it is compared with itself
    found = _compared(recorded, "sound")

    # then nothing is named
    assert (found.verdict, found.origins) == (Verdict.AGREE, ())
