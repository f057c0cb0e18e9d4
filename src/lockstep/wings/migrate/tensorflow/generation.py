"""Which TensorFlow a script is written for."""

from __future__ import annotations

import re
from collections.abc import Iterable

from lockstep.wings.migrate.engine.scopes import ModuleScopes
from lockstep.wings.migrate.tensorflow.facts import names
from lockstep.wings.migrate.tensorflow.script import Generation, canonical

_TF1_ONLY = frozenset(names("1.15 alone"))
_TF2_ONLY = frozenset({"GradientTape", "function"})
_TF2_PATHS = frozenset(names("2.x alone"))
# Classes that lie right below these packages; 1.15 has functions there.
_TF2_CLASS = re.compile(r"(?:losses|metrics|optimizers)\.[A-Z]")


def generation_of(modules: Iterable[ModuleScopes]) -> Generation:
    """Which TensorFlow modules that belong together are written for, by the names that only one of them has.

    Where nothing tells, it is taken for 1.15, for which `npu_bridge` was made.
    """
    votes = {Generation.TF1: 0, Generation.TF2: 0}
    for scopes in modules:
        for node in scopes.references():
            vote = _vote(scopes.name(node))
            if vote is not None:
                votes[vote] += 1
    return Generation.TF2 if votes[Generation.TF2] > votes[Generation.TF1] else Generation.TF1


def _vote(name: str) -> Generation | None:
    name = canonical(name)
    package, _, rest = name.partition(".")
    if name in _TF2_PATHS or package == "npu_device":
        return Generation.TF2
    if package == "npu_bridge":
        return Generation.TF1
    if package != "tensorflow":
        return None
    if rest in _TF2_ONLY or _TF2_CLASS.match(rest):
        return Generation.TF2
    old_optimizer = rest.startswith("train.") and rest.endswith("Optimizer")
    return Generation.TF1 if rest in _TF1_ONLY or old_optimizer else None
