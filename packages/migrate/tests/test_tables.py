"""Every row of every table does what it says, and where torch can run what it writes, torch runs it."""

from __future__ import annotations

import ast
import warnings
from collections.abc import Iterator

import pytest
import torch
from migrating import TARGETS, listed, migrated, plan_of_code

from lockstep_migrate.names import has_name, names_of
from lockstep_migrate.plan import Outcome
from lockstep_migrate.project import target_named
from lockstep_migrate.torch.table import (
    Action,
    Entry,
    TableError,
    built_in,
    read_table,
    table_of,
)

# The tables that targets have, and the one that they share.
TABLES = (*TARGETS, "common")
# Functions and classes that take arguments which a row rearranges, each with a call as scripts have it.
CALLS = {
    "torch.cuda.synchronize": "()",
    "torch.cuda.set_rng_state": "(torch.cuda.get_rng_state())",
    "torch.cuda.set_per_process_memory_fraction": "(0.5, 0)",
    "torch.cuda.Event": "(enable_timing=True)",
    "torch.cuda.StreamContext": "(torch.cuda.current_stream())",
    "torch.is_autocast_enabled": "()",
    "torch.random.fork_rng": "()",
    "torch.distributed.fsdp.sharded_grad_scaler.ShardedGradScaler": "()",
    "torch.profiler.profile": "()",
    "torch.set_autocast_enabled": "(False)",
    "torch.cuda.amp.autocast": "(True, torch.float16)",
    "torch.cuda.amp.GradScaler": "(enabled=False)",
    "torch.amp.GradScaler": "(enabled=False)",
    "torch.cuda.amp.custom_fwd": "(cast_inputs=torch.float32)",
    "torch.cuda.amp.custom_bwd": "(lambda context: None)",
    "torch.get_autocast_gpu_dtype": "()",
    "torch.set_autocast_gpu_dtype": "(torch.float16)",
    "torch.distributed.is_nccl_available": "()",
    "apex.parallel.DistributedDataParallel": "(model, delay_allreduce=True)",
    "apex.parallel.convert_syncbn_model": "(torch.nn.BatchNorm1d(2))",
    "apex.parallel.SyncBatchNorm": "(4, 1e-5, channel_last=False)",
    "apex.normalization.FusedLayerNorm": "(4, 1e-5, True)",
    "apex.normalization.FusedRMSNorm": "(4, eps=1e-5)",
    "apex.optimizers.FusedAdam": "([torch.zeros(1)], lr=0.1, adam_w_mode=True, set_grad_none=True)",
    "apex.optimizers.FusedSGD": "([torch.zeros(1)], lr=0.1, momentum=0.9)",
    "apex.optimizers.FusedAdagrad": "([torch.zeros(1)], lr=0.1)",
}
# What runs only among several processes.
NEEDS_PEERS = frozenset({"apex.parallel.DistributedDataParallel", "ShardedGradScaler"})


def rows(*actions: Action) -> Iterator[tuple[str, Entry]]:
    """Each row with a target that it holds for; a row of the common table with every target."""
    for target in TARGETS:
        for entry in table_of(target_named(target)).entries:
            # What is asked of results, and what numbers a call is given, has its pairs.
            of_a_call = "()" in entry.name or entry.name[0] == "." or "numpy" in entry.arguments
            if not of_a_call and (not actions or entry.action in actions):
                yield target, entry


def identified(pairs: Iterator[tuple[str, Entry]]) -> list[object]:
    return [
        pytest.param(target, entry, id=f"{target}-{entry.table}-{entry.name}-{number}")
        for number, (target, entry) in enumerate(pairs)
    ]


def concrete(name: str) -> list[str]:
    """The names that a row speaks of: of a prefix those that torch has, or one that nobody has."""
    if not name.endswith("*"):
        return [name]
    prefix = name.rstrip("*")
    known = [
        found
        for found in sorted(names_of("torch"))
        if found.startswith(prefix) and "." not in found[len(prefix) :]
    ]
    return known or [f"{prefix}something"]


