"""Compiled code shows nothing inside: what is known of the modules there, and of the buffers that they leave."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import lockstep
from lockstep.comparison import compare_recordings
from lockstep.core.finding import Comparison, Kind, Verdict
from lockstep.core.site import Phase
from lockstep.report.comparison.screen import headline

Change = Callable[["Net"], None]


class Stage(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc, self.batch, self.layer = nn.Linear(8, 8), nn.BatchNorm1d(8), nn.LayerNorm(8)
        self.drop, self.act = nn.Dropout(0.1), nn.GELU()

    def forward(self, value: Tensor) -> Tensor:
        value = F.linear(value, self.fc.weight, self.fc.bias if self._uses_bias() else None)
        return self.drop(self.act(self.layer(self.batch(value)))) + value

    def _uses_bias(self) -> bool:
        return not hasattr(self, "_without_bias")


class WrittenGelu(nn.Module):
    def forward(self, value: Tensor) -> Tensor:
        return 0.5 * value * (1.0 + torch.erf(value / math.sqrt(2.0)))


class RenamedGelu(nn.GELU):
    pass


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.enter, self.leave = nn.Linear(4, 8), nn.Linear(8, 2)
        self.stages = nn.ModuleList(Stage() for _ in range(2))

    def forward(self, value: Tensor) -> Tensor:
        value = self.enter(value)
        for stage in self.stages:
            value = stage(value)
        out: Tensor = self.leave(value)
        return out


class Runs:
    """Recordings of one training with changes, compiled or not, each made once."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._made: dict[str, Path] = {}

    def of(self, change: Change, *, compiled: bool, decay: float = 0.0) -> Path:
        name = f"{change.__name__}-{compiled}-{decay}"
        if name not in self._made:
            torch.manual_seed(0)
            torch._dynamo.reset()
            model = Net()
            batch, target = torch.randn(16, 4), torch.randn(16, 2)
            change(model)
            called = torch.compile(model, backend="aot_eager") if compiled else model
            optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
            path = self._made[name] = self._directory / name
            torch.manual_seed(1)
            with lockstep.record(path, model=model, steps="0:2"):
                for _ in range(2):
                    optimizer.zero_grad()
                    loss = F.mse_loss(called(batch), target)
                    if decay:
                        loss = loss + decay * sum(p.square().sum() for p in model.parameters())
                    loss.backward()
                    optimizer.step()
        return self._made[name]

    def against_eager(self, change: Change) -> Comparison:
        return compare_recordings(
            self.of(unchanged, compiled=False), self.of(change, compiled=True)
        )


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Runs:
    return Runs(tmp_path_factory.mktemp("runs"))


def unchanged(model: Net) -> None:
    pass


def other_momentum(model: Net) -> None:
    model.stages[1].batch.momentum = 0.01


def no_statistics(model: Net) -> None:
    model.stages[1].batch.momentum = 0.0


def other_epsilon(model: Net) -> None:
    model.stages[0].layer.eps = 1e-2


def nearly_the_same_epsilon(model: Net) -> None:
    model.stages[0].layer.eps = 1.1e-5


def with_another_class(model: Net) -> None:
    model.stages[1].act = WrittenGelu()


def with_a_class_of_the_same_results(model: Net) -> None:
    model.stages[1].act = RenamedGelu()


def other_dropout(model: Net) -> None:
    model.stages[1].drop.p = 0.3


def in_evaluation(model: Net) -> None:
    model.stages[1].drop.eval()


def without_bias(model: Net) -> None:
    model.stages[0]._without_bias = True


def doubled(model: Net) -> None:
    stage, forward = model.stages[0], model.stages[0].forward
    stage.forward = lambda value: 2.0 * forward(value)


def test_sound_compiled_code_leaves_the_same_buffers(runs: Runs) -> None:
    found = runs.against_eager(unchanged)
    assert (found.verdict, found.origins, found.setup) == (Verdict.AGREE, (), ())


def test_the_headline_says_what_was_compiled(runs: Runs) -> None:
    # Given a compiled training and the same one, eager
    found = runs.against_eager(unchanged)
    # Then the headline says that they were compared at a boundary, and whose
    boundary = "compared at the boundary of compiled code: the model in the candidate"
    assert boundary in headline(found)
    # And that of two eager ones does not
    eager = runs.of(unchanged, compiled=False), runs.of(unchanged, compiled=False)
    assert "compiled" not in headline(compare_recordings(*eager))


@pytest.mark.parametrize("weight", [1.0, 3.0])
def test_a_function_compiled_with_the_model_inside_is_compared_at_its_boundary(
    weight: float, tmp_path: Path
) -> None:
    # Given a training whose model and loss are compiled as one function, and the same one, eager
    model, batch, target = Net().eval(), torch.randn(16, 4), torch.randn(16, 2)
    start = {name: value.clone() for name, value in model.state_dict().items()}
    for name, factor in (("eager", 1.0), ("compiled", weight)):
        torch._dynamo.reset()
        model.load_state_dict(start)

        def whole(value: Tensor, wanted: Tensor, factor: float = factor) -> Tensor:
            return (
                factor * F.mse_loss(model(value), wanted)
                if factor != 1
                else F.mse_loss(model(value), wanted)
            )

        called = torch.compile(whole, backend="aot_eager") if name == "compiled" else whole
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
        with lockstep.record(tmp_path / name, steps="0:2"):
            for _ in range(2):
                optimizer.zero_grad()
                called(batch, target).backward()
                optimizer.step()
    # When they are compared
    found = compare_recordings(tmp_path / "eager", tmp_path / "compiled")
    # Then the sound one agrees, and one with another loss is seen by what leaves it
    agrees = weight == 1.0
    assert (found.verdict is Verdict.AGREE) == agrees
    assert "torch.compile(" in headline(found)


