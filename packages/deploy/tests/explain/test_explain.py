"""`lockstep explain`: its attributions are Captum's own numbers; two models that look elsewhere are told apart."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import numpy as np
import pytest
import torch

from lockstep.core.errors import UsageError
from lockstep.hookspecs import AskedModel, LoadedModel
from lockstep.page import Card, HeatMap
from lockstep.plugins import manager
from lockstep_deploy.inputs import read_inputs
from lockstep_deploy.model_file import TensorSpec

captum = pytest.importorskip("captum.attr", reason="needs the extra `explain`")
attributing = pytest.importorskip("lockstep_deploy.explain.attributing")
comparing = pytest.importorskip("lockstep_deploy.explain.comparing")
explaining = pytest.importorskip("lockstep_deploy.explain.explain_page")
Method, explained, apart = attributing.Method, attributing.explained, comparing.apart
first_that_differs, OUTPUT = comparing.first_that_differs, comparing.OUTPUT
explain_page = explaining.explain_page
headline = pytest.importorskip("lockstep_deploy.explain.command").headline


class Images(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = torch.nn.Conv2d(3, 4, 3)
        self.relu = torch.nn.ReLU(inplace=True)
        self.head = torch.nn.Linear(4, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.relu(self.conv(x)).mean((2, 3)))


class Texts(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words = torch.nn.Embedding(20, 6)
        self.mix = torch.nn.Linear(6, 3)

    def forward(self, ids: torch.Tensor, mask: torch.Tensor) -> dict[str, torch.Tensor]:
        weighed = torch.tanh(self.words(ids)) * mask.unsqueeze(-1)
        return {"logits": self.mix(weighed.sum(1) / mask.sum(1, keepdim=True))}


@pytest.fixture
def images() -> LoadedModel:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return LoadedModel("images", Images().eval(), {"x": torch.randn(2, 3, 12, 12)})


@pytest.fixture
def texts() -> LoadedModel:
    with torch.random.fork_rng():
        torch.manual_seed(1)
        ids = torch.randint(0, 20, (2, 5))
        return LoadedModel("texts", Texts().eval(), {"ids": ids, "mask": torch.ones(2, 5).long()})


def _close(ours: np.ndarray, captums: torch.Tensor) -> None:
    assert np.abs(ours).max() > 0
    np.testing.assert_allclose(ours, captums.detach().numpy(), rtol=1e-5, atol=1e-7)


def test_four_attributions_are_captums_own_numbers(images: LoadedModel) -> None:
    """Given a network of images
    When it is explained
    Then saliency, integrated gradients, occlusion and layers are what Captum gives for the bare network."""
    found = explained(images)

    net, x = images.module, images.inputs["x"].clone().requires_grad_()
    target = net(x).argmax(1)
    values = found.parts[0].values
    window = {"sliding_window_shapes": (3, 2, 2), "strides": (3, 2, 2)}
    _close(values[Method.SALIENCY], captum.Saliency(net).attribute(x, target=target))
    _close(values[Method.INTEGRATED], captum.IntegratedGradients(net).attribute(x, target=target))
    _close(values[Method.OCCLUSION], captum.Occlusion(net).attribute(x, target=target, **window))
    assert list(found.layers) == ["conv", "head"]
    net.relu.inplace = (
        False  # or Captum gives the convolution's gradient behind the ReLU that overwrites it
    )
    for name, layer in (("conv", net.conv), ("head", net.head)):
        own = captum.LayerGradientXActivation(net, layer).attribute(x, target=target)
        _close(found.layers[name], own)
    assert found.gap < 0.01


def test_explaining_leaves_the_model_as_it_was(images: LoadedModel) -> None:
    before = {name: one.clone() for name, one in images.module.state_dict().items()}

    explained(images)

    assert images.module.relu.inplace
    assert not any(one._forward_hooks for one in images.module.modules())
    assert all(one.grad is None for one in images.module.parameters())
    for name, one in images.module.state_dict().items():
        assert torch.equal(one, before[name])


def test_whole_numbers_are_explained_by_the_embedding_that_they_enter(texts: LoadedModel) -> None:
    found = explained(texts)

    net, ids, mask = texts.module, texts.inputs["ids"], texts.inputs["mask"]
    target = net(ids, mask)["logits"].argmax(1)
    given = net.words(ids).detach().requires_grad_()
    embedded = captum.IntegratedGradients(
        lambda e, m: net.mix((torch.tanh(e) * m.unsqueeze(-1)).sum(1) / m.sum(1, keepdim=True))
    ).attribute(given, target=target, additional_forward_args=mask)
    assert [part.name for part in found.parts] == ["ids"]
    _close(found.parts[0].values[Method.INTEGRATED], embedded.sum(-1))
    assert found.parts[0].values[Method.OCCLUSION].shape == (2, 5)


def _looking_elsewhere(model: LoadedModel) -> LoadedModel:
    """The same network, whose convolution is blind to the first channel."""
    other = Images().eval()
    other.load_state_dict(model.module.state_dict())
    with torch.no_grad():
        other.conv.weight[:, 0] = 0
    return LoadedModel("blind", other, model.inputs)


def test_a_model_that_looks_elsewhere_is_told_from_its_twin(images: LoadedModel) -> None:
    """Given a network, its twin, and one that is blind to a channel
    When the attributions of each are compared with the network's
    Then those of the twin are equal, and those of the blind one part at the input."""
    first = explained(images)

    same, left = apart(first, explained(images, first.classes))
    parted, _ = apart(first, explained(_looking_elsewhere(images), first.classes))

    assert left == []
    assert all(one.rel_l2 == 0 and one.shared == 1 for one in same)
    assert min(one.cosine for one in parted if one.what == "input x") < 0.95
    assert {one.what for one in parted if one.how != OUTPUT} == {"input x", "conv", "head"}
    assert parted[0].what == "conv"


@pytest.mark.parametrize(
    ("inputs", "words"),
    [
        ({"x": torch.zeros(2, 3, 12, 12).long()}, "none of its inputs is a float"),
        ({"x": torch.zeros(2, 3, 12, 12), "y": torch.zeros(3)}, "one first axis in common"),
    ],
)
def test_inputs_that_cannot_be_explained_are_said(
    inputs: dict[str, torch.Tensor], words: str
) -> None:
    class Sums(torch.nn.Module):
        def forward(self, x: torch.Tensor, y: object = None) -> torch.Tensor:
            return x.float().sum((2, 3))

    with pytest.raises(UsageError, match=words):
        explained(LoadedModel("sums", Sums(), inputs))


def test_a_class_that_the_model_has_not_is_said(images: LoadedModel) -> None:
    with pytest.raises(UsageError, match="a class of it is a number below 5"):
        explained(images, [7, 7])


NETS = """
import torch

