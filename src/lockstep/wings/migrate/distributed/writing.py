"""What only one process should do: print, log and save."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

from lockstep.wings.migrate.distributed.blocks import Blocks
from lockstep.wings.migrate.distributed.flow import Flow
from lockstep.wings.migrate.distributed.model import Wrap, refers
from lockstep.wings.migrate.engine.arguments import called, keyword
from lockstep.wings.migrate.engine.statements import siblings

_SAVING = frozenset(
    {
        "torch.save", "torchvision.utils.save_image", "numpy.save", "numpy.savez", "numpy.savetxt",
        "numpy.savez_compressed", "matplotlib.pyplot.savefig", "shutil.copyfile", "shutil.copy",
        "shutil.copy2", "shutil.move",
    }
)  # fmt: skip
_LOGGING = frozenset({"logging.info", "logging.debug"})
_LOGGERS = frozenset({"logging.getLogger"})
_WRITERS = ("SummaryWriter",)
_LEVELS = frozenset({"info", "debug"})


@dataclass(frozen=True, slots=True)
class Guard:
    """A statement that one process is enough for.

    Parameters
    ----------
    statement
        The statement.
    kind
        `saving` or `logging`.
    obstacle
        Why it cannot be put under a condition; empty where it can.
    """

    statement: ast.stmt
    kind: str
    obstacle: str = ""


def guards(flow: Flow, blocks: Blocks, wraps: list[Wrap]) -> Iterator[list[Guard]]:
    """Statements for one process, neighbours together."""
    sources = _Sources(flow, wraps)
    decided = (_guard(flow, blocks, sources, call) for call in flow.calls)
    found = {guard.statement: guard for guard in decided if guard is not None}
    done: set[ast.stmt] = set()
    for statement, guard in found.items():
        if statement in done:
            continue
        run = [guard]
        if not guard.obstacle:
            block = siblings(flow.scopes, statement)
            for following in block[block.index(statement) + 1 :]:
                if following not in found or found[following].obstacle:
                    break
                run.append(found[following])
        done.update(item.statement for item in run)
        yield run


class _Sources:
    """What makes writers and loggers, and what runs a model."""

    def __init__(self, flow: Flow, wraps: list[Wrap]) -> None:
        self.writers = flow.reaching(call for call in flow.calls if makes_writer(flow, call))
        makers = (call for call in flow.calls if flow.scopes.name(call.func) in _LOGGERS)
        self.loggers = flow.reaching(makers)
        self.runs = {call for call in flow.calls if refers(flow, wraps, call.func)}
        self.runners = flow.functions_with(self.runs)


def _guard(flow: Flow, blocks: Blocks, sources: _Sources, call: ast.Call) -> Guard | None:
    kind = _kind(flow, sources, call)
    statement = flow.scopes.statement(call)
    if not kind:
        return None
    if not isinstance(statement, ast.Expr) or statement.value is not call:
        return Guard(statement, kind, "its value is used") if kind == "saving" else None
    if _reports_failure(flow, call):
        return None
    if not blocks.stands_alone(statement):
        return Guard(statement, kind, "shares its line with another statement")
    if _runs_the_model(flow, sources, call):
        return Guard(
            statement, kind, "runs the model in its arguments, which every process has to do"
        )
    return Guard(statement, kind)


def _kind(flow: Flow, sources: _Sources, call: ast.Call) -> str:
    name = flow.scopes.name(call.func)
    if name in _SAVING or called(call) == "save_pretrained":
        return "saving"
    if name in _LOGGING or _is_print(flow, call):
        return "logging"
    if not isinstance(call.func, ast.Attribute):
        return ""
    logs = call.func.attr in _LEVELS and call.func.value in sources.loggers
    return "logging" if logs or call.func.value in sources.writers else ""


def _is_print(flow: Flow, call: ast.Call) -> bool:
    return (
        isinstance(call.func, ast.Name)
        and call.func.id == "print"
        and not flow.scopes.bindings("print", flow.scopes.scope(call))
        and keyword(call, "file") is None
    )


def makes_writer(flow: Flow, node: ast.AST) -> bool:
    """Whether an expression makes a TensorBoard writer."""
    return isinstance(node, ast.Call) and flow.scopes.name(node.func).endswith(_WRITERS)


def _reports_failure(flow: Flow, call: ast.Call) -> bool:
    """Whether a message tells why a process ends: each has to tell its own."""
    return any(isinstance(above, ast.ExceptHandler) for above in flow.scopes.ancestors(call))


def _runs_the_model(flow: Flow, sources: _Sources, call: ast.Call) -> bool:
    """Whether arguments call the model, or a function of this file that does."""
    inner = (node for node in ast.walk(call) if isinstance(node, ast.Call) and node is not call)
    return any(node in sources.runs or flow.callee(node) in sources.runners for node in inner)
