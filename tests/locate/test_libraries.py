"""Trainings whose loop is a library's: Trainer, accelerate, Lightning, and a model that PEFT has put adapters into."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

import lockstep
from lockstep.core.finding import Comparison, Verdict
from lockstep.core.site import Phase, Role
from lockstep.store.reader import RankRecording, open_recording

ROWS, STEPS, TOKENS = 4, 3, 7
Data = list[dict[str, Tensor]]
Way = Callable[[nn.Module, Data, Path], nn.Module]

pytestmark = pytest.mark.filterwarnings(
    "ignore::UserWarning", "ignore::FutureWarning", "ignore::DeprecationWarning"
)
"""Theirs: of each other, and of hardware that is not here."""


def with_trainer(model: nn.Module, data: Data, directory: Path) -> nn.Module:
    from transformers import Trainer, TrainingArguments

    arguments = TrainingArguments(
        str(directory), per_device_train_batch_size=ROWS, max_steps=STEPS, learning_rate=1e-3,
        use_cpu=True, save_strategy="no", logging_strategy="no", report_to="none",
        disable_tqdm=True, dataloader_pin_memory=False,
    )  # fmt: skip
    Trainer(cast(Any, model), arguments, train_dataset=cast(Any, data)).train()
    return model


def with_accelerate(model: nn.Module, data: Data, directory: Path) -> nn.Module:
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True)
    made = torch.optim.AdamW(model.parameters(), lr=1e-3)
    prepared, optimizer, loader = accelerator.prepare(model, made, loader_of(data))
    for batch in loader:
        with accelerator.accumulate(prepared):
            accelerator.backward(prepared(**batch).loss)
            accelerator.clip_grad_norm_(prepared.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
    return model


def with_lightning(model: nn.Module, data: Data, directory: Path) -> nn.Module:
    import lightning

    class Lit(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def training_step(self, batch: dict[str, Tensor], number: int) -> Tensor:
            loss: Tensor = self.model(**batch).loss
            return loss

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.AdamW(self.parameters(), lr=1e-3)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        trainer = lightning.Trainer(
            accelerator="cpu", devices=1, max_steps=STEPS, logger=False, enable_checkpointing=False,
            enable_progress_bar=False, enable_model_summary=False, default_root_dir=directory,
        )  # fmt: skip
        trainer.fit(lit := Lit(), loader_of(data))
    return lit


def with_adapters(model: nn.Module, data: Data, directory: Path) -> nn.Module:
    from peft import LoraConfig, get_peft_model

    config = LoraConfig(r=4, target_modules=["query", "value"], init_lora_weights=False)
    adapted: nn.Module = get_peft_model(cast(Any, model), config)
    trained = [item for item in adapted.parameters() if item.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=1e-3)
    for batch in loader_of(data):
        optimizer.zero_grad()
        adapted(**batch).loss.backward()
        optimizer.step()
    return adapted


WAYS = [with_trainer, with_accelerate, with_lightning, with_adapters]


def loader_of(data: Data) -> DataLoader[dict[str, Tensor]]:
    return DataLoader(cast(Any, data), batch_size=ROWS)


def batches(change: str) -> Data:
    """Sentences of several lengths, padded."""
    generator = torch.Generator().manual_seed(3)
    data = []
    for _ in range(ROWS * STEPS):
        length = int(torch.randint(3, TOKENS, (), generator=generator))
        ids = torch.randint(1, 50, (TOKENS,), generator=generator)
        mask = (torch.arange(TOKENS) < length).long()
        label = torch.randint(3, (), generator=generator)
        if change == "mask":
            mask = mask.roll(1)
        if change == "labels":
            label = (label + 1) % 3
        data.append({"input_ids": ids * (ids > 0), "attention_mask": mask, "labels": label})
    return data


def train(way: Way, change: str, directory: Path) -> nn.Module:
    """Train a small BERT from scratch; `change` is what the candidate does otherwise."""
    from transformers import BertConfig, BertForSequenceClassification

    config = BertConfig(
        vocab_size=50, hidden_size=16, num_hidden_layers=2, num_attention_heads=2, num_labels=3,
        intermediate_size=32, max_position_embeddings=TOKENS, attn_implementation="eager",
        hidden_act="gelu_new" if change == "activation" else "gelu",
    )  # fmt: skip
    if change == "attention":
        config._attn_implementation = "sdpa"
    torch.manual_seed(0)
    return way(BertForSequenceClassification(config), batches(change), directory)


class Runs:
    """Each training recorded once."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._models: dict[Path, nn.Module] = {}

    def of(self, way: Way, change: str = "") -> Path:
        """Where a training was recorded."""
        target = self._directory / f"{way.__name__}-{change}"
        if target not in self._models:
            with lockstep.record(target, steps=f"0:{STEPS}"):
                self._models[target] = train(way, change, self._directory / "out")
        return target

    def model(self, way: Way) -> nn.Module:
        """The model that it trained."""
        return self._models[self.of(way)]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Runs:
    return Runs(tmp_path_factory.mktemp("libraries"))


