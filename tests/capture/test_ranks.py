"""Trainings on several ranks: recorded truly, with the names of the model, and not changed by it."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from harness import Call, CallKind, Role

import lockstep
from lockstep.core.finding import Outcome, Verdict
from lockstep.store.reader import Recording

SCRIPT = Path(__file__).with_name("rank_trainings.py")
RECORDED = (
    "fsdp2:module:sketch",
    "fsdp2:api:sketch",
    "fsdp2:aten:tensors",
    "fsdp2-no-sync:api:sketch",
    "fsdp2-bf16:api:sketch",
    "fsdp2-kept:api:tensors",
    "fsdp1:api:sketch",
    "fsdp1-original:api:tensors",
    "ddp:api:sketch",
    "ddp-no-sync:api:sketch",
    "ddp-static:api:sketch",
    "ddp-unused:api:sketch",
    "ddp-view:api:tensors",
    "ddp-hook:api:sketch",
    "zero:api:sketch",
    "pipeline:api:sketch",
    "offload:api:sketch",
    "collectives:api:sketch",
)
PARAMETERS = {
    "embed.weight",
    *(
        f"blocks.{block}.{layer}.{name}"
        for block in (0, 1)
        for layer in ("norm", "up", "down")
        for name in ("weight", "bias")
    ),
    "head.weight",
    "head.bias",
}


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """All trainings, run by two processes one after the other: to start them takes longer than they do."""
    directory = tmp_path_factory.mktemp("ranks")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    shared = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": "2"}
    ranks = [
        subprocess.Popen(
            [sys.executable, str(SCRIPT), str(directory), *RECORDED],
            env={**os.environ, **shared, "RANK": str(rank), "OMP_NUM_THREADS": "1"},
        )
        for rank in (0, 1)
    ]
    assert [rank.wait() for rank in ranks] == [0, 0]
    return directory


def _open(directory: Path, name: str) -> Recording:
    recording = lockstep.open(directory / name.replace(":", "-"))
    assert recording.missing == ()
    return recording


def _calls(recording: Recording, kind: CallKind, step: int = 0) -> list[Call]:
    return [call for call in recording.ranks["rank0"].calls(step) if call.kind is kind]


@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize("name", RECORDED)
def test_a_training_on_ranks_is_not_changed(name: str, rank: int, recorded: Path) -> None:
    # given a training on two ranks, when it is recorded, then its losses are bitwise those without
    bare, with_recording = json.loads((recorded / f"losses{rank}.json").read_text())[name]
    assert isinstance(bare, list)
    assert bare == with_recording
    manifest = _open(recorded, name).ranks[f"rank{rank}"].manifest
    assert manifest.stopped_because == ""


@pytest.mark.parametrize("name", [name for name in RECORDED if ":api:" in name])
def test_what_is_recorded_of_ranks_has_numbers_that_can_be(name: str, recorded: Path) -> None:
    # given recordings of trainings that free, fill and share their memory
    for step in (0, 1):
        for call in _open(recorded, name).ranks["rank0"].calls(step):
            for record in call.records:
                # then each tensor has numbers, none of them garbage, or a reason for having none
                numbers = record.statistics
                if numbers is None:
                    assert "as it was found" in record.content.note
                else:
                    assert numbers.norm < 1e3, (str(call.site), record.role, record.name)


@pytest.mark.parametrize(
    "name", ["fsdp2:module:sketch", "fsdp2:api:sketch", "fsdp2-bf16:api:sketch"]
)
def test_sharded_parameters_have_the_names_of_the_model(name: str, recorded: Path) -> None:
    # given a model whose parameters FSDP shards, gathers and frees, when it is recorded
    recording = _open(recorded, name)

    # then parameters, the reduced gradients and the updates are there under the model's names
    for step in (0, 1):
        for kind, role in (
            (CallKind.OPTIMIZER, Role.PARAM),
            (CallKind.OPTIMIZER, Role.PARAM_GRAD),
            (CallKind.OPTIMIZER, Role.PARAM_AFTER),
            (CallKind.GRADIENT, Role.PARAM_GRAD),
        ):
            found = [
                record for call in _calls(recording, kind, step) for record in call.with_role(role)
            ]
            assert {record.name for record in found} == PARAMETERS, (kind, role)
            assert all("Shard(dim=0) on mesh (dp=2)" in record.content.note for record in found)
    # and so are gathered parameters and what operators send to them
    operators = _calls(recording, CallKind.OPERATOR)
    sent = {record.name for call in operators for record in call.with_role(Role.PARAM_GRAD)}
    assert sent == (PARAMETERS if "api" in name else set())
    classes = {call.module_class for call in _calls(recording, CallKind.MODULE)}
    assert not [one for one in classes if "FSDP" in one]


def test_what_torch_does_between_ranks_is_none_of_the_models_operators(recorded: Path) -> None:
    # given the same model under DDP and under FSDP, when it is recorded
    found = {
        name: Counter(
            (call.site.module, call.site.op)
            for call in _calls(_open(recorded, f"{name}:api:sketch"), CallKind.OPERATOR)
        )
        for name in ("ddp", "fsdp2", "fsdp1", "ddp-hook", "zero")
    }

    # then its operators are the same, each at its place
    assert all(operators == found["ddp"] for operators in found.values())


def test_sums_over_the_ranks_are_recorded_as_written(recorded: Path) -> None:
    # given a loop that sums gradients over the ranks in place, when it is recorded
    recording = _open(recorded, "collectives:api:sketch")
    sums = [
        call
        for call in _calls(recording, CallKind.OPERATOR)
        if call.site.op.endswith(".all_reduce")
    ]

    # then each sum has what went in and what came out, which the next call gets
    assert len(sums) == len(PARAMETERS)
    scaled = [
        call for call in _calls(recording, CallKind.OPERATOR) if call.site.op.endswith(".mul_")
    ]
    for before, after in zip(sums, scaled, strict=True):
        (given,), (summed,) = before.with_role(Role.INPUT), before.with_role(Role.OUTPUT)
        assert given.digest != summed.digest == after.with_role(Role.INPUT)[0].digest


@pytest.mark.parametrize("pair", [("fsdp2", "fsdp2-no-sync"), ("ddp", "ddp-no-sync")])
def test_a_candidate_that_never_sums_its_gradients_does_not_agree(
    pair: tuple[str, str], recorded: Path
) -> None:
    # given a reference and a candidate that forgot to sum gradients over the ranks
    paths = [recorded / f"{name}-api-sketch" for name in pair]

    # when they are compared, then they do not agree
    comparison = lockstep.compare_recordings(*paths)
    assert comparison.verdict.value != "agree"


def test_two_ways_to_gather_agree(recorded: Path) -> None:
    # given the same training that keeps gathered parameters, and one that frees them
    pair = [recorded / name for name in ("fsdp2-api-sketch", "fsdp2-kept-api-tensors")]

    # when they are compared, then they agree to the last bit
    comparison = lockstep.compare_recordings(*pair)
    assert comparison.verdict.value == "agree"
    assert comparison.origins == ()


def test_replicas_against_parts_without_names_are_no_fault(recorded: Path) -> None:
    # given the same training with whole parameters on each rank, and with parts that the model does not own
    pair = recorded / "ddp-api-sketch", recorded / "fsdp1-api-sketch"
    # when they are compared, then nothing is accused, and they do not agree
    for reference, candidate in (pair, pair[::-1]):
        found = lockstep.compare_recordings(reference, candidate)
        assert (found.verdict, found.origins) == (Verdict.INCOMPARABLE, ())


def test_replicas_against_shards_are_no_fault_and_no_agreement(recorded: Path) -> None:
    # given the same training with whole parameters on each rank, and with a part of each
    directories = [recorded / name for name in ("ddp-api-sketch", "fsdp2-api-sketch")]
    for reference, candidate in (directories, directories[::-1]):
        found = lockstep.compare_recordings(reference, candidate)
        # then all that can be held against each other agrees, and what cannot is said
        assert (found.verdict, found.origins) == (Verdict.INCOMPARABLE, ())
        assert "spread over ranks otherwise" in " ".join(found.not_compared)
        for finding in found.findings:
            known = finding.outcome is Outcome.AGREE
            assert known == (finding.pair.reference.shape == finding.pair.candidate.shape)
