"""Trainings on several ranks: recorded truly, with the names of the model, and not changed by it."""

from __future__ import annotations

import json
import math
import os
import subprocess
from collections import Counter
from pathlib import Path

import pytest
from harness import Call, CallKind, Role

import lockstep
from lockstep.core.finding import Comparison, Kind, Outcome, Verdict
from lockstep.core.records import TensorRecord
from lockstep.core.site import Phase
from lockstep.store.reader import Recording

SCRIPT = Path(__file__).with_name("rank_trainings.py")
RECORDED = (
    "fsdp2:module:sketch",
    "fsdp2:api:sketch",
    "fsdp2:aten:tensors",
    "fsdp2-other-kernels:module:sketch",
    "fsdp2-cpu-offload:api:sketch",
    "fsdp2-no-sync:module:sketch",
    "fsdp2-no-sync:api:sketch",
    "fsdp2-bf16:api:sketch",
    "fsdp2-kept:api:tensors",
    "fsdp1:api:sketch",
    "fsdp1-other-kernels:api:sketch",
    "fsdp1-relu:api:sketch",
    "fsdp1-original:api:tensors",
    "fsdp1-original-other-kernels:api:sketch",
    "fsdp1-original:module:sketch",
    "fsdp1-original-other-kernels:module:sketch",
    "fsdp1-original-lr:api:sketch",
    "fsdp1-original-sum:api:sketch",
    "ddp:api:sketch",
    "ddp-no-sync:api:sketch",
    "ddp-static:api:sketch",
    "ddp-unused:api:sketch",
    "ddp-view:api:tensors",
    "ddp-hook:api:sketch",
    "ddp-sum:api:sketch",
    "zero:api:sketch",
    "pipeline:api:sketch",
    "pipeline-known:api:sketch",
    "pipeline-1f1b:api:sketch",
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
OF_A_BLOCK = {f"{layer}.{name}" for layer in ("norm", "up", "down") for name in ("weight", "bias")}
STAGES = (
    {"0.weight", *(f"1.{name}" for name in OF_A_BLOCK)},
    {"1.weight", "1.bias", *(f"0.{name}" for name in OF_A_BLOCK)},
)
UPDATE_ROLES = (Role.PARAM, Role.PARAM_GRAD, Role.PARAM_AFTER)


@pytest.fixture(scope="module")
def recorded(programs: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """All trainings, run by two processes one after the other: to start them takes longer than they do."""
    directory = tmp_path_factory.mktemp("ranks")
    ranks = [
        subprocess.Popen(
            [programs / "python", str(SCRIPT), str(directory), *RECORDED],
            env={**os.environ, "WORLD_SIZE": "2", "RANK": str(rank), "OMP_NUM_THREADS": "1"},
        )
        for rank in (0, 1)
    ]
    assert [rank.wait() for rank in ranks] == [0, 0]
    return directory


def _open(directory: Path, name: str) -> Recording:
    recording = lockstep.open(directory / name.replace(":", "-"))
    assert recording.missing == ()
    return recording


def _calls(recording: Recording, kind: CallKind, step: int = 0, rank: int = 0) -> list[Call]:
    return [call for call in recording.ranks[f"rank{rank}"].calls(step) if call.kind is kind]


def _by_name(calls: list[Call], role: Role) -> dict[str, TensorRecord]:
    """What the calls hold in a role, the last of each name."""
    return {record.name: record for call in calls for record in call.with_role(role)}


def _digests(calls: list[Call], role: Role) -> dict[str, str | None]:
    return {name: record.digest for name, record in _by_name(calls, role).items()}


def _compared(directory: Path, reference: str, candidate: str) -> Comparison:
    names = (reference.replace(":", "-"), candidate.replace(":", "-"))
    return lockstep.compare_recordings(*(directory / name for name in names))


@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize("name", RECORDED)
def test_a_training_on_ranks_is_not_changed(name: str, rank: int, recorded: Path) -> None:
    # given a training on two ranks, when it is recorded, then losses and last parameters are bitwise those without
    bare, with_recording = json.loads((recorded / f"left{rank}.json").read_text())[name]
    assert isinstance(bare, list)
    assert bare == with_recording
    manifest = _open(recorded, name).ranks[f"rank{rank}"].manifest
    assert manifest.stopped_because == ""


@pytest.mark.sampled(3)
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


@pytest.mark.parametrize(
    ("wrapper", "level"), [("fsdp2", "api"), ("fsdp2", "module"), ("ddp", "api")]
)
def test_a_candidate_that_never_sums_its_gradients_has_diverged(
    wrapper: str, level: str, recorded: Path
) -> None:
    # given a reference and a candidate that forgot to sum gradients over the ranks
    pair = (f"{wrapper}:{level}:sketch", f"{wrapper}-no-sync:{level}:sketch")

    # when they are compared, then gradients are named as the first origin
    found = _compared(recorded, *pair)
    assert found.verdict is Verdict.DIVERGED
    first = found.origins[0]
    assert (first.step, first.phase, first.role) == (0, Phase.BACKWARD, Role.PARAM_GRAD)
    assert first.tensor in PARAMETERS


def test_sharded_trainings_with_other_kernels_agree(recorded: Path) -> None:
    # given the same sharded training, whose products are summed in another order
    found = _compared(recorded, "fsdp2:module:sketch", "fsdp2-other-kernels:module:sketch")

    # when they are compared by their modules, then they differ, agree, and nothing was left out
    assert any(finding.difference > 0 for finding in found.findings)
    assert (found.verdict, found.origins, found.not_compared) == (Verdict.AGREE, (), ())


def test_parameters_that_are_offloaded_are_recorded_as_those_that_are_not(recorded: Path) -> None:
    # given the same sharded training, with what it shards offloaded to the host, when it is recorded
    recording = _open(recorded, "fsdp2-cpu-offload:api:sketch")

    # then each rank has all gradients and updates of its parts
    for rank in (0, 1):
        for step in (0, 1):
            updates = _calls(recording, CallKind.OPTIMIZER, step, rank)
            for role in UPDATE_ROLES:
                assert _by_name(updates, role).keys() == PARAMETERS
            assert all(_is_a_gradient(one) for one in _by_name(updates, Role.PARAM_GRAD).values())
    # and they agree with those of the training without
    found = _compared(recorded, "fsdp2:api:sketch", "fsdp2-cpu-offload:api:sketch")
    assert (found.verdict, found.not_compared) == (Verdict.AGREE, ())


def _is_a_gradient(record: TensorRecord) -> bool:
    numbers = record.statistics
    return numbers is not None and 0 < numbers.norm < math.inf


@pytest.mark.parametrize("rank", [0, 1])
def test_a_stage_of_a_pipeline_has_the_gradients_of_its_parameters(
    rank: int, recorded: Path
) -> None:
    # given a pipeline that goes forward and backward in turns, when it is recorded
    recording = _open(recorded, "pipeline-1f1b:api:sketch")

    # then each stage has whole steps, with a gradient of each micro-batch and the update of its own parameters
    assert list(recording.ranks[f"rank{rank}"].steps) == [0, 1]
    for step in (0, 1):
        gradients = Counter(
            record.name
            for call in _calls(recording, CallKind.GRADIENT, step, rank)
            for record in call.with_role(Role.PARAM_GRAD)
        )
        assert gradients == dict.fromkeys(STAGES[rank], 4)
        updates = _calls(recording, CallKind.OPTIMIZER, step, rank)
        for role in UPDATE_ROLES:
            assert _by_name(updates, role).keys() == STAGES[rank]
        assert all(_is_a_gradient(one) for one in _by_name(updates, Role.PARAM_GRAD).values())


def test_a_pipeline_that_finds_its_shapes_itself_agrees_with_one_that_knows_them(
    recorded: Path,
) -> None:
    # given a pipeline whose stages run once on memory without a meaning, to learn what they get
    found = _compared(recorded, "pipeline-known:api:sketch", "pipeline:api:sketch")
    # then that is no part of its first step
    assert (found.verdict, found.origins, found.not_compared) == (Verdict.AGREE, (), ())
    assert (found.unaligned_reference, found.unaligned_candidate) == (0, 0)


def test_two_schedules_of_one_pipeline_agree(recorded: Path) -> None:
    # given a pipeline that goes forward with all micro-batches first, and one that goes in turns
    found = _compared(recorded, "pipeline-known:api:sketch", "pipeline-1f1b:api:sketch")

    # when they are compared, then they agree
    assert (found.verdict, found.origins, found.not_compared) == (Verdict.AGREE, (), ())


def test_gradients_are_recorded_before_and_after_they_are_reduced(recorded: Path) -> None:
    # given replicas with a batch each, when they are recorded
    recording = _open(recorded, "ddp:api:sketch")

    for step in (0, 1):
        computed, reduced = (
            [_digests(_calls(recording, kind, step, rank), Role.PARAM_GRAD) for rank in (0, 1)]
            for kind in (CallKind.GRADIENT, CallKind.OPTIMIZER)
        )
        # then each has gradients of its own for all parameters, and gets the same ones for the update
        assert computed[0].keys() == computed[1].keys() == PARAMETERS
        assert not [name for name in PARAMETERS if computed[0][name] == computed[1][name]]
        assert reduced[0] == reduced[1]
        assert reduced[0].keys() == PARAMETERS


def test_a_sum_that_is_taken_for_a_mean_is_named_between_backward_and_update(
    recorded: Path,
) -> None:
    # given replicas whose hook sums gradients over the ranks, and does not divide
    found = _compared(recorded, "ddp:api:sketch", "ddp-sum:api:sketch")

    # when they are compared, then what backward left agrees, and what the optimizer gets does not
    assert found.verdict is Verdict.DIVERGED
    first = found.origins[0]
    assert (first.step, first.phase, first.role) == (0, Phase.BACKWARD, Role.PARAM_GRAD)
    assert first.tensor in PARAMETERS
    assert "between backward and optimizer" in first.op


def test_each_rank_updates_its_own_share_of_the_parameters(recorded: Path) -> None:
    # given an optimizer whose state is spread over the ranks, when it is recorded
    recording = _open(recorded, "zero:api:sketch")

    for step in (0, 1):
        shares = []
        left = []
        for rank in (0, 1):
            updates = _calls(recording, CallKind.OPTIMIZER, step, rank)
            own = [call for call in updates if call.site.op == "torch.optim.AdamW"]
            whole = [call for call in updates if "ZeroRedundancyOptimizer" in call.site.op]
            # then each has the updates of its share, from the reduced gradient to the moved parameter
            before, gradient, after = (_by_name(own, role) for role in UPDATE_ROLES)
            assert before.keys() == gradient.keys() == after.keys()
            assert all(_is_a_gradient(one) for one in gradient.values())
            assert not [name for name in before if before[name].digest == after[name].digest]
            shares.append(set(before))
            left.append(_digests(whole, Role.PARAM_AFTER))
            assert {name: after[name].digest for name in after}.items() <= left[-1].items()
        # and the shares make up the model, which is the same on both ranks after they are exchanged
        assert not shares[0] & shares[1]
        assert shares[0] | shares[1] == PARAMETERS
        assert left[0] == left[1]
        assert left[0].keys() == PARAMETERS


@pytest.mark.parametrize(
    ("reference", "candidate"),
    [
        ("fsdp1:api:sketch", "fsdp1-other-kernels:api:sketch"),
        ("fsdp1-original:api:tensors", "fsdp1-original-other-kernels:api:sketch"),
        ("fsdp1-original:module:sketch", "fsdp1-original-other-kernels:module:sketch"),
    ],
)
def test_parts_without_names_agree_where_only_kernels_differ(
    reference: str, candidate: str, recorded: Path
) -> None:
    # given trainings whose optimizer holds parts of parameters, summed in another order
    found = _compared(recorded, reference, candidate)

    # when they are compared, then they agree, as each gradient and each update was judged
    assert (found.verdict, found.origins, found.not_compared) == (Verdict.AGREE, (), ())
    updated = [
        finding
        for finding in found.findings
        if finding.pair.present.site.phase is Phase.OPTIMIZER
        and finding.pair.present.role in (Role.PARAM_GRAD, Role.PARAM_AFTER)
    ]
    assert any(finding.difference > 0 for finding in updated)
    assert all(finding.difference <= finding.tolerance for finding in updated)


def test_another_activation_between_parts_is_named(recorded: Path) -> None:
    # given parts of parameters, and a candidate with another activation
    found = _compared(recorded, "fsdp1:api:sketch", "fsdp1-relu:api:sketch")

    # when they are compared, then it is the first origin
    assert found.verdict is Verdict.DIVERGED
    first = found.origins[0]
    assert (first.step, first.phase, first.module) == (0, Phase.FORWARD, "blocks.0")
    assert first.op.endswith(".gelu")


def test_another_learning_rate_of_parts_is_named(recorded: Path) -> None:
    # given parts of parameters, and a candidate with another learning rate
    found = _compared(recorded, "fsdp1-original:api:tensors", "fsdp1-original-lr:api:sketch")

    # when they are compared, then it is named on both ranks, whose parts are different parameters
    assert found.verdict is Verdict.DIVERGED
    assert {origin.rank for origin in found.origins} == {"rank0", "rank1"}
    for origin in found.origins:
        assert (origin.step, origin.phase, origin.kind) == (0, Phase.OPTIMIZER, Kind.SETUP)
        assert "lr is 0.01 in the reference and 0.02 in the candidate" in origin.reason


def test_a_gradient_that_no_call_is_seen_to_leave_is_not_taken_as_it_comes(recorded: Path) -> None:
    # given parts whose gradients are nowhere seen to be added up, and a candidate whose hook does not divide their sum
    found = _compared(recorded, "fsdp1-original:api:tensors", "fsdp1-original-sum:api:sketch")

    # when they are compared, then what backward computed agrees, and what the optimizer gets is an origin
    assert found.verdict is Verdict.DIVERGED
    for origin in found.origins:
        assert (origin.step, origin.phase, origin.role) == (0, Phase.BACKWARD, Role.PARAM_GRAD)
        assert "between backward and optimizer" in origin.op


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
        assert "spread over ranks differently" in " ".join(found.not_compared)
        for finding in found.findings:
            known = finding.outcome is Outcome.AGREE
            assert known == (finding.pair.reference.shape == finding.pair.candidate.shape)


@pytest.mark.parametrize(
    ("name", "what"),
    [
        ("ddp-api-sketch", ["how gradients are reduced over ranks"]),
        ("fsdp2-api-sketch", ["how parameters are gathered and gradients reduced"]),
        (
            "fsdp1-api-sketch",
            ["gradients between backward and the optimizer", "the end of the training"],
        ),
        (
            "zero-api-sketch",
            ["how gradients are reduced over ranks", "updates of what other ranks own"],
        ),
    ],
)
def test_what_torch_keeps_out_of_sight_is_noted(name: str, what: list[str], recorded: Path) -> None:
    # Given a training on ranks, of whose work between them no operator tells
    for rank in _open(recorded, name).ranks.values():
        # Then its manifest says so, once
        assert [gap.what for gap in rank.manifest.not_seen] == what
