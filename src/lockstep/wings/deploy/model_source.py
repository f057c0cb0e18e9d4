"""The MODEL of an export: a function that makes a module, a checkpoint with its factory, or an exported program."""

from __future__ import annotations

import importlib
import inspect
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy.typing as npt
import torch
from torch.export import ExportedProgram

from lockstep.core.errors import UsageError
from lockstep.core.text import listed
from lockstep.wings.deploy.calls import tensor_of
from lockstep.wings.deploy.engines import engine, first_line
from lockstep.wings.deploy.free_axes import Axes
from lockstep.wings.deploy.program_run import given_to

_CHECKPOINTS = (".pth", ".pt", ".tar", ".bin", ".ckpt", ".safetensors")
_EMA_KEYS = ("ema_state_dict", "state_dict_ema", "model_ema", "ema")
_STATE_KEYS = ("state_dict", "model_state_dict", "model", "net")
_PREFIXES = ("module.", "_orig_mod.", "model.", "net.", "network.", "ema_model.", "ema.")
"""What wrappers put in front of names: DataParallel, torch.compile, the attribute that Lightning modules keep a model
in, averaged copies. One is taken off where all names have it and the module has none with it."""

_BESIDE_WEIGHTS = ("n_averaged", "initted", "step")
"""What averaged copies count beside their weights."""
_SHOWN = 5


