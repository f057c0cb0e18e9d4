"""The main script from one process to many: all of it, or nothing but a list.

Samples that are shared out without gradients that are averaged would train another model in silence; so nothing is
rewritten unless a training loader and every model that is trained are written as the template needs them.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Sequence

from lockstep_migrate.distributed.devices import bind_devices
from lockstep_migrate.distributed.head import START_DOC, head_lines, takes_devices
from lockstep_migrate.distributed.models import uses
from lockstep_migrate.distributed.risks import OWN_PROCESSES, SAVING, list_risks, risk_of
from lockstep_migrate.distributed.training import (
    CannotDistributeError,
    Loader,
    Script,
    Wrap,
    check_models,
    find_loaders,
    find_wrap,
    iterated,
    obstacle,
)
from lockstep_migrate.engine.arguments import (
    argument,
    called,
    insertion,
    is_constant,
    keyword,
    opening,
    wrapped,
)
from lockstep_migrate.engine.blocks import Blocks
from lockstep_migrate.engine.statements import documented_function, main_guard
from lockstep_migrate.plan import Edit, Outcome, Span
from lockstep_migrate.torch.unit import Unit

WRAP = "distributed/model"
_LOADER = "distributed/loader"
_BY_HAND = "a DistributedSampler by hand"
_NAMES = {
    "rank": ("RANK", "PROCESS_RANK"),
    "local_rank": ("LOCAL_RANK", "PROCESS_LOCAL_RANK"),
    "world_size": ("WORLD_SIZE", "PROCESS_COUNT"),
    "start": ("start_processes", "start_torchrun_processes"),
    "training_loader": ("training_loader", "shared_training_loader"),
    "unwrapped": ("unwrapped", "unwrapped_model"),
}
_ADVANCING = frozenset({"next", "step", "backward", "pop"})
"""What changes something as it is called: no message of one process alone may do so."""


def distribute(unit: Unit, names: Sequence[str]) -> None:
    """Rewrite a main script for many processes, each with a device of its own."""
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
    script = Script(unit.scopes)
    if _list_own_processes(unit, script):
        return
    found = find_loaders(script)
    ready = _ready_loaders(unit, script, found)
    loops = [loop for loader in ready for loop in loader.loops]
    if not ready:
        if not any(loader.loops for loader in found):
            reason = "no loop over a variable that holds a torch DataLoader computes gradients in this file"
            _refuse(unit, None, _LOADER, reason)
        return
    try:
        wraps = [find_wrap(script, name, loops) for name in names]
        check_models(script, wraps)
    except CannotDistributeError as error:
        _refuse(unit, error.node, WRAP, str(error))
        return
    _Rewriting(unit, script, ready, wraps).run()


def _list_own_processes(unit: Unit, script: Script) -> bool:
    """List what a script does for many devices by itself."""
    own = [call for call in script.calls if unit.scopes.name(call.func) in OWN_PROCESSES]
    for call in own:
        name = unit.scopes.name(call.func)
        reason = (
            f"the script has {name} for many devices of its own: nothing is made distributed here"
        )
        instead = "start it with torchrun if it reads RANK and WORLD_SIZE; else take this out first"
        unit.note(call, "distributed/own", reason, instead)
    return bool(own)


def _ready_loaders(unit: Unit, script: Script, found: list[Loader]) -> list[Loader]:
    """Training loaders that can be shared out; all others are listed or kept."""
    ready = []
    for loader in found:
        shuffled = is_constant(argument(loader.call, "shuffle"), True)
        if loader.loops:
            problem = obstacle(script, loader)
            if not problem:
                ready.append(loader)
                continue
            reason = f"feeds the training, but {problem}: each process would see all samples"
            unit.note(loader.call, _LOADER, reason, _BY_HAND)
        elif "train" in loader.name.lower() or shuffled:
            reason = "looks like the training's, but no loop over its one variable is seen to compute gradients here"
            unit.note(loader.call, _LOADER, reason, _BY_HAND)
        else:
            reason = "evaluation: every process sees the whole set, and rank 0 reports"
            unit.note(loader.call, "distributed/evaluation", reason, outcome=Outcome.KEPT)
    known = [loop for loader in found for loop in loader.loops]
    for loop in unit.scopes.of(ast.For):
        strange = (
            any("loader" in name.lower() for name in iterated(loop.iter)) and loop not in known
        )
        if strange and script.trains(ast.Module(loop.body, [])):
            reason = "computes gradients on samples of a loader that is made elsewhere: each process sees all of them"
            unit.note(loop.iter, _LOADER, reason, "a DistributedSampler where it is made")
    return ready


def _refuse(unit: Unit, node: ast.AST | None, rule: str, reason: str) -> None:
    """List why nothing is made distributed."""
    unit.note(node or Span(0, 0), rule, f"{reason}; nothing was made distributed")


class _Rewriting:
    """Carries the whole change out, once it is known to be possible."""

    def __init__(self, unit: Unit, script: Script, ready: list[Loader], wraps: list[Wrap]) -> None:
        self._unit = unit
        self._scopes = unit.scopes
        self._script = script
        self._blocks = Blocks(unit.scopes)
        self._ready = ready
        self._wraps = wraps
        self._names = {key: unit.header.free(names) for key, names in _NAMES.items()}
        self._unwraps = False

    def run(self) -> None:
        """Claim every place."""
        torch = self._unit.fill("torch")
        placed: list[tuple[Wrap, Edit]] = []
        for wrap in self._wraps:
            parallel = f"{torch}.nn.parallel.DistributedDataParallel({wrap.name})"
            lines = [f"if {self._names['world_size']} > 1:", f"\t{wrap.name} = {parallel}"]
            edit = self._blocks.behind(wrap.statement, lines)
            if edit is None:
                _refuse(self._unit, wrap.statement, WRAP, "no line can follow this statement")
                return
            placed.append((wrap, edit))
        for wrap, edit in placed:
            span = Span(self._scopes.span(wrap.statement).start, edit.span.end)
            reason = f"averages the gradients of {wrap.name} between processes, which start from rank 0's parameters"
            self._rewrite(span, WRAP, [edit], reason)
        for loader in self._ready:
            self._share(loader)
            for loop in loader.loops:
                self._tell_epoch(loader, loop)
        self._unwrap()
        for call in self._script.calls:
            self._do_once(call)
        bind_devices(self._unit, self._names["local_rank"])
        list_risks(self._unit, self._script, self._ready, self._names)
        self._head()

    def _unwrap(self) -> None:
        for use in uses(self._script, self._wraps):
            if use.obstacle:
                self._unit.note(use.shown, "distributed/unwrapped", use.obstacle)
                continue
            self._unwraps = True
            edits = wrapped(self._scopes.span(use.node), self._names["unwrapped"])
            reason = "of the model itself, so that names and checkpoints stay as they are"
            self._rewrite(use.shown, "distributed/unwrapped", edits, reason)

    # -- the samples

    def _share(self, loader: Loader) -> None:
        call = loader.call
        place, start = self._scopes.span(call.func), opening(self._scopes, call)
        text = self._scopes.source.text
        comma = "," if text[start : start + 1] in ("\r", "\n", " ") else ", "
        edits = [
            insertion(place.start, f"{self._names['training_loader']}("),
            Edit(Span(place.end, start), comma),
        ]
        line, _ = self._scopes.source.position(self._scopes.span(loader.loops[0]).start)
        reason = (
            f"training: the loop over it in line {line} computes gradients; each process gets its own share through a "
            "DistributedSampler, which also shuffles where the loader did (a last share is filled up with repeated "
            "samples); the batch size stays that of one process"
        )
        self._rewrite(call, _LOADER, edits, reason)

    def _tell_epoch(self, loader: Loader, loop: ast.For) -> None:
        told = f"{loader.name}.sampler.set_epoch"
        around = self._epochs(loader, loop)
        for epoch in around:
            lines = [
                f"if {self._names['world_size']} > 1:",
                f"\t{told}({self._scopes.text(epoch.target)})",
            ]
            edit = self._blocks.before(epoch.body[0], lines)
            reason = "tells the sampler the epoch: without it each epoch has the same order"
            if edit is None:
                self._unit.note(epoch.target, "distributed/epoch", reason, lines[1].strip())
            else:
                span = Span(self._scopes.span(epoch).start, edit.span.end)
                self._rewrite(span, "distributed/epoch", [edit], reason)
        if not around:
            reason = "which loop counts the epochs cannot be told: without set_epoch each has the same order"
            self._unit.note(loop.iter, "distributed/epoch", reason, f"{told}(epoch)")

    def _epochs(self, loader: Loader, loop: ast.For) -> list[ast.For]:
        """The loops over epochs around a training loop, or around the calls of its function, that see the loader."""
        function = self._scopes.function(loop)
        places: list[ast.AST] = [loop]
        if function is not None and not self._counting_loops(loop, loader):
            places = list(self._script.callers(function))
        found = [self._counting_loops(place, loader)[:1] for place in places]
        return list(dict.fromkeys(epoch for loops in found for epoch in loops))

    def _counting_loops(self, node: ast.AST, loader: Loader) -> list[ast.For]:
        """Loops around a place, in its function, whose counter is an epoch; the loader is there as they start."""
        function = self._scopes.function(node)
        (store,) = self._script.stores(loader.name)
        return [
            loop
            for loop in self._scopes.ancestors(node)
            if isinstance(loop, ast.For)
            and self._scopes.function(loop) is function
            and "epoch" in getattr(loop.target, "id", "").lower()
            and self._scopes.bindings(loader.name, self._scopes.scope(loop))
            and not self._scopes.span(loop).contains(self._scopes.span(store))
        ]

    # -- what one process does

    def _do_once(self, call: ast.Call) -> None:
        """Let rank 0 alone save and print, except where a process tells why it ends."""
        risk = risk_of(self._unit, call)
        saves = risk is not None and risk.rule == SAVING
        prints = (
            isinstance(call.func, ast.Name)
            and call.func.id == "print"
            and not self._scopes.bindings("print", self._scopes.scope(call))
            and keyword(call, "file") is None
        )
        ends = any(isinstance(above, ast.ExceptHandler) for above in self._scopes.ancestors(call))
        if not (saves or (prints and not ends)):
            return
        rule = SAVING if saves else "distributed/logging"
        test = f"{self._names['rank']} == 0"
        statement = self._scopes.statement(call)
        problem = self._why_not_once(call, statement)
        if problem:
            reason = f"every process does this, one is enough; but it {problem}"
            self._unit.note(statement, rule, reason, f"if {test}:")
            return
        reason = "rank 0 alone tells this; what is told is of its own share of the samples"
        if saves:
            reason = "rank 0 alone saves this; all processes have the same parameters"
        self._rewrite(statement, rule, self._blocks.guarded(statement, test), reason)

    def _why_not_once(self, call: ast.Call, statement: ast.stmt) -> str:
        if not isinstance(statement, ast.Expr) or statement.value is not call:
            return "is part of another statement"
        if not self._blocks.stands_alone(statement):
            return "shares its line with another statement"
        inner = [node for node in ast.walk(call) if isinstance(node, ast.Call) and node is not call]
        names = {wrap.name for wrap in self._wraps} | self._script.functions.keys() | _ADVANCING
        if any(called(node) in names for node in inner):
            return "may run the model in its arguments, which every process has to do"
        return ""

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
        guard = main_guard(self._scopes)
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
        guard = main_guard(self._scopes)
        last = guard.body[-1] if guard else self._scopes.tree.body[-1]
        if not guard and isinstance(last, ast.FunctionDef | ast.ClassDef):
            return
        destroy = f"{self._unit.fill('torch')}.distributed.destroy_process_group()"
        edit = self._blocks.behind(last, [f"if {self._names['world_size']} > 1:", f"\t{destroy}"])
        if edit is not None:
            self._rewrite(edit.span, "distributed/end", [edit], "the processes part")

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
