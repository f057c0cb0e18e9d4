"""A recording as the model of an export: its weights and batches, in a module that is shown to be the recorded one."""

from __future__ import annotations

import copy
import inspect
import json
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import torch

from lockstep.errors import UsageError
from lockstep.recorder import digest_of
from lockstep.recordings import Call, CallKind, Content, Moment, Phase, Role, open_recording
from lockstep.terminal import listed
from lockstep_deploy.calls import tensor_of
from lockstep_deploy.checkpoints import check_names, lacking
from lockstep_deploy.module_run import flat_tensors, furthest

_MOMENTS = {
    Moment.END: "at the end of the training",
    Moment.LAST: "after its last recorded step",
    Moment.FIRST: "after its first recorded step",
}
_WHOLE = "record with --save tensors"
_VALUES = (Role.INPUT, Role.PARAM, Role.PARAM_AFTER, Role.BUFFER)
"""What a record of a weight's name holds the weight in, and no gradient of it."""

_SHOWN = 5
State = dict[str, torch.Tensor]


class RecordedModel:
    """The model that a recording is of.

    path: The recording.

    Raises UsageError if it has no step of a model.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        recording = open_recording(path, read_sketches=False)
        ranks = list(recording.ranks.values())
        if not ranks or not ranks[0].complete_steps:
            raise UsageError(f"{path}: has no complete step; record one, or give a checkpoint")
        self._rank, self._command = ranks[0], recording.manifest.command

    @property
    def suggested_factory(self) -> str:
        """Return the likely factory of its module: the outermost class, by the script or package it was in."""
        outer: str = self._outer.get("", next(iter(self._outer.values()), "function"))
        package, _, name = outer.rpartition(".")
        script = next((one for one in self._command if one.endswith(".py")), "file.py")
        return f"{package or script}:{name}"

    def fill(self, module: torch.nn.Module, said: list[str]) -> list[dict[str, torch.Tensor]]:
        """Show that a module is the recorded one, give it the recorded weights, and return the recorded batches.

        A module that has the weights of a moment bit by bit keeps them. Else it gets those that the last recorded step
        left, which are there where tensors were saved whole.

        module: What the factory made.
        said: Gets a sentence for each thing that was shown.

        Raises UsageError if it is another module, or the recording does not keep its weights.
        """
        path = self._path_of(module)
        self._check_settings(module, path)
        step = self._rank.complete_steps[-1]
        entering, left = self._states(module, path, step)
        lacks = lacking(module.state_dict(), entering)
        if not lacks:
            check_names(module.state_dict(), entering, self._path)
            said.append(self._run_again(module, entering, self._calls(path, step)))
        kept = self._moment_of(module, path)
        if kept is None and lacks:
            raise UsageError(
                f"{self._path}: keeps no whole tensor of {listed(lacks, _SHOWN)}, and the factory's weights are none"
                f" that it has digests of; {_WHOLE}, or let the factory load the checkpoint"
            )
        if kept is None:
            module.load_state_dict(left, strict=False)
            kept = self._moment_of(module, path)
            said.append(f"weights as step {step} of {self._path} left them{self._steps_on(step)}")
        if kept is not None:
            said.append(f"its weights are those {_MOMENTS[kept]} of {self._path}, bit by bit")
        return self._batches(module, path, said)

    def _batches(
        self, module: torch.nn.Module, path: str, said: list[str]
    ) -> list[dict[str, torch.Tensor]]:
        """The first batch of each recorded step, of those that are whole and as large as the first."""
        calls = [call for one in self._rank.complete_steps for call in self._calls(path, one)[:1]]
        every = [batch for one in calls if (batch := _batch(one, module)) is not None]
        shapes = [[one.shape for one in batch.values()] for batch in every]
        found = [one for one, shape in zip(every, shapes, strict=True) if shape == shapes[0]]
        some = "" if len(found) == len(every) else f" of {len(every)}, the others of other shapes"
        said.append(
            f"batches of {len(found)} recorded steps{some}"
            if found
            else f"no batch is whole: {_WHOLE}"
        )
        return found

    # ------------------------------------------------------------------------------ which module

    @cached_property
    def _outer(self) -> dict[str, str]:
        """Classes of the modules that are in no other one, by path."""
        table = self._rank.module_table.select("module", "module_class")
        paths: dict[str, str] = dict(table.iter_rows())
        above = {one: one.rpartition(".")[0] for one in paths}
        return {
            one: name for one, name in paths.items()
            if not one or above[one] not in paths or (not above[one] and _is_apart(paths, one))
        }  # fmt: skip

    def _path_of(self, module: torch.nn.Module) -> str:
        """Under which path a recording has modules of this class."""
        name = type(module).__name__
        table = self._rank.module_table.select("module", "module_class")
        found = [path for path, kind in table.iter_rows() if kind.rpartition(".")[2] == name]
        if not found:
            raise UsageError(
                f"{self._path}: has no module of class {name}; it has {listed(list(self._outer.values()), _SHOWN)}:"
                " give the factory of one of them"
            )
        shortest: str = min(
            found, key=lambda path: (path.count(".") + bool(path), found.index(path))
        )
        return shortest

    def _check_settings(self, module: torch.nn.Module, path: str) -> None:
        """Refuse a module whose parts, or their settings, are not the recorded ones."""
        own, wrong = dict(module.named_modules(remove_duplicate=False)), []
        table = self._rank.module_table.select("module", "module_class", "settings")
        for full, kind, text in table.iter_rows():
            name = _inside(full, path)
            if name is None or (name not in own and not path):
                continue  # of another model of the script
            part = own.get(name)
            if part is None or type(part).__name__ != kind.rpartition(".")[2]:
                wrong.append(f"{full or 'the model'} is a {kind.rpartition('.')[2]}")
                continue
            settings: dict[str, Any] = json.loads(text or "{}")
            wrong += [
                f"{full or 'the model'} has {key}={value}, the factory's {getattr(part, key)}"
                for key, value in settings.items()
                if key != "training" and _is_other(getattr(part, key, value), value)
            ]
        if wrong:
            raise UsageError(
                f"{self._path}: is of another model than the factory makes: {listed(wrong, _SHOWN)}"
            )

    # ----------------------------------------------------------------------- weights and batches

    def _moment_of(self, module: torch.nn.Module, path: str) -> Moment | None:
        """The moment whose weights a module has, bit by bit, the last one first."""
        held = module.state_dict()
        own = {name: digest_of(one.contiguous().reshape(-1)) for name, one in held.items()}
        for moment in _MOMENTS:
            kept = {
                name: one.content.digest
                for one in self._rank.states
                if one.moment is moment and one.role is not Role.STATE
                and (name := _inside(one.name, path)) in own
            }  # fmt: skip
            is_same = all(own[name] == digest for name, digest in kept.items())
            if kept and is_same and not lacking(held, kept):
                return moment
        return None

    def _steps_on(self, step: int) -> str:
        """What to do where a training went on after a step."""
        end = max((one.step for one in self._rank.states), default=0)
        if end <= step + 1:
            return ""
        return (
            f"; it went on to step {end - 1}: for its end, give a factory that loads the checkpoint; its weights are"
            " compared with those digests"
        )

    def _calls(self, path: str, step: int) -> list[Call]:
        calls = self._rank.calls(step, kind=CallKind.MODULE)
        return [
            one
            for one in calls
            if one.site.module == path and one.site.phase is Phase.FORWARD and not one.recomputed
        ]

    def _states(self, module: torch.nn.Module, path: str, step: int) -> tuple[State, State]:
        """Whole weights and buffers as a step found them, and as it left them."""
        wanted = module.state_dict()
        entering: dict[str, Content] = {}
        left: dict[str, Content] = {}
        records = [one for call in self._rank.calls(step) for one in call.records]
        for one in sorted(records, key=lambda one: one.sequence):
            name = _inside(one.name, path)
            if name in wanted and one.role in _VALUES and one.content.loader is not None:
                entering.setdefault(name, one.content)
                left[name] = one.content
        first, last = (
            {name: _tensor(one).to(wanted[name].dtype) for name, one in found.items()}
            for found in (entering, left)
        )
        return first, last

    def _run_again(self, module: torch.nn.Module, state: State, calls: Sequence[Call]) -> str:
        """Whether a module returns what was recorded, given the step's batch and weights, in words."""
        if not calls:
            return f"was not run on {self._path}, which has no call of the whole module"
        call, batch = calls[0], _batch(calls[0], module)
        outputs = [one.content for one in call.records if one.role is Role.OUTPUT]
        where = f"step {call.step} of {self._path}"
        if batch is None or any(one.loader is None for one in outputs):
            return f"was not run on {where}, whose batch is not whole"
        if call.conditions is not None and call.conditions.autocast:
            return f"was not run on {where}, which was recorded under autocast"
        again = copy.deepcopy(module).train(bool(call.arguments.get("training", True)))
        again.load_state_dict(state, strict=False)
        some, others = (_returned(again, batch, seed) for seed in (0, 1))
        if furthest(some, others) is not None:
            return f"was not held against {where}: its forward draws random numbers"
        off = furthest([_tensor(one) for one in outputs], some)
        if off is not None:
            raise UsageError(
                f"{self._path}: the factory's module, given the weights and the batch of step {call.step}, returns"
                f" something else than was recorded ({off}); give the factory of the recorded model"
            )
        return f"given the weights and the batch of {where}, it returns what was recorded"


