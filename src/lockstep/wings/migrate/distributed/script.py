"""The main script from one process to many: all of it, or nothing but a list.

Samples that are shared out without gradients that are averaged would train another model in silence; so nothing is
rewritten unless a training loader and every model that is trained are understood.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Sequence

from lockstep.wings.migrate.distributed import loaders as data
from lockstep.wings.migrate.distributed import model as models
from lockstep.wings.migrate.distributed.blocks import Blocks
from lockstep.wings.migrate.distributed.devices import bind_devices
from lockstep.wings.migrate.distributed.flow import Flow
from lockstep.wings.migrate.distributed.head import START_DOC, head_lines, takes_devices
from lockstep.wings.migrate.distributed.risks import list_risks
from lockstep.wings.migrate.distributed.writing import Guard, guards, makes_writer
from lockstep.wings.migrate.engine.arguments import (
    appended,
    called,
    insertion,
    keyword,
    opening,
    wrapped,
)
from lockstep.wings.migrate.engine.statements import documented_function
from lockstep.wings.migrate.engine.unit import Unit
from lockstep.wings.migrate.plan import Edit, Outcome, Span

WRAP = "distributed/model"
_PARALLEL = (
    "torch.distributed.init_process_group",
    "torch.nn.parallel.DistributedDataParallel",
    "apex.parallel.DistributedDataParallel",
    "torch.utils.data.DistributedSampler",
    "torch.utils.data.distributed.DistributedSampler",
    "torch.multiprocessing.spawn",
    "torch.distributed.fsdp.FullyShardedDataParallel",
    "torch.distributed.fsdp.fully_shard",
    "horovod.torch.init",
    "deepspeed.initialize",
    "accelerate.Accelerator",
    "pytorch_lightning.Trainer",
    "lightning.Trainer",
    "lightning.pytorch.Trainer",
    "transformers.Trainer",
    "fairscale.nn.FullyShardedDataParallel",
)
_NAMES = {
    "rank": ("RANK", "PROCESS_RANK"),
    "local_rank": ("LOCAL_RANK", "PROCESS_LOCAL_RANK"),
    "world_size": ("WORLD_SIZE", "PROCESS_COUNT"),
    "start": ("start_processes", "start_torchrun_processes"),
    "training_loader": ("training_loader", "shared_training_loader"),
    "unwrapped": ("unwrapped", "unwrapped_model"),
}


def distribute(unit: Unit, names: Sequence[str]) -> None:
    """Rewrite a main script for many processes, each with a device of its own.

    Parameters
    ----------
    unit
        The script.
    names
        The variables that hold the models.
    """
    done = documented_function(unit.scopes, START_DOC)
    if done is not None:
        unit.keep(done, "distributed/done", "runs in many processes already, by this tool")
        return
    if not takes_devices(unit.target):
        reason = (
            f"{unit.target.name}: a machine has one device, and no collective backend serves it"
        )
        _refuse(unit, None, WRAP, reason)
        return
    flow = Flow(unit.scopes)
    if _list_parallel(unit, flow):
        return
    found = data.find_loaders(flow)
    ready = _ready_loaders(unit, flow, found)
    loops: list[ast.AST] = [item.loop for loader in ready for item in loader.training]
    try:
        wraps = [models.find_wrap(flow, name, loops) for name in names] if ready else []
        models.check_uses(flow, wraps)
    except models.ModelError as error:
        _refuse(unit, error.node, WRAP, str(error))
        return
    if ready:
        _Rewriting(unit, flow, found, ready, wraps).run()
    elif not any(loader.training for loader in found):
        reason = "no loop over a torch DataLoader computes gradients in this file"
        _refuse(unit, None, "distributed/loader", reason)


def _list_parallel(unit: Unit, flow: Flow) -> bool:
    """List what a script does for many devices by itself."""
    own = [call for call in flow.calls if unit.scopes.name(call.func) in _PARALLEL]
    for call in own:
        name = unit.scopes.name(call.func)
        unit.note(
            call,
            "distributed/own",
            f"the script has {name} for many devices of its own: nothing is made distributed here",
            "start it with torchrun if it reads RANK and WORLD_SIZE; else take this out first",
        )
    return bool(own)


def _ready_loaders(unit: Unit, flow: Flow, found: list[data.Loader]) -> list[data.Loader]:
    """Training loaders that can be shared out; all others are listed or kept."""
    ready = []
    for loader in found:
        why = data.evidence(flow, loader)
        if loader.training:
            problem = data.obstacle(flow, loader.call)
            if not problem:
                ready.append(loader)
                continue
            reason = (
                f"feeds the training ({why}), but {problem}: each process would see all samples"
            )
            unit.note(loader.call, "distributed/loader", reason, "a DistributedSampler by hand")
        elif why and not loader.evaluation:
            reason = f"{why}, but no loop over it is seen to compute gradients in this file"
            unit.note(loader.call, "distributed/loader", reason, "a DistributedSampler by hand")
        else:
            reason = "evaluation: every process sees the whole set, and rank 0 reports"
            unit.note(loader.call, "distributed/evaluation", reason, outcome=Outcome.KEPT)
    for item in data.foreign_loops(flow, found):
        reason = "computes gradients on samples of a loader that is made elsewhere: each process sees all of them"
        unit.note(
            item.loader, "distributed/loader", reason, "a DistributedSampler where it is made"
        )
    return ready


def _refuse(unit: Unit, node: ast.AST | None, rule: str, reason: str) -> None:
    """List why nothing is made distributed."""
    text = f"{reason}; nothing was made distributed"
    unit.note(node or Span(0, 0), rule, text)


class _Rewriting:
    """Carries the whole change out, once it is known to be possible."""

    def __init__(
        self,
        unit: Unit,
        flow: Flow,
        found: list[data.Loader],
        ready: list[data.Loader],
        wraps: list[models.Wrap],
    ) -> None:
        self._unit = unit
        self._scopes = unit.scopes
        self._flow = flow
        self._blocks = Blocks(unit.scopes)
        self._found = found
        self._ready = ready
        self._wraps = wraps
        self._loops: list[ast.AST] = [item.loop for one in ready for item in one.training]
        self._replicas = [
            call
            for call in flow.calls
            if models.is_replicating(flow, call)
            and call.args
            and models.refers(flow, wraps, call.args[0])
        ]
        self._names = {key: unit.header.free(names) for key, names in _NAMES.items()}
        self._unwraps = False

    def run(self) -> None:
        """Claim every place."""
        placed: list[tuple[models.Wrap, Edit]] = []
        for wrap in self._wraps:
            edit = self._blocks.behind(wrap.statement, self._wrap_lines(wrap))
            if edit is None:
                _refuse(self._unit, wrap.statement, WRAP, "no line can follow this statement")
                return
            placed.append((wrap, edit))
        for wrap, edit in placed:
            self._wrap(wrap, edit)
        for loader in self._ready:
            self._share(loader)
        self._tell_epochs()
        for call in self._replicas:
            self._replicate_alone(call)
        if not self._replicas:  # else the script asks for .module itself
            for use in models.uses(self._flow, self._wraps, self._loops):
                self._use(use)
        self._write_once()
        for call in self._flow.calls:
            self._load(call)
        bind_devices(self._unit, self._names["local_rank"])
        list_risks(self._unit, self._flow, self._ready, self._names)
        self._head()

    # -- the model

    def _wrap_lines(self, wrap: models.Wrap) -> list[str]:
        torch = self._unit.fill("torch")
        wrapped = f"{torch}.nn.parallel.DistributedDataParallel({wrap.name})"
        return [f"if {self._names['world_size']} > 1:", f"\t{wrap.name} = {wrapped}"]

    def _wrap(self, wrap: models.Wrap, edit: Edit) -> None:
        span = Span(self._scopes.span(wrap.statement).start, edit.span.end)
        reason = f"averages the gradients of {wrap.name} between processes, which start from rank 0's parameters"
        self._rewrite(span, WRAP, [edit], reason)

    def _replicate_alone(self, call: ast.Call) -> None:
        """`DataParallel(model)` would copy each process's model to all devices."""
        model = self._scopes.text(call.args[0])
        span = self._scopes.span(call)
        assigned = isinstance(self._scopes.parents[call], ast.Assign)
        opened, closed = ("", "") if assigned else ("(", ")")
        choice = f" if {self._names['world_size']} == 1 else {model}{closed}"
        edits = [insertion(span.start, opened)] if opened else []
        edits.append(insertion(span.end, choice))
        reason = "for one process alone; processes that torchrun starts have a device each"
        self._unit.rewrite(call.func, "distributed/data-parallel", reason, edits, span=span)

    def _use(self, use: models.Use) -> None:
        if use.obstacle:
            self._unit.note(use.shown, "distributed/unwrapped", use.obstacle)
            return
        self._unwraps = True
        edits = wrapped(self._scopes.span(use.node), self._names["unwrapped"])
        reason = "of the model itself, so that names and checkpoints stay as they are"
        self._rewrite(use.shown, "distributed/unwrapped", edits, reason)

    def _load(self, call: ast.Call) -> None:
        """A checkpoint's tensors were on one process's device: not every process may load them there."""
        if self._scopes.name(call.func) != "torch.load" or len(call.args) != 1:
            return
        if keyword(call, "map_location") or any(item.arg is None for item in call.keywords):
            return
        if self._is_loaded_as_state(call):
            edits = appended(self._scopes, call, 'map_location="cpu"')
            reason = "load_state_dict copies to each process's own device; rank 0's would hold all copies else"
            self._unit.rewrite(call, "distributed/load", reason, edits)

    def _is_loaded_as_state(self, call: ast.Call) -> bool:
        return any(
            called(other) == "load_state_dict"
            and other.args
            and any(call in self._flow.trail(node) for node in ast.walk(other.args[0]))
            for other in self._flow.calls
        )

    # -- the samples

    def _share(self, loader: data.Loader) -> None:
        call = loader.call
        place, start = self._scopes.span(call.func), opening(self._scopes, call)
        text = self._scopes.source.text
        comma = "," if text[start : start + 1] in ("\r", "\n", " ") else ", "
        edits = [
            insertion(place.start, f"{self._names['training_loader']}("),
            Edit(Span(place.end, start), comma),
        ]
        why = data.evidence(self._flow, loader)
        reason = (
            f"training: {why}; each process gets its own share through a DistributedSampler, which also shuffles where "
            "the loader did (a last share is filled up with repeated samples); the batch size stays that of one process"
        )
        self._rewrite(call, "distributed/loader", edits, reason)

    def _tell_epochs(self) -> None:
        told: dict[ast.For, list[str]] = {}
        for loader in self._ready:
            for iteration in loader.training:
                found = data.epochs(self._flow, iteration)
                for epoch in found:
                    names = told.setdefault(epoch.loop, [])
                    if epoch.loader not in names:
                        names.append(epoch.loader)
                if not found:
                    self._list_epoch(iteration)
        for loop, names in told.items():
            self._tell(loop, names)

    def _tell(self, loop: ast.For, names: list[str]) -> None:
        epoch = self._scopes.text(loop.target)
        lines = [f"\t{name}.sampler.set_epoch({epoch})" for name in names]
        edit = self._blocks.before(loop.body[0], [f"if {self._names['world_size']} > 1:", *lines])
        reason = "tells the sampler the epoch: without it each epoch has the same order"
        if edit is None:
            self._unit.note(loop.target, "distributed/epoch", reason, lines[0].strip())
        else:
            span = Span(self._scopes.span(loop).start, edit.span.end)
            self._rewrite(span, "distributed/epoch", [edit], reason)

    def _list_epoch(self, iteration: data.Iteration) -> None:
        name = self._scopes.text(iteration.loader)
        self._unit.note(
            iteration.loader,
            "distributed/epoch",
            "which loop counts the epochs cannot be told: without set_epoch each has the same order",
            f"{name}.sampler.set_epoch(epoch)",
        )

    # -- what one process does

    def _write_once(self) -> None:
        blocked = False
        for run in guards(self._flow, self._blocks, self._wraps):
            free = [item for item in run if not item.obstacle]
            test = f"{self._names['rank']} == 0"
            edits = self._blocks.guarded([item.statement for item in free], test) if free else []
            for guard, changes in zip(free, edits, strict=True):
                self._guard(guard, changes)
            for guard in (item for item in run if item.obstacle):
                blocked = blocked or guard.kind == "logging"
                reason = f"every process does this, one is enough; but it {guard.obstacle}"
                self._unit.note(
                    guard.statement,
                    f"distributed/{guard.kind}",
                    reason,
                    f"if {self._names['rank']} == 0:",
                )
        for call in self._flow.calls:
            self._log_once(call)

    def _guard(self, guard: Guard, edits: Iterable[Edit]) -> None:
        what = "saves" if guard.kind == "saving" else "tells"
        reason = f"rank 0 alone {what} this; what is told is of its own share of the samples"
        if guard.kind == "saving":
            reason = "rank 0 alone saves this; all processes have the same parameters"
        self._rewrite(guard.statement, f"distributed/{guard.kind}", edits, reason)

    def _log_once(self, call: ast.Call) -> None:
        name, rank = self._scopes.name(call.func), self._names["rank"]
        if name.startswith("tqdm.") and keyword(call, "disable") is None:
            edits = appended(self._scopes, call, f"disable={rank} != 0")
            self._rewrite(call, "distributed/logging", edits, "rank 0 alone shows its progress")
        elif name == "wandb.init" and keyword(call, "mode") is None:
            edits = appended(self._scopes, call, f'mode=None if {rank} == 0 else "disabled"')
            self._rewrite(call, "distributed/logging", edits, "rank 0 alone makes a run")
        elif makes_writer(self._flow, call):
            reason = (
                "every process makes a log of its own here; rank 0's is the one that is written to"
            )
            self._unit.note(call, "distributed/logging", reason, f"make it where {rank} == 0")

    # -- the whole

    def _head(self) -> None:
        starts = self._begin()
        lines = head_lines(
            self._names, self._unit.target, self._unit.fill, unwraps=self._unwraps, starts=starts
        )
        self._unit.header.define(lines, imports=["os"])
        self._end()

    def _begin(self) -> bool:
        """Let the processes meet under the main guard; whether that has to happen at the head instead."""
        guard = self._main_guard()
        if guard is None or self._is_early(guard):
            return True
        first = guard.body[0]
        edit = self._blocks.before(first, [f"{self._names['start']}()"])
        if edit is None:
            at = self._scopes.span(first).start
            edit = insertion(at, f"{self._names['start']}(); ")
        reason = "joins the processes that torchrun started; alone it does nothing"
        self._rewrite(guard.test, "distributed/start", [edit], reason)
        return False

    def _end(self) -> None:
        guard = self._main_guard()
        last = guard.body[-1] if guard else self._scopes.tree.body[-1]
        if not guard and isinstance(last, ast.FunctionDef | ast.ClassDef):
            return
        destroy = f"{self._unit.fill('torch')}.distributed.destroy_process_group()"
        edit = self._blocks.behind(last, [f"if {self._names['world_size']} > 1:", f"\t{destroy}"])
        if edit is not None:
            self._rewrite(edit.span, "distributed/end", [edit], "the processes part")

    def _main_guard(self) -> ast.If | None:
        for statement in self._scopes.tree.body:
            if isinstance(statement, ast.If) and "__main__" in self._scopes.text(statement.test):
                return statement
        return None

    def _is_early(self, guard: ast.If) -> bool:
        """Whether a model is wrapped or a loader made outside the guard as soon as the module is read."""
        module, inside = self._scopes.module, self._scopes.span(guard)
        nodes: list[ast.AST] = [wrap.statement for wrap in self._wraps]
        nodes += [loader.call for loader in self._ready]
        return any(
            self._scopes.scope(node) is module and not inside.contains(self._scopes.span(node))
            for node in nodes
        )

    def _rewrite(
        self, place: ast.AST | Span, rule: str, edits: Iterable[Edit], reason: str
    ) -> None:
        self._unit.note(place, rule, reason, outcome=Outcome.REWRITTEN, edits=edits)
