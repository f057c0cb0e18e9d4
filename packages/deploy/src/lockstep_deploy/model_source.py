"""The MODEL of an export: a function, a checkpoint with its factory, a folder, a recording, or an exported program."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy.typing as npt
import torch
from torch.export import ExportedProgram

from lockstep.errors import UsageError
from lockstep.plugin import AskedModel, LoadedModel
from lockstep.terminal import listed
from lockstep_deploy.calls import tensor_of
from lockstep_deploy.checkpoints import SUFFIXES, load_checkpoint
from lockstep_deploy.engines import first_line
from lockstep_deploy.free_axes import Axes
from lockstep_deploy.inputs import AnyName, input_sets
from lockstep_deploy.pretrained import pretrained
from lockstep_deploy.program_run import given_to
from lockstep_deploy.recorded_model import RecordedModel
from lockstep_deploy.user_modules import module_at


@dataclass
class ModelSource:
    """A model to export.

    name: As it was given.
    module: Set to evaluation; None where a program was given.
    program: A program that was exported; None where a module was given.
    inputs: What it is called with, by the names of its arguments; empty where the factory gives none.
    facts: What stands in the exported file's metadata: class names, preprocessing.
    said: What was done to it, in a sentence each.
    axes: Free axes as its program has them.
    more: Inputs besides, that it is proven on too.
    """

    name: str
    module: torch.nn.Module | None = None
    program: ExportedProgram | None = None
    inputs: dict[str, torch.Tensor] = field(default_factory=dict)
    facts: dict[str, Any] = field(default_factory=dict)
    said: list[str] = field(default_factory=list)
    axes: Axes = field(default_factory=dict)
    more: list[dict[str, torch.Tensor]] = field(default_factory=list)

    def to_half(self, tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Make the module one of float16; returns the inputs as it takes them then.

        Raises UsageError if a program was given, whose dtypes are fixed.
        """
        if self.module is None:
            raise UsageError(
                f"{self.name}: --half needs a module; the dtypes of a program are fixed"
            )
        self.module.half()
        said = "converted to float16; the original that it is held against is in float16 too"
        self.said += [] if said in self.said else [said]
        return {
            name: one.half() if one.is_floating_point() else one for name, one in tensors.items()
        }

    def tensors(self, arrays: Mapping[str, npt.NDArray[Any]]) -> dict[str, torch.Tensor]:
        """Arrays as tensors of their own."""
        return {name: tensor_of(array) for name, array in arrays.items()}

    def bound(self, arrays: Mapping[str, npt.NDArray[Any]]) -> dict[str, torch.Tensor]:
        """Arrays as the model is called with them: all that it takes, by name, in its order.

        Raises UsageError if they do not fit what it takes.
        """
        tensors = self.tensors(arrays)
        if self.module is not None:
            return bound(self.module, _as_only_input(self.module, tensors))
        if len(tensors) == len(self.inputs) == 1 and isinstance(next(iter(tensors)), AnyName):
            return dict(zip(self.inputs, tensors.values(), strict=True))
        missing = [name for name in self.inputs if name not in tensors]
        if missing or len(tensors) > len(self.inputs):
            raise UsageError(
                f"--inputs has {listed(list(tensors))}; {self.name} takes {listed(list(self.inputs))}"
            )
        return {name: tensors[name] for name in self.inputs}


