"""Trainings whose loop is a library's: Trainer and Lightning."""

from __future__ import annotations

import tempfile
import warnings
from typing import Any

import torch
from architectures import Batch
from torch import Tensor
from torch.utils.data import DataLoader, SequentialSampler

from frameworks.script import STEPS, Outcome, Script


def _rows(script: Script) -> list[Batch]:
    """All rows of all batches, one after the other, as a data set has them."""
    rows: list[Batch] = []
    for micro_batches in script.load(script.batches):
        for batch in micro_batches:
            count = len(next(iter(batch.values())))
            rows += [{name: item[row] for name, item in batch.items()} for row in range(count)]
    return rows


# ----------------------------------------------------------------------------------------- Trainer


def train_with_trainer(script: Script) -> Outcome:
    """Train with transformers' Trainer."""
    from transformers import Trainer, TrainerCallback, TrainingArguments

    losses: list[Tensor] = []

    class Told(Trainer):
        """Keeps the losses, and the order of the rows."""

        def training_step(self, *args: Any, **kwargs: Any) -> Tensor:
            loss = super().training_step(*args, **kwargs)
            losses.append(loss)
            for edit in script.after_backward:
                edit(self.model)
            return loss

        def _get_train_sampler(self, *args: Any, **kwargs: Any) -> SequentialSampler:
            return SequentialSampler(self.train_dataset)

    class Seeded(TrainerCallback):
        """Every step draws the same random numbers whatever was drawn before."""

        def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            torch.manual_seed(script.seed + state.global_step)
            for edit in script.before_step:
                edit(kwargs["model"])

    bare: Any = script.made()
    # Else Trainer leaves it to the model to divide by the labels of all micro-batches, which not every one does.
    bare.accepts_loss_kwargs = script.counted
    model = script.wrapped(bare)
    with tempfile.TemporaryDirectory() as directory:
        options = dict(script.options)
        first, second = options.pop("betas", (0.9, 0.999))
        arguments = TrainingArguments(
            directory,
            per_device_train_batch_size=script.subject.rows,
            gradient_accumulation_steps=script.accumulate,
            max_steps=STEPS,
            learning_rate=options["lr"],
            weight_decay=options["weight_decay"],
            adam_beta1=first,
            adam_beta2=second,
            adam_epsilon=options.get("eps", 1e-8),
            max_grad_norm=script.clip_norm or 0.0,
            **{
                "optim": "adamw_torch", "lr_scheduler_type": "linear", "bf16": script.autocast,
                "use_cpu": True, "save_strategy": "no", "logging_strategy": "no", "report_to": "none",
                "disable_tqdm": True, "remove_unused_columns": False,
                "dataloader_pin_memory": False, **script.arguments,
            },
        )  # fmt: skip
        trainer = Told(model, arguments, train_dataset=_rows(script), callbacks=[Seeded()])
        trainer.train()
    return Outcome.of(losses, model)


# --------------------------------------------------------------------------------------- Lightning


def train_with_lightning(script: Script) -> Outcome:
    """Train with Lightning's Trainer, optimization left to it."""
    import lightning

    losses: list[Tensor] = []

    class Trained(lightning.LightningModule):
        """The model as an attribute, as Lightning has it."""

        def __init__(self) -> None:
            super().__init__()
            self.model = script.wrapped(script.made())

        def on_train_batch_start(self, batch: Batch, number: int) -> None:
            if number % script.accumulate == 0:
                torch.manual_seed(script.seed + number // script.accumulate)
                for edit in script.before_step:
                    edit(self.model)

        def training_step(self, batch: Batch, number: int) -> Tensor:
            loss = script.loss(self.model(**batch).loss)
            losses.append(loss)
            return loss

        def on_after_backward(self) -> None:
            for edit in script.after_backward:
                edit(self.model)

        def configure_optimizers(self) -> dict[str, Any]:
            optimizer = script.make_optimizer(self.model)
            scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, script.factor)
            return {
                "optimizer": optimizer,
                "lr_scheduler": {"scheduler": scheduler, "interval": "step"},
            }

    trained = Trained()
    loader = DataLoader(_rows(script), batch_size=script.subject.rows)  # type: ignore[arg-type]
    with tempfile.TemporaryDirectory() as directory, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        trainer = lightning.Trainer(
            accelerator="cpu", devices=1, max_steps=STEPS, logger=False, enable_checkpointing=False,
            enable_progress_bar=False, enable_model_summary=False, default_root_dir=directory,
            accumulate_grad_batches=script.accumulate, gradient_clip_val=script.clip_norm,
            precision="bf16-mixed" if script.autocast else "32-true",
        )  # fmt: skip
        trainer.fit(trained, loader)
    return Outcome.of(losses, trained.model)


__all__ = ["train_with_lightning", "train_with_trainer"]