@pytest.mark.parametrize("change", [other_momentum, no_statistics])
def test_a_running_mean_of_compiled_code_is_judged(runs: Runs, change: Change) -> None:
    # Given statistics that no training forward reads, written inside of compiled code
    origin = runs.against_eager(change).origins[0]
    assert (origin.module, origin.phase) == ("stages.1.batch", Phase.FORWARD)
    assert "the buffer stages.1.batch.running_mean after it does not agree" in origin.reason
    assert "momentum is 0.1 in the reference" in origin.reason


@pytest.mark.parametrize(
    ("change", "module", "kind", "words"),
    [
        (other_epsilon, "stages.0.layer", Kind.FAULT, "eps is 1e-05 in the reference and 0.01"),
        (other_dropout, "stages.1.drop", Kind.SETUP, "p is 0.1 in the reference and 0.3"),
        (in_evaluation, "stages.1.drop", Kind.SETUP, "its mode is training in the reference"),
        (without_bias, "stages.0.fc", Kind.FAULT, "the gradient of bias is there in the reference"),
    ],
)
def test_a_module_inside_of_compiled_code_that_is_set_up_otherwise_is_named(
    runs: Runs, change: Change, module: str, kind: Kind, words: str
) -> None:
    found = runs.against_eager(change)
    assert found.verdict is Verdict.DIVERGED
    first = found.origins[0]
    assert (first.module, first.kind) == (module, kind)
    assert words in first.reason
    assert len(found.origins) == 1


def test_another_epsilon_is_no_agreement_where_the_noise_hides_it(runs: Runs) -> None:
    # Given results no further apart than noise, of two modules that are not the same
    candidate = runs.of(nearly_the_same_epsilon, compiled=True)
    found = compare_recordings(runs.of(unchanged, compiled=True), candidate)
    (origin,) = found.origins
    assert (found.verdict, origin.kind) == (Verdict.DIVERGED, Kind.SETUP)
    assert origin.module == "stages.0.layer"
    assert "eps is 1e-05 in the reference and 1.1e-05 in the candidate" in origin.reason
    assert "within its noise" in origin.reason


def test_another_class_that_nothing_is_seen_of_is_not_agreed_with(runs: Runs) -> None:
    found = runs.against_eager(with_another_class)
    assert (found.verdict, found.origins) == (Verdict.INCOMPARABLE, ())
    (gap,) = found.not_compared
    assert gap.startswith("stages.1.act inside of compiled code: a GELU in the reference and a Wr")
    # But where its inside is seen, or all is equal bit by bit, it is
    eager = [runs.of(change, compiled=False) for change in (unchanged, with_another_class)]
    assert compare_recordings(*eager).verdict is Verdict.AGREE
    assert runs.against_eager(with_a_class_of_the_same_results).verdict is Verdict.AGREE


def test_settings_that_differ_are_told_with_the_set_up(runs: Runs) -> None:
    told = [str(one) for one in runs.against_eager(other_epsilon).setup]
    assert told == ["set-up: eps of stages.0.layer 1e-05 / 0.01"]


@pytest.mark.parametrize("compiled", [False, True])
def test_where_compiled_code_hides_a_fault_the_way_to_see_it_is_told(
    runs: Runs, compiled: bool
) -> None:
    # Given a fault that no setting shows
    reference = runs.of(unchanged, compiled=compiled)
    origin = compare_recordings(reference, runs.of(doubled, compiled=True)).origins[0]
    side = "both runs" if compiled else "the candidate"
    assert f"{side} ran compiled code here, of which nothing inside is seen" in origin.reason
    assert "--compile-eager" in origin.reason
    # And nothing of that between two runs whose inside was seen
    eager = [runs.of(change, compiled=False) for change in (unchanged, doubled)]
    assert "compiled" not in compare_recordings(*eager).origins[0].reason


def test_dropouts_that_compiled_code_may_draw_otherwise_are_told(runs: Runs) -> None:
    origin = runs.against_eager(doubled).origins[0]
    assert "stages.0.drop, stages.1.drop in there may draw other random numbers" in origin.reason
    both = [runs.of(change, compiled=True) for change in (unchanged, doubled)]
    assert "draw" not in compare_recordings(*both).origins[0].reason


def test_a_gradient_that_comes_from_compiled_code_in_part_has_its_rounding(runs: Runs) -> None:
    # Given parameters that compiled code uses, and a penalty in the loop that is seen in both runs
    reference = runs.of(unchanged, compiled=False, decay=1e-3)
    found = compare_recordings(reference, runs.of(with_another_class, compiled=True, decay=1e-3))
    assert found.origins == ()
    wrong = compare_recordings(reference, runs.of(doubled, compiled=True, decay=1e-3))
    assert wrong.verdict is Verdict.DIVERGED
