"""Folders as Hugging Face writes them: configuration and weights, in one file or several."""

import json
import shutil

import pytest
import torch
import transformers

from lockstep.core.errors import UsageError
from lockstep_deploy.model_source import model_source

SIZES = {"vocab_size": 40, "n_embd": 8, "n_layer": 1, "n_head": 2, "n_positions": 16}


def net():
    return transformers.GPT2LMHeadModel(transformers.GPT2Config(**SIZES))


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """Folders with one file of weights, several, and a pickled one; and the weights."""
    torch.manual_seed(2)
    model, folder = net(), tmp_path_factory.mktemp("saved")
    model.save_pretrained(folder / "one")
    model.save_pretrained(folder / "several", max_shard_size="2KB")
    shutil.copytree(folder / "one", folder / "pickled")
    (folder / "pickled" / "model.safetensors").unlink()
    torch.save(model.state_dict(), folder / "pickled" / "pytorch_model.bin")
    return folder, model.state_dict()


@pytest.fixture
def folder(saved, tmp_path):
    """A folder to change."""
    return shutil.copytree(saved[0] / "one", tmp_path / "changed")


@pytest.mark.parametrize("name", ["one", "several", "pickled"])
@pytest.mark.parametrize("factory", [None, f"{__file__}:net"])
def test_a_folder_gives_its_module_and_inputs(name, factory, saved):
    source = model_source(str(saved[0] / name), factory=factory)
    state = source.module.state_dict()
    assert all(torch.equal(one, state[key]) for key, one in saved[1].items())
    assert not source.module.training
    if factory is None:
        assert source.inputs["input_ids"].max() < SIZES["vocab_size"]
        assert "use_cache" in " ".join(source.said)


def test_an_image_model_is_given_an_image_of_its_size(tmp_path):
    config = transformers.ViTConfig(
        hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=8,
        image_size=8, patch_size=4, num_labels=3,
    )  # fmt: skip
    transformers.ViTForImageClassification(config).save_pretrained(tmp_path / "vit")
    source = model_source(str(tmp_path / "vit"))
    assert list(source.inputs["pixel_values"].shape) == [1, 3, 8, 8]
    assert len(source.facts["class_names"]) == 3


def without_a_weight(folder):
    (folder / "model.safetensors").unlink()
    state = {key: one for key, one in net().state_dict().items() if "ln_f" not in key}
    torch.save(state, folder / "pytorch_model.bin")


def with_own_code(folder):
    edited(folder, auto_map={"AutoModel": "code.Net"})


def of_unknown_architecture(folder):
    edited(folder, architectures=["NobodyKnows"])


def with_a_file_from_outside(folder):
    (folder / "model.safetensors").unlink()
    index = {"weight_map": {"transformer.ln_f.bias": "../../other.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))


def edited(folder, **changes):
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


@pytest.mark.parametrize(
    ("damage", "factory", "words"),
    [
        (without_a_weight, None, "ln_f.*which transformers fills at random"),
        (without_a_weight, f"{__file__}:net", "it lacks transformer.ln_f"),
        (with_own_code, None, "names code in the folder; read it, and give --trust"),
        (of_unknown_architecture, None, "NobodyKnows, which transformers .* does not have"),
        (with_a_file_from_outside, f"{__file__}:net", "lists ../../other.safetensors"),
        (
            lambda one: (one / "config.json").unlink(),
            None,
            "not a recording and has no config.json",
        ),
        (lambda one: (one / "config.json").write_text("[1"), None, "cannot be read as JSON"),
        (lambda one: (one / "model.safetensors").write_bytes(b"no"), None, "cannot load GPT2"),
        (lambda one: (one / "model.safetensors").unlink(), f"{__file__}:net", "holds no weights"),
    ],
)
def test_a_folder_that_is_not_whole_is_refused_with_what_to_do(damage, factory, words, folder):
    damage(folder)
    with pytest.raises(UsageError, match=words):
        model_source(str(folder), factory=factory)