def decided_by(entry: Entry, target: str) -> list[tuple[str, Entry]]:
    """The names that this very row decides; none where the target's own row wins over a common one."""
    table = table_of(target_named(target))
    found = [(name, row) for name in concrete(entry.name) if (row := table.lookup(name))]
    own = [pair for pair in found if (pair[1].name, pair[1].table) == (entry.name, entry.table)]
    overruled = entry.table == "common" and any(row.table == target for _, row in found)
    assert own or overruled, f"{entry.name} decides nothing"
    return own


def _usual(entry: Entry) -> str:
    """How a call is written whose row only asks for few arguments, or replaces the whole."""
    few = ("most", "cut", "call", "told", "placed")
    return "()" if all(step.partition("=")[0] in few for step in entry.arguments) else "MISSING"


def script(name: str, entry: Entry) -> str:
    """A script that uses a name, called where its row rearranges arguments."""
    call = ""
    if entry.arguments and entry.action is not Action.LIST:
        call = CALLS.get(name, "(2)" if name.endswith("Tensor") else _usual(entry))
    assert call != "MISSING", f"{name}: write down how it is called"
    root = name.split(".")[0]
    imports = "import torch\n" if root == "torch" else f"import {root}\nimport torch\n"
    beside = "torch.zeros(1, device=where)\n" if "beside" in entry.arguments else ""
    return f"{imports}{beside}value = {name}{call}\n"


def outcomes(code: str, name: str, target: str, *, similar: bool = False) -> set[Outcome]:
    """What became of the line that uses the name."""
    plan = plan_of_code(code, target, similar=similar)
    start = code.index("value = ")
    return {mention.outcome for mention in plan.mentions if mention.span.start >= start}


def run(code: str) -> dict[str, object]:
    """Run a migrated script on this machine."""
    namespace: dict[str, object] = {"model": torch.nn.Linear(2, 2)}
    fast, slow = torch.get_autocast_dtype("cuda"), torch.get_autocast_dtype("cpu")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch tells that there is no CUDA here
        try:
            exec(compile(code, "migrated", "exec"), namespace)
        finally:
            torch.set_autocast_dtype("cuda", fast)
            torch.set_autocast_dtype("cpu", slow)
    return namespace


def runs(code: str) -> bool:
    """Whether a script runs on this machine as it is; some functions of CUDA's ask for a device."""
    try:
        return "value" in run(code)
    except (AssertionError, KeyError, RuntimeError):
        return False


def check_written(before: str, after: str, target: str) -> None:
    """Hold what was written against the lists of names, and run it where torch can."""
    for node in ast.walk(ast.parse(after)):
        if isinstance(node, ast.Attribute):
            chain = ast.unparse(node)
            if chain.startswith(("torch.", "torch_")) and "(" not in chain and chain not in before:
                assert has_name(target, chain), f"{target} has no {chain}"
    alone = not any(name in before for name in NEEDS_PEERS)
    if target == "neutral" and alone and "import apex" not in after:
        try:
            done = "value" in run(after)
        except (AssertionError, KeyError, RuntimeError):
            done = not runs(before)
        assert done


@pytest.mark.parametrize("table", TABLES)
def test_tables_are_well_formed_and_name_each_thing_once(table: str) -> None:
    entries = read_table(built_in(f"{table}.csv"), table)
    names = [entry.name for entry in entries]
    assert entries
    assert len(set(names)) == len(names)
    for entry in entries:
        written = entry.action.writes or entry.action in (Action.SIMILAR, Action.ALIAS)
        assert bool(entry.becomes) or not written, entry
        assert entry.reason or entry.action is Action.ALIAS, entry
        assert (
            not entry.arguments
            or written
            or set(entry.arguments)
            <= {
                "placed",
                "beside",
                "alone",
                "anywhere",
                "numpy",
                "given",
                "used",
                "called",
                "set",
                "on",
            }
        ), entry


