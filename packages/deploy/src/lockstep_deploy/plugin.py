"""Register the verbs of this wing."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import TYPE_CHECKING

from lockstep.plugin import AskedModel, LoadedModel, Task, Verb, hookimpl

if TYPE_CHECKING:
    from pathlib import Path

    import click

    from lockstep.compare import Comparison

_VERBS = (
    ("export", "Export a model and compare the file with the original.", "export_command", "export", ("onnx", "save")),
    ("run", "Run an exported model: outputs, latency, memory.", "run_command", "run", ("infer", "predict", "bench")),
    ("quantize", "Quantise a model and measure the cost at each layer.", "quantize_command", "quantize", ("quantise",)),
    ("codegen", "Generate C99 code from a model.", "codegen_command", "codegen", ("generate", "c")),
    ("bisect-fusions", "Find the optimisation that changes a model's numbers.", "bisect_command", "bisect_fusions",
     ("fusions",)),
)  # fmt: skip
"""Name, help, file, function and guesses of each verb."""


@hookimpl
def lockstep_commands() -> list[Verb]:
    """The verbs; a verb's file is loaded when it runs."""
    return [
        Verb(name, words, Task.DEPLOY, _loader(file, function), place, guesses)
        for place, (name, words, file, function, guesses) in enumerate(_VERBS)
    ]


@hookimpl
def lockstep_load_model(asked: AskedModel) -> LoadedModel:
    """Load a model in any form that `export` takes."""
    from lockstep_deploy.model_source import loaded_model

    return loaded_model(asked)


@hookimpl
def lockstep_compare_models(
    reference: AskedModel, candidate: AskedModel, keep: Path | None
) -> Comparison:
    """Compare two models in any form that `export` takes, or files of ONNX."""
    from lockstep_deploy.given_models.comparing import compare_models

    return compare_models(reference, candidate, keep)


def _loader(file: str, function: str) -> Callable[[], click.Command]:
    def load() -> click.Command:
        found: click.Command = getattr(importlib.import_module(f"lockstep_deploy.{file}"), function)
        return found

    return load
