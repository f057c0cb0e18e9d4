"""Two runs that are set up otherwise: said once, in those words, at the first place concerned."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from small_training import Loop, against_sound, compared, recorded
from torch import Tensor, nn
from torch.nn import functional

import lockstep
from lockstep.core.finding import Comparison, Kind, Origin, SetupDifference, Verdict
from lockstep.core.site import Phase
from lockstep.report.comparison.json import comparison_json
from lockstep.report.comparison.screen import render_comparison


def only_origin(found: Comparison) -> Origin:
    """The one origin, of the kind that this file is about."""
    assert [origin.kind for origin in found.origins] == [Kind.SETUP]
    text = " ".join(render_comparison(found).plain.split())
    assert text.count("set-up differs: ") == 1
    return found.origins[0]


def test_frozen_parameters() -> None:
    # Given a candidate that freezes a block
    found = against_sound(Loop(frozen="blocks.0", steps=3))
    # Then its parameters are the one origin, and neither clipping nor the later steps are others
    origin = only_origin(found)
    assert (origin.phase, origin.module) == (Phase.BACKWARD, "blocks.0.fc")
    assert (
        "frozen in the candidate (requires_grad), so only the reference computes" in origin.reason
    )
    assert any(one.name == "frozen parameters" for one in found.setup)


def test_all_frozen_but_the_head_is_no_cut_of_the_graph() -> None:
    # Given a candidate that trains its last layer alone, so that no gradient is sent on from there
    found = against_sound(Loop(frozen=("enter", "blocks"), steps=2))
    # Then it is said to be frozen, and nothing is said to be cut
    assert "frozen in the candidate (requires_grad)" in only_origin(found).reason


def test_the_same_parameters_frozen_in_both_say_nothing() -> None:
    frozen = Loop(frozen="blocks.0", steps=2)
    found = compared(frozen, replace(frozen, lr=2e-2))
    assert "frozen" not in render_comparison(found).plain


def test_tied_otherwise() -> None:
    # Given a candidate whose two layers share a weight, which are equal at first in the reference
    found = against_sound(Loop(tied=True))
    # Then that is said, by the names of both
    origin = only_origin(found)
    assert "blocks.1.fc.weight is blocks.0.fc.weight itself in the candidate" in origin.reason
    assert "one of its own in the reference" in origin.reason
    assert "other model" not in render_comparison(found).plain


class Tied(nn.Module):
    """A head that shares its weight with the embedding, or has an equal one of its own."""

    def __init__(self, *, tied: bool) -> None:
        super().__init__()
        self.embed, self.body, self.norm = nn.Embedding(11, 8), nn.Linear(8, 8), nn.LayerNorm(8)
        self.head = nn.Linear(8, 11, bias=False)
        with torch.no_grad():
            self.head.weight.copy_(self.embed.weight)
        if tied:
            self.head.weight = self.embed.weight

    def forward(self, tokens: Tensor) -> Tensor:
        hidden = functional.gelu(self.body(self.embed(tokens)))
        out: Tensor = self.head(self.norm(hidden))
        return out


@pytest.fixture(scope="module")
def heads(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Two steps with a head that is tied, and with one that is not."""
    directory = tmp_path_factory.mktemp("heads")
    for name in ("tied", "untied"):
        torch.manual_seed(0)
        model, tokens = Tied(tied=name == "tied"), torch.randint(11, (2, 4, 7))
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        with lockstep.record(directory / name, model=model, steps="0:2", save="tensors"):
            for batch in tokens:
                optimizer.zero_grad()
                scores = model(batch[:, :-1]).flatten(0, 1)
                functional.cross_entropy(scores, batch[:, 1:].flatten()).backward()
                optimizer.step()
    return {name: directory / name for name in ("tied", "untied")}


@pytest.mark.parametrize("whole", [False, True], ids=["sketch", "tensors"])
@pytest.mark.parametrize(
    ("left", "right"), [("tied", "untied"), ("untied", "tied")], ids=["untied", "tied"]
)
def test_a_head_that_one_run_ties_to_the_embedding(
    heads: dict[str, Path], left: str, right: str, whole: bool
) -> None:
    # Given equal results at first, and one parameter more in one run
    found = lockstep.compare_recordings(heads[left], heads[right], read_tensors=whole)
    # Then the one origin says which run ties, and what occurs in one run only is said too
    origin = only_origin(found)
    ties, owns = ("reference", "candidate") if left == "tied" else ("candidate", "reference")
    assert (found.verdict, origin.tensor) == (Verdict.DIVERGED, "head.weight")
    assert (
        f"head.weight is embed.weight itself in the {ties}, and one of its own in the {owns}"
        in origin.reason
    )
    told = "set-up: tied head.weight is embed.weight / none"
    if left == "untied":
        told = "set-up: tied none / head.weight is embed.weight"
    assert [str(one) for one in found.setup] == [told]
    assert found.not_compared == (
        f"the parameter head.weight occurs only in the {owns}, first at step 0",
        f"the gradient of head.weight occurs only in the {owns}, first at step 0",
    )


