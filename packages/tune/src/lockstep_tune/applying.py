"""Setting knobs inside of the training's process, and noting where each could be set.

Constructors are replaced as soon as torch is loaded, before the script imports anything of it. What is set on the
model is set when the first optimizer is made. Nothing here replaces a method of one object: copies of a model must
compute with their own parameters.
"""

from __future__ import annotations

import functools
import inspect
import json
import multiprocessing
import os
import runpy
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer
from torch.utils import checkpoint
from torch.utils.data import DataLoader

from lockstep.recorder import Recorder, living, rank_and_world_size, without_wrappers
from lockstep.terminal import say
from lockstep_tune import half_precision
from lockstep_tune.half_precision import use_autocast, use_low_weights
from lockstep_tune.loss_scale import LossScale
from lockstep_tune.profiling import cores, device_type
from lockstep_tune.settings import KNOBS, VARIABLE
from lockstep_tune.stacks import line_of_the_user


def begin(recorder: Recorder) -> None:
    """Set in this process what `lockstep tune` or `lockstep run-tuned` asked for."""
    request = json.loads(os.environ[VARIABLE])
    into = request.get("into")
    scale = _loss_scale(request["knobs"], recorder)
    applying = Applying(request["knobs"], Path(into) if into else None, request.get("timed"), scale)
    applying.patch()
    for file in request["python"]:
        runpy.run_path(file)
    recorder.hear(applying)