def table(scale=1.0):
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2))
    net[0].weight.data[:, 0] *= scale
    return net, torch.arange(12.0).reshape(3, 4) - 5

def blind():
    return table(0.0)
"""


def test_the_command_writes_a_page_and_names_where_two_models_part(
    tmp_path: Path, programs: Path
) -> None:
    (tmp_path / "nets.py").write_text(NETS)
    words = ["explain", "nets.py:table", "--against", "nets.py:blind", "--json"]

    ended = subprocess.run(
        [programs / "lockstep", *words], cwd=tmp_path, capture_output=True, text=True, timeout=300,
        env=os.environ,
    )  # fmt: skip

    assert ended.returncode == 0, ended.stderr
    found = json.loads(ended.stdout)
    assert "answers differ; the first layer whose output differs is 0 (rel L2" in found["headline"]
    assert "; the attributions part most at" in found["headline"]
    assert (found["apart"][0]["what"], found["apart"][0]["how"]) == ("0", "output")
    assert [len(one["classes"]) for one in found["models"]] == [3, 3]
    page = (tmp_path / "explanation.html").read_text()
    assert "Where the two models part" in page
    assert "Sample 0 of nets.py:blind" in page


def test_the_first_layer_whose_output_differs_stands_in_front_of_larger_differences(
    images: LoadedModel,
) -> None:
    """Given a network whose head, behind the first layer, was changed by far more than that layer
    When the two are compared
    Then the first layer is named, and rounding alone names none."""
    other, rounded = Images().eval(), Images().eval()
    for one in (other, rounded):
        one.load_state_dict(images.module.state_dict())
    with torch.no_grad():
        other.conv.weight *= 1.01
        other.head.weight *= 3
        rounded.conv.weight *= 1 + 3e-7
    first = explained(images)

    parted, _ = apart(first, explained(LoadedModel("other", other, images.inputs), first.classes))
    alike, _ = apart(first, explained(LoadedModel("near", rounded, images.inputs), first.classes))

    assert (parted[0].what, parted[0].how) == ("conv", OUTPUT)
    assert first_that_differs(parted) is parted[0]
    assert first_that_differs(alike) is None


def test_equal_attributions_part_nowhere(images: LoadedModel) -> None:
    first = explained(images)
    told = [first, explained(LoadedModel("the same", images.module, images.inputs), first.classes)]
    assert headline(told, apart(*told)[0]).endswith("; all attributions are equal")


def test_two_maps_have_one_range_of_colours_and_a_gap(images: LoadedModel) -> None:
    first = explained(images)
    page = explain_page([first, first], apart(first, first)[0], [], [], "the same")
    maps = [block for card in page.areas if isinstance(card, Card) for block in card.blocks]
    heat = next(one for one in maps if isinstance(one, HeatMap))
    assert heat.about.startswith("left of images, right of images, the second, in one")
    shown = np.asarray(heat.values).reshape(heat.rows, heat.columns)
    wide = images.inputs["x"].shape[-1]
    assert np.array_equal(shown[:, :wide], shown[:, -wide:])
    assert np.isnan(shown[:, wide:-wide]).all()


def test_the_only_array_of_a_file_is_the_only_input_by_whatever_name(tmp_path: Path) -> None:
    array = np.ones((2, 3), np.float32)
    np.savez(tmp_path / "one.npz", pictures=array)
    np.savez(tmp_path / "two.npz", pictures=array, labels=array)
    signature = [TensorSpec("x", "float32", (2, 3))]
    assert list(read_inputs([str(tmp_path / "one.npz")], signature)) == ["x"]
    with pytest.raises(UsageError, match="which the model does not take"):
        read_inputs([str(tmp_path / "two.npz")], signature)
    with pytest.raises(UsageError, match="which the model does not take"):
        read_inputs(["pictures:float32[2,3]"], signature)


def test_an_explanation_holds_a_score_for_each_sample(images: LoadedModel) -> None:
    found = explained(images, [1, 2])

    assert found.scores.shape == (2, 5)
    assert found.classes == (1, 2)


@pytest.mark.exhaustive
def test_an_exported_program_is_explained_like_its_module(
    images: LoadedModel, tmp_path: Path
) -> None:
    """Given a program, which takes as many samples as it was exported with
    When it is loaded and explained
    Then its inputs' attributions are the module's, and it has no layers."""
    file = tmp_path / "program.pt2"
    torch.export.save(torch.export.export(images.module, tuple(images.inputs.values())), file)
    program = manager().hook.lockstep_load_model(asked=AskedModel(str(file)))

    ours, theirs = explained(images), explained(program)

    for how in Method:
        np.testing.assert_allclose(
            theirs.parts[0].values[how], ours.parts[0].values[how], rtol=1e-4, atol=1e-6
        )
    assert theirs.layers == {}


def test_a_model_that_fails_is_said_in_a_sentence() -> None:
    class Fails(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            raise ValueError("no such table")

    with pytest.raises(UsageError, match=r"fails \(ValueError: no such table\)"):
        explained(LoadedModel("fails", Fails(), {"x": torch.ones(2, 3)}))