def compared(runs: Runs, way: Way, change: str) -> Comparison:
    return lockstep.compare_recordings(runs.of(way), runs.of(way, change))


@pytest.mark.sampled(2)
@pytest.mark.parametrize("way", WAYS)
def test_recording_changes_no_bit(runs: Runs, way: Way, tmp_path: Path) -> None:
    # Given a training that was recorded, and the same bare
    recorded, bare = runs.model(way), train(way, "", tmp_path)
    # Then both end with the same parameters
    for (name, one), other in zip(recorded.named_parameters(), bare.parameters(), strict=True):
        assert torch.equal(one, other), name


@pytest.mark.parametrize("way", WAYS)
def test_parameters_have_the_model_s_own_names_and_are_all_recorded(runs: Runs, way: Way) -> None:
    # Given what the script's own model calls what it trains
    named = dict(runs.model(way).named_parameters())
    rank = open_recording(runs.of(way)).ranks["rank0"]
    assert [step.complete for step in rank.manifest.steps] == [True] * STEPS
    # Then a recording has the same names, whatever the library has wrapped around it
    assert rank.manifest.trainable == {name: one.requires_grad for name, one in named.items()}
    # And each of them has a gradient and an update in every step
    trained = sorted(name for name, one in named.items() if one.requires_grad)
    for step in range(STEPS):
        assert names_of(rank, step, Role.PARAM_GRAD) == trained
        assert names_of(rank, step, Role.PARAM_AFTER) == trained


def names_of(rank: RankRecording, step: int, role: Role) -> list[str]:
    calls = rank.calls(step)
    return sorted({record.name for call in calls for record in call.records if record.role is role})


@pytest.mark.sampled(2)
@pytest.mark.parametrize("way", WAYS)
def test_another_kernel_of_attention_agrees(runs: Runs, way: Way) -> None:
    # Given the same training with attention in one operator, whose padding is masked otherwise
    found = compared(runs, way, "attention")
    # Then nobody is accused, and nothing was left out
    assert (found.verdict, found.origins, found.not_compared) == (Verdict.AGREE, (), ())


@pytest.mark.parametrize("way", WAYS)
def test_another_activation_is_named_in_the_model(runs: Runs, way: Way) -> None:
    # Given a model with the tanh form of gelu
    found = compared(runs, way, "activation")
    # Then the module is named, as the model itself calls it
    origin, *_ = found.origins
    assert found.verdict is Verdict.DIVERGED
    assert origin.module.endswith("encoder.layer.0.intermediate.intermediate_act_fn")
    assert origin.module in dict(runs.model(way).named_modules())


@pytest.mark.parametrize(("change", "argument"), [("mask", "attention_mask"), ("labels", "labels")])
def test_what_the_batch_has_otherwise_is_data(runs: Runs, change: str, argument: str) -> None:
    # Given a mask that is off by one token, or labels that are
    found = compared(runs, with_trainer, change)
    # Then the batch is named, by the argument, and no operator
    origin, *others = found.origins
    assert (found.verdict, origin.phase, others) == (Verdict.DIVERGED, Phase.DATA, [])
    assert origin.tensor.startswith(f"kwargs.{argument} of ")
    assert origin.reason.startswith(f"the batch (kwargs.{argument} of ")