@pytest.mark.sampled(3)
@pytest.mark.parametrize(("target", "entry"), identified(rows(Action.RENAME, Action.DIFFERS)))
def test_a_row_that_writes_is_written_and_runs(target: str, entry: Entry) -> None:
    for name, found in decided_by(entry, target):
        code = script(name, entry)
        after = migrated(code, target)
        if found.action is Action.LIST:  # the target lacks what the row would write
            assert outcomes(code, name, target) == {Outcome.LISTED}, name
            assert after == code
        else:
            found_there = outcomes(code, name, target)
            listed = "told" in entry.arguments and found_there == {Outcome.LISTED}
            assert listed or any(one.is_change for one in found_there), name
            assert f"value = {name}\n" not in after
            check_written(code, after, target)


@pytest.mark.parametrize(("target", "entry"), identified(rows(Action.SIMILAR)))
def test_a_similar_row_is_listed_unless_asked_for(target: str, entry: Entry) -> None:
    for name, found in decided_by(entry, target):
        code = script(name, entry)
        assert outcomes(code, name, target) == {Outcome.LISTED}
        if found.action is Action.SIMILAR:
            assert Outcome.DIFFERS in outcomes(code, name, target, similar=True)
            check_written(code, migrated(code, target, similar=True), target)


@pytest.mark.sampled(6)
@pytest.mark.parametrize(("target", "entry"), identified(rows(Action.LIST)))
def test_a_list_row_is_listed(target: str, entry: Entry) -> None:
    for name, _ in decided_by(entry, target):
        code = script(name, entry)
        # a library's names go with its import, and a switch that is only read needs nothing
        imported = len(listed(code, target)) == 1
        switch = not {"set", "on"}.isdisjoint(entry.arguments)
        assert outcomes(code, name, target) == {Outcome.LISTED} or imported or switch, name
        assert migrated(code, target) == code


@pytest.mark.sampled(3)
@pytest.mark.parametrize(("target", "entry"), identified(rows(Action.KEEP)))
def test_a_keep_row_is_kept(target: str, entry: Entry) -> None:
    for name, _ in decided_by(entry, target):
        code = script(name, entry)
        assert outcomes(code, name, target) <= {Outcome.KEPT}, name
        assert migrated(code, target) == code


@pytest.mark.sampled(3)
@pytest.mark.parametrize(("target", "entry"), identified(rows(Action.ALIAS)))
def test_an_alias_row_is_what_it_stands_for(target: str, entry: Entry) -> None:
    table = table_of(target_named(target))
    for name in concrete(entry.name):
        rest = name[len(entry.name) - 1 :] if entry.name.endswith("*") else ""
        found, meant = table.lookup(name), table.lookup(entry.becomes.replace("*", rest))
        assert found is not None
        if found.table == target and found.name == name:
            continue  # the target's own row wins
        assert meant is not None
        assert (found.action, found.becomes, found.arguments) == (
            meant.action,
            meant.becomes,
            meant.arguments,
        )


def test_a_target_that_lacks_a_name_lists_it() -> None:
    found = table_of(target_named("mps")).lookup("torch.cuda.nvtx_of_no_target")
    assert found is not None
    assert found.action is Action.LIST
    assert "mps has no counterpart" in found.reason


@pytest.mark.parametrize(
    ("text", "message"),
    [("a,rename,b\n", "columns"), ("a,rename,b,c,d,e\n", "columns"), ("a,invent,b,,\n", "invent")],
)
def test_a_malformed_table_is_said_so(text: str, message: str) -> None:
    with pytest.raises(TableError, match=message):
        read_table(text, "mine")


@pytest.mark.parametrize("name", ["torch.nn.Linear", "torch", "mytorch.cuda", "cuda", ""])
def test_other_names_have_no_row(name: str) -> None:
    assert table_of(target_named("neutral")).lookup(name) is None