def model_source(
    given: str, *, factory: str | None = None, weights: str = "auto", trusted: bool = False
) -> ModelSource:
    """The model that an argument names.

    given: `pkg.mod:function` or `file.py:function`, a checkpoint (.pth, .pth.tar, .pt), a folder with weights and their
        `config.json`, a recording, or a .pt2.
    factory: For a checkpoint, a recording, or a folder: the function that makes its module.
    weights: Which weights of a checkpoint that has two sorts: "auto" (averaged ones where there are some), "ema" or
        "plain".
    trusted: Whether a checkpoint may run code as it is read: one that holds objects besides weights.

    Raises UsageError if it is not there, makes no module, or the checkpoint has other names than the module.
    """
    path = Path(given)
    if path.suffix == ".pt2":
        return _program_file(path)
    if path.is_dir():
        source = _of_folder(path, factory, weights, trusted)
    elif path.suffix in SUFFIXES:
        if factory is None:
            raise UsageError(
                f"{given}: a checkpoint holds weights alone; give what makes its module with --factory pkg.mod:function"
            )
        source = _loaded(path, factory, weights, trusted)
    elif ":" in given:
        source = made_by(given)
    else:
        raise UsageError(
            f"{given}: give pkg.mod:function, file.py:function, a checkpoint (.pth) with --factory, a folder of Hugging"
            " Face, a recording, or a .pt2"
        )
    _to_evaluation(source)
    return source


class _CalledByName(torch.nn.Module):
    """A program that is called by the names of all its inputs, as a module is."""

    def __init__(self, program: ExportedProgram, names: list[str]) -> None:
        super().__init__()
        self.program = program.module()
        self._in_order = names[: len((program.example_inputs or ((), {}))[0])]

    def forward(self, **inputs: torch.Tensor) -> Any:
        """Run the program."""
        args = [inputs.pop(name) for name in self._in_order]
        return self.program(*args, **inputs)


def loaded_model(asked: AskedModel) -> LoadedModel:
    """The model and the first set of inputs that a verb of a different wing asks for.

    Raises UsageError as `model_source` and `input_sets` do, and if there are no inputs.
    """
    source = model_source(
        asked.given, factory=asked.factory, weights=asked.weights, trusted=asked.trusted
    )
    inputs = source.inputs
    if asked.inputs:
        inputs = source.bound(input_sets(asked.inputs, seed=asked.seed)[0])
    if not inputs:
        raise UsageError(
            f"{source.name}: gives no inputs; say them with --inputs, as in x:float32[1,3,32,32]"
        )
    module = source.module
    if module is None:
        assert source.program is not None
        module = _CalledByName(source.program, list(inputs))
    names = tuple(map(str, source.facts.get("class_names", ())))
    return LoadedModel(source.name, module, inputs, names, tuple(source.said))


def _of_folder(path: Path, factory: str | None, weights: str, trusted: bool) -> ModelSource:
    """The model of a recording, or of a folder with weights and what makes their module."""
    if (path / "manifest.json").is_file():
        recorded = RecordedModel(path)
        if factory is None:
            raise UsageError(
                f"{path}: a recording holds what a model computed, and not its code; give what makes its module, as in"
                f" --factory {recorded.suggested_factory}"
            )
        source = made_by(factory)
        assert source.module is not None
        found = recorded.fill(source.module, source.said)
        batches = [bound(source.module, one) for one in found]
        source.name = str(path)
        source.inputs, source.more = (batches[0], batches[1:]) if batches else (source.inputs, [])
        return source
    if factory is not None:
        return _loaded(path, factory, weights, trusted)
    source = ModelSource(str(path))
    source.module, inputs = pretrained(path, trusted, source.said)
    source.inputs = bound(source.module, inputs) if inputs else {}
    source.facts.update(_class_names(source.module))
    return source


def _loaded(path: Path, factory: str, weights: str, trusted: bool) -> ModelSource:
    source = made_by(factory)
    assert source.module is not None
    load_checkpoint(source.module, path, weights, trusted, source.said)
    source.name = str(path)
    return source


def _as_only_input(module: torch.nn.Module, tensors: dict[str, torch.Tensor]) -> Any:
    """A file's only tensor as the one input that a module must have; other tensors by their names."""
    if not isinstance(next(iter(tensors), ""), AnyName):
        return tensors
    taken = inspect.signature(module.forward).parameters
    needed = [one for one in taken.values() if one.default is one.empty]
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    if len(tensors) == len(needed) == 1 and needed[0].kind in positional:
        return tensors if tensors.keys() <= taken.keys() else tuple(tensors.values())
    return tensors