class Applying:
    """Sets knobs, notes where, and times steps.

    knobs: Names and values, as `settings.KNOBS` has them.
    into: The folder in which each rank leaves what was noted; None to note nothing.
    timed: The first step that is timed and the one after the last; None to time none.
    scale: Scales the loss; None where nothing computes in float16.
    """

    def __init__(
        self,
        knobs: dict[str, Any],
        into: Path | None,
        timed: tuple[int, int] | None,
        scale: LossScale | None,
    ) -> None:
        self._knobs, self._into, self._timed = knobs, into, timed
        self._uses: list[dict[str, Any]] = []
        self._placed = {name for name in knobs if not KNOBS[name].place}
        self._threads = torch.get_num_threads()
        self._number = -1
        self._process = os.getpid()
        self._began_s = 0.0
        self._scale = scale
        self._compiles = False

    def patch(self) -> None:
        """Replace what knobs are set on while the script runs."""
        _wrap_constructor(DataLoader, self._loader)
        _wrap_constructor(DistributedDataParallel, self._parallel)
        _wrap_constructor(torch.amp.GradScaler, self._scaler)
        for kind in {one for one in vars(torch.optim).values() if isinstance(one, type)}:
            if issubclass(kind, Optimizer) and kind is not Optimizer:
                _wrap_constructor(kind, self._optimizer)
        if self._scale is not None:
            _call_after(Optimizer, self._scale.keep_in)
            self._scale.patch()
        setattr(checkpoint, "checkpoint", self._checkpoint(checkpoint.checkpoint))  # noqa: B010
        if "threads" in self._knobs:
            torch.set_num_threads(self._knobs["threads"])

    def step_begins(self, number: int) -> None:
        """Set what belongs to the model as the training begins; start and stop the clock."""
        self._number = number
        if number == 0:
            self._threads = torch.get_num_threads()
            self._set_late()
        if self._timed is None:
            return
        if number == self._timed[0]:
            _wait_for_the_device()
            self._began_s = time.perf_counter()
        elif number == self._timed[1]:
            _wait_for_the_device()
            self._note((time.perf_counter() - self._began_s) / (number - self._timed[0]))

    def finish(self) -> None:
        """The training has ended: leave what was noted.

        Workers of a data loader and torchrun itself, whose ends are heard too, train nothing.
        """
        is_child = self._process != os.getpid() or multiprocessing.parent_process() is not None
        if is_child or self._number < 0:
            return
        if self._into is None:
            if rank_and_world_size()[0] == 0:
                for name in self._without_place():
                    say(f"{name} was not set: the training has no {KNOBS[name].place}")
        elif self._timed is not None and self._number < self._timed[1]:
            self._note(None)

    # --- what the script makes -----------------------------------------------------------------------------------

    def _use(self, name: str, knob: str, **given: Any) -> None:
        """Note that a knob can be set at the line of the script that runs, and what it is there."""
        use = {"name": name, "knob": knob, "place": line_of_the_user(), "given": given}
        if self._into is not None and use not in self._uses:
            self._uses.append(use)

    def _loader(self, name: str, given: dict[str, Any]) -> None:
        kept = ("num_workers", "prefetch_factor", "pin_memory", "batch_size")
        self._use(name, "workers", **{one: _plain(given.get(one)) for one in kept})
        if "workers" in self._knobs:
            self._placed.add("workers")
            given["num_workers"] = self._knobs["workers"]
            if not self._knobs["workers"]:
                given.update(prefetch_factor=None, timeout=0, persistent_workers=False)
        if "prefetch" in self._knobs and given.get("num_workers"):
            self._placed.add("prefetch")
            given["prefetch_factor"] = self._knobs["prefetch"]
        if "pin" in self._knobs and device_type() != "cpu":
            self._placed.add("pin")
            given["pin_memory"] = self._knobs["pin"]

    def _optimizer(self, name: str, given: dict[str, Any]) -> None:
        kept = {one: _plain(given[one]) for one in ("foreach", "fused") if one in given}
        self._use(name, "optimizer", **kept)
        wanted = self._knobs.get("optimizer")
        if wanted is not None:
            settings = {"foreach": wanted == "foreach", "fused": wanted == "fused"}
            given.update({one: value for one, value in settings.items() if one in given})
            if wanted in given or (wanted == "plain" and kept):
                self._placed.add("optimizer")

    def _parallel(self, name: str, given: dict[str, Any]) -> None:
        self._use(name, "bucket", bucket_cap_mb=_plain(given.get("bucket_cap_mb")))
        if "bucket" in self._knobs:
            self._placed.add("bucket")
            given["bucket_cap_mb"] = self._knobs["bucket"]
            given["gradient_as_bucket_view"] = True

    def _scaler(self, name: str, given: dict[str, Any]) -> None:
        self._use(name, "loss_scale", init_scale=_plain(given.get("init_scale")))
        wanted = self._knobs.get("loss_scale")
        if wanted is not None and wanted != "dynamic":
            given["init_scale"], given["growth_interval"] = float(wanted), 2**31 - 1
        self._placed.add("loss_scale")
        if self._scale is not None:
            self._scale.leave_to_the_script()

    def _checkpoint(self, original: Callable[..., Any]) -> Callable[..., Any]:
        own = set(inspect.signature(original).parameters) - {"function", "args", "kwargs"}

        @functools.wraps(original)
        def checkpointed(function: Any, *arguments: Any, **keywords: Any) -> Any:
            if self._number == 0:
                self._use("checkpoint", "checkpointing")
            if self._knobs.get("checkpointing") is not False:
                return original(function, *arguments, **keywords)
            self._placed.add("checkpointing")
            left = {name: one for name, one in keywords.items() if name not in own}
            return function(*arguments, **left)

        return checkpointed

    # --- what is set on the model --------------------------------------------------------------------------------

    def _set_late(self) -> None:
        knobs = self._knobs
        roots = trained_roots()
        if "threads" in knobs:
            torch.set_num_threads(knobs["threads"])
        if "float32_matmul" in knobs:
            torch.set_float32_matmul_precision(knobs["float32_matmul"])
        for root in roots:
            self._note_root(root)
            self._set_on(root, without_wrappers(root))
        if self._scale is not None:
            self._scale.begin()
            self._placed.update(["loss_scale"] if roots else [])

    def _set_on(self, wrapped: torch.nn.Module, root: torch.nn.Module) -> None:
        knobs = self._knobs
        if "channels_last" in knobs and any(
            isinstance(one, torch.nn.Conv2d) for one in root.modules()
        ):
            self._placed.add("channels_last")
            root.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        enable: Any = getattr(root, "gradient_checkpointing_enable", None)
        if knobs.get("checkpointing") and enable is not None:
            self._placed.add("checkpointing")
            enable()
        if "autocast" in knobs:
            use_autocast(root, knobs["autocast"])
        if "weights" in knobs:
            use_low_weights(root, knobs["weights"])
        if "compile" in knobs and not _is_compiled(wrapped):
            self._compiles = True
            root.compile(mode=knobs["compile"])

    def _without_place(self) -> list[str]:
        """Knobs that were asked for and had no effect: nothing that they are set on was made, or has run."""
        placed = self._placed | half_precision.ran
        dynamo = sys.modules.get("torch._dynamo.utils")
        if self._compiles and dynamo is not None and dynamo.counters["frames"]["ok"]:
            placed.add("compile")
        return [name for name in self._knobs if name not in placed]

    def _note_root(self, root: torch.nn.Module) -> None:
        name = type(without_wrappers(root)).__name__
        self._use(name, "model", compiled=_is_compiled(root))
        if any(isinstance(one, torch.nn.Conv2d) for one in root.modules()):
            self._use(name, "channels_last")

    def _note(self, step_s: float | None) -> None:
        """Leave the time of a step, in seconds, and what was noted."""
        assert self._into is not None
        self._into.mkdir(parents=True, exist_ok=True)
        rank = rank_and_world_size()[0]
        told = {
            "step_s": step_s, "trained": self._number, "uses": self._uses, "threads": self._threads,
            "cores": cores(), "device": device_type(), "without_place": self._without_place(),
        }  # fmt: skip
        (self._into / f"rank{rank}.json").write_text(json.dumps(told), encoding="utf-8")


