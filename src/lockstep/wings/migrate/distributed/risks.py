"""What is otherwise with many processes and is no place's own fault: listed, never changed."""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence

from lockstep.wings.migrate.distributed.flow import Flow
from lockstep.wings.migrate.distributed.loaders import LOADERS, Loader
from lockstep.wings.migrate.engine.arguments import attribute_span, called, is_constant, keyword
from lockstep.wings.migrate.engine.unit import Unit
from lockstep.wings.migrate.plan import Edit

_NORMS = tuple(f"torch.nn.BatchNorm{suffix}" for suffix in ("1d", "2d", "3d"))
_READING = frozenset({"item", "sum", "cpu", "detach", "tolist"})
_FOLDERS = frozenset({"os.makedirs", "os.mkdir"})
_WRITING = frozenset({"w", "wb", "a", "ab", "w+", "x", "wt", "at"})


def list_risks(unit: Unit, flow: Flow, loaders: Sequence[Loader], names: Mapping[str, str]) -> None:
    """List what a person should look at: batch size, seeds, batch norm, downloads, files, counts of samples."""
    world, rank = names["world_size"], names["rank"]
    for loader in loaders:
        _list_batch_size(unit, loader, world)
        _count_shares(unit, flow, loader, loaders)
        _list_sums(unit, flow, loader)
    for call in flow.calls:
        _list_call(unit, flow, call, rank)
    _list_norm(unit, flow)


def _list_batch_size(unit: Unit, loader: Loader, world: str) -> None:
    item = keyword(loader.call, "batch_size")
    positional = loader.call.args[1:2]
    unit.note(
        item or (positional[0] if positional else loader.call),
        "distributed/batch-size",
        f"the batch stays that of one process: a step takes {world} times as many samples, an epoch has fewer steps",
        f"divide it by {world}, or scale the learning rate",
    )


def _count_shares(unit: Unit, flow: Flow, loader: Loader, loaders: Sequence[Loader]) -> None:
    """`len(loader.dataset)` of a training loader counts the samples of all processes."""
    shared = {item.call for item in loaders}
    for call in flow.calls:
        argument = call.args[0] if called(call) == "len" and len(call.args) == 1 else None
        if not isinstance(argument, ast.Attribute) or argument.attr != "dataset":
            continue
        made = {
            node
            for node in flow.trail(argument.value)
            if isinstance(node, ast.Call) and flow.scopes.name(node.func) in LOADERS
        }
        if loader.call not in made or unit.is_claimed(argument):
            continue
        if made <= shared:
            edit = Edit(attribute_span(flow.scopes, argument), "sampler")
            reason = "counts the share of one process, which is everything in a script that is started alone"
            unit.rewrite(argument, "distributed/metric", reason, [edit])
        else:
            reason = "counts the samples of all processes, also where it stands for a share"
            unit.note(argument, "distributed/metric", reason, "len(loader.sampler)")


def _list_sums(unit: Unit, flow: Flow, loader: Loader) -> None:
    """`total += loss.item()` in a training loop."""
    for node in dict.fromkeys(inner for item in loader.training for inner in ast.walk(item.loop)):
        if isinstance(node, ast.AugAssign) and any(
            isinstance(inner, ast.Call) and called(inner) in _READING
            for inner in ast.walk(node.value)
        ):
            unit.note(
                node,
                "distributed/metric",
                "sums up one process's share: what rank 0 tells of it is not averaged between processes",
                "torch.distributed.all_reduce of the sum, where there are several processes",
            )


def _list_call(unit: Unit, flow: Flow, call: ast.Call, rank: str) -> None:
    name = flow.scopes.name(call.func)
    if name == "torch.manual_seed":
        unit.note(
            call,
            "distributed/seed",
            "every process draws the same random numbers: the same dropout and noise on different samples",
            f"behind the wrap once more, with {rank} added",
        )
    elif name == "torch.utils.data.random_split" and not _is_seeded(flow, call):
        unit.note(
            call,
            "distributed/seed",
            "every process splits by random numbers of its own: what one trains on, another tests",
            "generator=torch.Generator().manual_seed(0)",
        )
    elif name in _FOLDERS and keyword(call, "exist_ok") is None:
        unit.note(
            call,
            "distributed/files",
            "every process makes this folder, and fails where another was first",
            "os.makedirs(..., exist_ok=True)",
        )
    elif name == "open" or (called(call) == "open" and isinstance(call.func, ast.Name)):
        mode = call.args[1] if len(call.args) > 1 else None
        if isinstance(mode, ast.Constant) and mode.value in _WRITING:
            reason = "every process writes this file"
            unit.note(call, "distributed/files", reason, f"if {rank} == 0:")
    item = keyword(call, "download")
    if item is not None and is_constant(item.value, True):
        unit.note(
            item,
            "distributed/files",
            "every process downloads this at the same time; fetch it once before",
        )


def _is_seeded(flow: Flow, call: ast.Call) -> bool:
    """Whether a call draws what it would draw in every process."""
    seeds = (other for other in flow.calls if flow.scopes.name(other.func) == "torch.manual_seed")
    return keyword(call, "generator") is not None or any(seeds)


def _list_norm(unit: Unit, flow: Flow) -> None:
    for call in flow.calls:
        if flow.scopes.name(call.func) in _NORMS:
            unit.note(
                call,
                "distributed/batch-norm",
                "each process normalizes by its own share of the batch; the first of these places stands for all",
                "torch.nn.SyncBatchNorm.convert_sync_batchnorm(model) before the wrap",
            )
            return