def bound(module: torch.nn.Module, inputs: Any) -> dict[str, torch.Tensor]:
    """Inputs as a factory gives them (a tensor, a tuple, a mapping), by the names of the module's arguments.

    Raises UsageError if they do not fit the signature of `forward`, or one is no tensor.
    """
    signature = inspect.signature(module.forward)
    args, kwargs = ((), dict(inputs)) if isinstance(inputs, Mapping) else (_tuple(inputs), {})
    try:
        named = dict(signature.bind(*args, **kwargs).arguments)
    except TypeError as error:
        raise UsageError(f"the inputs do not fit forward{signature}: {error}") from error
    for name, parameter in signature.parameters.items():
        if parameter.kind is parameter.VAR_POSITIONAL and name in named:
            raise UsageError(
                f"forward takes *{name}, which has no names to export; give a module whose forward names its inputs"
            )
        if parameter.kind is parameter.VAR_KEYWORD:
            named.update(named.pop(name, {}))
    odd = [name for name, value in named.items() if not isinstance(value, torch.Tensor)]
    if odd:
        raise UsageError(
            f"input {odd[0]} is a {type(named[odd[0]]).__name__}, not a tensor; let the factory's module fix it"
        )
    return named


def _tuple(inputs: Any) -> tuple[Any, ...]:
    return tuple(inputs) if isinstance(inputs, (tuple, list)) else (inputs,)


def made_by(given: str) -> ModelSource:
    """The module that a function makes, with the inputs that it gives.

    Raises UsageError if it cannot be imported, fails, or makes no module.
    """
    function = _function(given)
    try:
        made = function()
    except Exception as error:
        raise UsageError(f"{given}: fails ({type(error).__name__}: {first_line(error)})") from error
    module, inputs, facts = (
        (*made, None, None)[:3] if isinstance(made, tuple) else (made, None, None)
    )
    if not isinstance(module, torch.nn.Module):
        raise UsageError(
            f"{given}: returns a {type(module).__name__}; it must return a module, or a module and its inputs"
        )
    source = ModelSource(given, module)
    if inputs is not None:
        source.inputs = bound(module, inputs)
    source.facts.update(_class_names(module) | (facts or {}))
    return source


def _class_names(module: torch.nn.Module) -> dict[str, Any]:
    labels = getattr(getattr(module, "config", None), "id2label", None)
    if not isinstance(labels, Mapping) or not labels:
        return {}
    return {"class_names": [str(labels[key]) for key in sorted(labels)]}


def _function(given: str) -> Any:
    place, _, name = given.rpartition(":")
    try:
        found: Any = module_at(place)
        for part in name.split("."):
            found = getattr(found, part)
    except (ImportError, AttributeError, ValueError, SyntaxError) as error:
        raise UsageError(
            f"{given}: cannot be imported ({first_line(error)}); give pkg.mod:function"
        ) from error
    if not callable(found):
        raise UsageError(
            f"{given}: is a {type(found).__name__}, which cannot be called; give a function that returns a module"
        )
    return found


def _to_evaluation(source: ModelSource) -> None:
    """Set a module to evaluation, and say which layers were not: all of them, or some that were left."""
    module = source.module
    if module is None:
        return
    leaves = {name: one for name, one in module.named_modules() if not [*one.children()]}
    left = [name for name, one in leaves.items() if one.training]
    if module.training and len(left) == len(leaves):
        source.said.append(
            "set to evaluation: dropout is off, batch norms use their running statistics"
        )
    elif left:
        source.said.append(f"set to evaluation: {listed([one or 'the model' for one in left])}")
    module.eval()


def _program_file(path: Path) -> ModelSource:
    try:
        program = torch.export.load(path)
    except Exception as error:
        said = getattr(error, "strerror", None) or first_line(error, 120)
        raise UsageError(
            f"{path}: cannot be read as a torch.export file ({said}); write it with torch.export.save"
        ) from error
    args, kwargs = program.example_inputs or ((), {})
    tensors = [*args, *kwargs.values()]
    inputs = dict(zip(given_to(program), tensors, strict=False))
    return ModelSource(str(path), program=program, inputs=inputs)
