"""Advice on optimizers: forms that update all parameters in one operator."""

from __future__ import annotations

import ast
from dataclasses import dataclass
from functools import lru_cache

from lockstep_migrate.advice.advisor import Advisor
from lockstep_migrate.advice.words import read_table
from lockstep_migrate.engine.arguments import appended, argument, has_stars, keyword

_OWN_FORMS = ("fused", "foreach", "capturable", "differentiable")
_APEX = "apex.amp.initialize"


@dataclass(frozen=True, slots=True)
class Optimizer:
    npu: str
    npu_parameters: tuple[str, ...]
    fused_targets: tuple[str, ...]


@lru_cache(maxsize=1)
def known_optimizers() -> dict[str, Optimizer]:
    return {
        torch: Optimizer(npu, tuple(parameters.split(";")), tuple(fused.split(";")))
        for torch, npu, parameters, fused in read_table("optimizers.csv")
    }


def find_optimizers(advisor: Advisor) -> None:
    """Advise on every optimizer of torch that is made, and on apex's preparation of it."""
    for node in advisor.scopes.of(ast.Call):
        name = advisor.scopes.name(node.func)
        if name in known_optimizers():
            _advise(advisor, node, known_optimizers()[name])
        elif name == _APEX and keyword(node, "combine_grad") is None:
            _advise_apex(advisor, node)


def _advise(advisor: Advisor, call: ast.Call, optimizer: Optimizer) -> None:
    named = [item.arg for item in call.keywords]
    if None in named or any(name in _OWN_FORMS for name in named):
        return
    if all(name in optimizer.npu_parameters for name in named):
        advisor.suggest("advice/fused-optimizer", call, optimizer.npu)
    if advisor.unit.target.name in optimizer.fused_targets:
        advisor.suggest("advice/fused-keyword", call, "fused=True")


def _advise_apex(advisor: Advisor, call: ast.Call) -> None:
    """`combine_grad` of the apex that is built for the NPU; without an optimizer there are no gradients."""
    optimizers = argument(call, "optimizers", 1)
    if has_stars(call) or optimizers is None:
        return
    if isinstance(optimizers, ast.List) and not optimizers.elts:
        return
    edits = appended(advisor.scopes, call, "combine_grad=True")
    advisor.offer("advice/combine-grad", call, "combine_grad=True", edits)