@dataclass
class ModelSource:
    """A model to export.

    Parameters
    ----------
    name
        As it was given.
    module
        Set to evaluation; None where a program was given.
    program
        A program that was exported; None where a module was given.
    inputs
        What it is called with, by the names of its arguments; empty where the factory gives none.
    facts
        What stands in the exported file's metadata: class names, preprocessing.
    said
        What was done to it, in a sentence each.
    axes
        Free axes as its program has them.
    """

    name: str
    module: torch.nn.Module | None = None
    program: ExportedProgram | None = None
    inputs: dict[str, torch.Tensor] = field(default_factory=dict)
    facts: dict[str, Any] = field(default_factory=dict)
    said: list[str] = field(default_factory=list)
    axes: Axes = field(default_factory=dict)

    def to_half(self, tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Make the module one of float16; returns the inputs as it takes them then.

        Raises
        ------
        UsageError
            If a program was given, whose dtypes are fixed.
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

        Raises
        ------
        UsageError
            If they do not fit what it takes.
        """
        tensors = self.tensors(arrays)
        if self.module is not None:
            return bound(self.module, tensors)
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

    Parameters
    ----------
    given
        `pkg.mod:function` or `file.py:function`, a checkpoint (.pth, .pth.tar, .pt), or a .pt2.
    factory
        For a checkpoint: the function that makes its module.
    weights
        Which weights of a checkpoint that has two sorts: "auto" (averaged ones where there are some), "ema" or "plain".
    trusted
        Whether a checkpoint may run code as it is read: one that holds objects besides weights.

    Raises
    ------
    UsageError
        If it is not there, makes no module, or the checkpoint has other names than the module.
    """
    path = Path(given)
    if path.suffix == ".pt2":
        return _program_file(path)
    if path.suffix in _CHECKPOINTS:
        if factory is None:
            raise UsageError(
                f"{given}: a checkpoint holds weights alone; give what makes its module with --factory pkg.mod:function"
            )
        source = _made(factory)
        _load(source, path, weights, trusted)
        source.name = given
    elif ":" in given:
        source = _made(given)
    else:
        raise UsageError(
            f"{given}: give pkg.mod:function, file.py:function, a checkpoint (.pth) with --factory, or a .pt2"
        )
    _to_evaluation(source)
    return source


def bound(module: torch.nn.Module, inputs: Any) -> dict[str, torch.Tensor]:
    """Inputs as a factory gives them (a tensor, a tuple, a mapping), by the names of the module's arguments.

    Raises
    ------
    UsageError
        If they do not fit the signature of `forward`, or one is no tensor.
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


def _made(given: str) -> ModelSource:
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
    labels = getattr(getattr(module, "config", None), "id2label", None)
    if isinstance(labels, Mapping) and labels:
        source.facts["class_names"] = [str(labels[key]) for key in sorted(labels)]
    source.facts.update(facts or {})
    return source


def _function(given: str) -> Any:
    place, _, name = given.rpartition(":")
    folder = str(Path(place).resolve().parent) if place.endswith(".py") else str(Path.cwd())
    if folder not in sys.path:
        sys.path.insert(0, folder)
    module_name = Path(place).stem if place.endswith(".py") else place
    try:
        found: Any = importlib.import_module(module_name)
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


# ------------------------------------------------------------------------------------- checkpoints


def _load(source: ModelSource, path: Path, weights: str, trusted: bool) -> None:
    assert source.module is not None
    loaded = _safetensors(path) if path.suffix == ".safetensors" else _unpickled(path, trusted)
    own = source.module.state_dict()
    state = _without_prefixes(_state_in(loaded, path, weights, source.said), own, path, source.said)
    _check_names(own, state, path)
    source.module.load_state_dict(state)


def _without_prefixes(
    state: dict[str, torch.Tensor], own: Mapping[str, Any], path: Path, said: list[str]
) -> dict[str, torch.Tensor]:
    """Weights by the module's names: without what wrappers put in front, or count beside."""
    for name in _BESIDE_WEIGHTS:
        if name in state and name not in own:
            state = {key: value for key, value in state.items() if key != name}
    while prefix := next(
        (
            one
            for one in _PREFIXES
            if state and all(key.startswith(one) for key in state)
            and not any(key.startswith(one) for key in own)
        ),
        "",
    ):  # fmt: skip
        state = {key.removeprefix(prefix): value for key, value in state.items()}
        said.append(f"took {prefix!r} off the names of {path.name}")
    return state


def _safetensors(path: Path) -> dict[str, torch.Tensor]:
    try:
        return dict(engine("safetensors.torch").load_file(str(path)))
    except Exception as error:
        said = getattr(error, "strerror", None) or first_line(error, 120)
        raise UsageError(f"{path}: cannot be read as .safetensors ({said})") from error


def _unpickled(path: Path, trusted: bool) -> Any:
    try:
        return torch.load(path, map_location="cpu", weights_only=not trusted)
    except Exception as error:
        said = getattr(error, "strerror", None) or first_line(error, 120)
        advice = "save its state_dict() again" + (
            ""
            if trusted
            else ", or give --trust if you know who made it: reading it then runs its code"
        )
        raise UsageError(
            f"{path}: cannot be read as a checkpoint of weights alone ({said}); {advice}"
        ) from error


def _state_in(loaded: Any, path: Path, weights: str, said: list[str]) -> dict[str, torch.Tensor]:
    found = loaded
    if isinstance(loaded, Mapping):
        averaged = [key for key in _EMA_KEYS if isinstance(loaded.get(key), Mapping)]
        plain = [key for key in _STATE_KEYS if isinstance(loaded.get(key), Mapping)]
        if weights == "ema" and not averaged:
            raise UsageError(
                f"{path}: has no averaged weights ({', '.join(_EMA_KEYS)}); leave out --weights ema"
            )
        keys = plain if weights == "plain" else [*averaged, *plain]
        if keys:
            found = loaded[keys[0]]
            other = [key for key in (*averaged, *plain) if key != keys[0]]
            beside = (
                f"; it holds {listed(other)} too (--weights plain or ema chooses)" if other else ""
            )
            said.append(f"weights under {keys[0]!r} of {path.name}{beside}")
    if (
        not isinstance(found, Mapping)
        or not all(isinstance(one, torch.Tensor) for one in found.values())
        or not found
    ):
        raise UsageError(f"{path}: holds no weights by name; save the module's state_dict()")
    return dict(found)


def _check_names(own: Mapping[str, Any], state: Mapping[str, Any], path: Path) -> None:
    lacks = [name for name in own if name not in state]
    more = [name for name in state if name not in own]
    shapes = [
        f"{name} {list(state[name].shape)} for {list(own[name].shape)}"
        for name in own
        if name in state and state[name].shape != own[name].shape
    ]
    parts = [
        f"{what} {listed(names, _SHOWN)}"
        for what, names in (("lacks", lacks), ("has beside", more), ("has other shapes at", shapes))
        if names
    ]
    if parts:
        raise UsageError(
            f"{path}: is of another model than the factory makes: it {'; it '.join(parts)}"
        )


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