def test_other_dropout() -> None:
    origin = only_origin(against_sound(Loop("other dropout")))
    assert (origin.phase, origin.module) == (Phase.FORWARD, "blocks.1.drop")
    assert "p is 0.1 in the reference and 0.3 in the candidate" in origin.reason
    assert "random stream" not in origin.reason


def test_evaluation_mode() -> None:
    found = against_sound(Loop(training=False))
    origin = only_origin(found)
    assert origin.module == "blocks.0.drop"
    assert "training is true in the reference and false in the candidate" in origin.reason
    assert any(one.name == "in training mode only" for one in found.setup)


def test_another_optimizer_and_other_groups() -> None:
    origin = only_origin(against_sound(Loop(optimizer="Adam")))
    assert (
        "torch.optim.AdamW in the reference and torch.optim.Adam in the candidate" in origin.reason
    )
    origin = only_origin(against_sound(Loop(optimizer="SGD")))
    assert (
        "torch.optim.AdamW in the reference and torch.optim.SGD in the candidate" in origin.reason
    )
    origin = only_origin(against_sound(Loop(groups=True)))
    assert "the reference has 1 parameter groups, the candidate 2" in origin.reason
    assert "weight_decay is 0.01 in the reference and 0 in the candidate" in origin.reason


@pytest.fixture
def other_threads() -> SetupDifference:
    """What one more thread reads like."""
    now = torch.get_num_threads()
    return SetupDifference("threads", str(now), str(now + 1))


def test_what_the_processes_were_started_with_is_told_in_a_line_each(
    other_threads: SetupDifference, tmp_path: Path
) -> None:
    # Given the same training with another count of threads
    torch.set_num_threads(int(other_threads.candidate))
    try:
        with lockstep.record(tmp_path / "run", steps="0:2"):
            Loop().run()
    finally:
        torch.set_num_threads(int(other_threads.reference))
    found = lockstep.compare_recordings(recorded(Loop()), tmp_path / "run")
    # Then one line says so, which is no origin by itself
    assert found.origins == ()
    assert found.setup == (other_threads,)
    assert f"\n{other_threads}\n" in render_comparison(found).plain + "\n"
    assert comparison_json(found)["setup"] == [
        {
            "name": "threads",
            "reference": other_threads.reference,
            "candidate": other_threads.candidate,
            "setting": "",
        }
    ]


def test_nothing_is_told_where_both_were_started_alike() -> None:
    assert against_sound(Loop(lr=2e-2)).setup == ()


def _allow_tf32(on: bool) -> None:
    torch.backends.cuda.matmul.allow_tf32 = on


def _allow_tf32_in_convolutions(on: bool) -> None:
    torch.backends.cudnn.allow_tf32 = not on


def _tf32_by_its_new_name(on: bool) -> None:
    torch.backends.cuda.matmul.fp32_precision = "tf32" if on else "ieee"


FLAGS: dict[str, tuple[Callable[[bool], None], str]] = {
    "allow_tf32": (
        _allow_tf32,
        "set-up: TF32 matmul=False cudnn=True / matmul=True cudnn=True",
    ),
    "allow_tf32 of cuDNN": (
        _allow_tf32_in_convolutions,
        "set-up: TF32 matmul=False cudnn=True / matmul=False cudnn=False",
    ),
    "fp32_precision": (
        _tf32_by_its_new_name,
        "set-up: TF32 matmul=False cudnn=True / matmul=mixed cudnn=True",
    ),
    "use_deterministic_algorithms": (
        torch.use_deterministic_algorithms,
        "set-up: deterministic algorithms False / True",
    ),
}


@pytest.mark.parametrize("name", FLAGS)
def test_flags_of_torch_are_told_in_a_line_each(name: str, tmp_path: Path) -> None:
    # Given the same training under a flag that changes nothing on this device
    switch, line = FLAGS[name]
    switch(True)
    try:
        with lockstep.record(tmp_path / "run", steps="0:2"):
            Loop().run()
    finally:
        switch(False)
    found = lockstep.compare_recordings(recorded(Loop()), tmp_path / "run")
    # Then one line says so. Two names of one switch are two lines: the precision of matmuls is set with TF32
    told = [str(one) for one in found.setup if one.name != "float32 matmul precision"]
    assert told == [line]
    assert (found.verdict, found.origins) == (Verdict.AGREE, ())