def _is_apart(paths: Mapping[str, str], path: str) -> bool:
    """Whether a path of one part is a model of its own: the recorder names it after its class."""
    return paths[path].rpartition(".")[2] == path


def _inside(full: str, path: str) -> str | None:
    """A name without the path of the module that it is in; None for one that is elsewhere."""
    if not path:
        return full
    return "" if full == path else full[len(path) + 1 :] if full.startswith(f"{path}.") else None


def _is_other(own: Any, recorded: Any) -> bool:
    own = list(own) if isinstance(own, tuple) else own
    is_plain = isinstance(own, (bool, int, float, str, list)) or own is None
    return is_plain and own != recorded


def _tensor(content: Content) -> torch.Tensor:
    return tensor_of(content.load()).to(getattr(torch, content.dtype))


def _batch(call: Call, module: torch.nn.Module) -> dict[str, torch.Tensor] | None:
    """What a call was given, by the names of the module's arguments; None where it is not whole, or nested."""
    names = list(inspect.signature(module.forward).parameters)
    found = {}
    for one in call.records:
        kind, _, place = one.name.partition(".")
        if one.role is not Role.INPUT or kind not in ("args", "kwargs"):
            continue
        known = names[int(place)] if place.isdigit() and int(place) < len(names) else place
        if one.content.loader is None or known not in names:
            return None
        found[known] = _tensor(one.content)
    return found or None


def _returned(
    module: torch.nn.Module, batch: Mapping[str, torch.Tensor], seed: int
) -> list[torch.Tensor]:
    with torch.no_grad(), torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return [one.clone() for one in flat_tensors(copy.deepcopy(module)(**batch))]