def trained_roots() -> list[torch.nn.Module]:
    """Modules that are in no other and hold parameters that are trained, wrappers with what they wrap."""
    modules = {id(one): one for one in living(torch.nn.Module)}
    inside = {id(child) for one in modules.values() for child in one.children()}
    return [
        one for number, one in modules.items()
        if number not in inside and any(parameter.requires_grad for parameter in one.parameters())
    ]  # fmt: skip


def _wrap_constructor(kind: type, change: Callable[[str, dict[str, Any]], None]) -> None:
    """Have `change` look at the arguments of a constructor, and change them, before it runs."""
    original: Callable[..., None] = kind.__dict__.get("__init__", kind.__init__)  # type: ignore[misc]
    signature = inspect.signature(original)
    defaults = {name: one.default for name, one in signature.parameters.items()}

    @functools.wraps(original)
    def made(self: Any, *arguments: Any, **keywords: Any) -> None:
        try:
            bound = signature.bind(self, *arguments, **keywords)
        except TypeError:
            return original(self, *arguments, **keywords)  # says what is wrong with them
        given = {
            name: bound.arguments.get(name, default) for name, default in defaults.items()
            if default is not inspect.Parameter.empty
        }  # fmt: skip
        before = dict(given)
        change(kind.__name__, given)
        bound.arguments.update(
            {name: one for name, one in given.items() if one is not before[name]}
        )
        return original(*bound.args, **bound.kwargs)

    setattr(kind, "__init__", made)  # noqa: B010


def _call_after(kind: type, look: Callable[[Any], None]) -> None:
    """Have `look` called with each object of a class once its constructor has run."""
    original: Callable[..., None] = kind.__init__  # type: ignore[misc]

    @functools.wraps(original)
    def made(self: Any, *arguments: Any, **keywords: Any) -> None:
        original(self, *arguments, **keywords)
        look(self)

    setattr(kind, "__init__", made)  # noqa: B010


def _loss_scale(knobs: dict[str, Any], recorder: Recorder) -> LossScale | None:
    """What scales the loss: as asked for, and always where float16 is."""
    has_float16 = "float16" in (knobs.get("autocast"), knobs.get("weights"))
    wanted = knobs.get("loss_scale", "dynamic" if has_float16 else None)
    return None if wanted is None else LossScale(wanted, recorder)


def _plain(value: Any) -> Any:
    return value if isinstance(value, (int, float, str, bool)) else None


def _is_compiled(root: torch.nn.Module) -> bool:
    """Whether the script has compiled a model, or a part of it."""
    dynamo = sys.modules.get("torch._dynamo.eval_frame")
    kinds = () if dynamo is None else (dynamo.OptimizedModule,)
    return any(
        isinstance(one, kinds) or getattr(one, "_compiled_call_impl", None) is not None
        for one in root.modules()
    )


def _wait_for_the_device() -> None:
    if torch.accelerator.is_available():
        torch.accelerator.synchronize()
