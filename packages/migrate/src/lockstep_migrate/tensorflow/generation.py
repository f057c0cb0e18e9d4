"""Tell whether a script is written for TensorFlow 1 or 2: by its names, or by the project's requirements."""

from __future__ import annotations

import ast
import enum
import re
from collections import Counter
from collections.abc import Iterable

from lockstep_migrate.engine.arguments import called
from lockstep_migrate.engine.scopes import ModuleScopes
from lockstep_migrate.tensorflow.facts import names
from lockstep_migrate.tensorflow.script import Generation, canonical

_TF1_ONLY = frozenset(names("1.15 alone"))
_TF2_USUAL = frozenset({"GradientTape", "function"})
"""Names that scripts for 2.x are full of; 1.15 has them too."""
_TF2_PATHS = frozenset(names("2.x alone"))
# Classes that lie right below these packages; 1.15 has functions there.
_TF2_CLASS = re.compile(r"(?:losses|metrics|optimizers)\.[A-Z]")
_REQUIREMENT = re.compile(
    r"(?<![\w-])tensorflow(?:[-_](?:gpu|cpu|macos|rocm|intel))?(?:\[[\w,-]*\])?[\"']?\s*[:,]?\s*[\"']?"
    r"(?P<operator>===?|~=|>=|<|>|\^|=)\s*v?(?P<major>\d+)"
    r"|tensorflow/tensorflow:(?P<image>\d)\."
)
_KERAS = frozenset({"fit", "compile", "evaluate", "predict", "numpy"})
"""Methods by which a Keras model is trained, and an eager tensor is read."""


class _Sign(enum.Enum):
    SURE = "the other version lacks the name"
    USUAL = "both have the name"


def generation_of(modules: Iterable[ModuleScopes], stated: Generation | None = None) -> Generation:
    """Which TensorFlow modules that belong together are written for.

    Names that one version alone has decide, then what the project requires, then what scripts for 2.x are full of, then
    Keras models without a session. Where nothing tells, it is 1.15, for which `npu_bridge` was made.

    `stated`: what the project requires; `None` where that is not known.
    """
    votes: Counter[tuple[Generation, _Sign]] = Counter()
    trains = False
    for scopes in modules:
        votes.update(vote for node in scopes.references() if (vote := _vote(scopes.name(node))))
        keras = any(_is_keras(canonical(scopes.name(node))) for node in scopes.references())
        trains |= keras and any(called(call) in _KERAS for call in scopes.of(ast.Call))
    sure = votes[Generation.TF2, _Sign.SURE] - votes[Generation.TF1, _Sign.SURE]
    if sure or stated is None:
        usual = bool(votes[Generation.TF2, _Sign.USUAL])
        newer = sure > 0 or (sure == 0 and (usual or trains))
        return Generation.TF2 if newer else Generation.TF1
    return stated


def tells(scopes: ModuleScopes) -> bool:
    """Whether a module tells by itself which TensorFlow it is written for."""
    return any(_vote(scopes.name(node)) for node in scopes.references())


def required_generation(text: str) -> Generation | None:
    """Which TensorFlow a list of requirements, a Dockerfile or a set-up asks for; `None` where it asks for none."""
    for match in _REQUIREMENT.finditer(text):
        major = int(match["major"] or match["image"])
        below = match["operator"] == "<"
        if below and major > 2:
            continue
        return Generation.TF1 if major - below < 2 else Generation.TF2
    return None


def _is_keras(name: str) -> bool:
    return name.startswith(("tensorflow.keras.", "keras.")) or name == "tensorflow.constant"


def _vote(name: str) -> tuple[Generation, _Sign] | None:
    name = canonical(name)
    package, _, rest = name.partition(".")
    if name in _TF2_PATHS or package == "npu_device":
        return Generation.TF2, _Sign.SURE
    if package == "npu_bridge":
        return Generation.TF1, _Sign.SURE
    if package != "tensorflow":
        return None
    if rest in _TF2_USUAL:
        return Generation.TF2, _Sign.USUAL
    if _TF2_CLASS.match(rest):
        return Generation.TF2, _Sign.SURE
    old_optimizer = rest.startswith("train.") and rest.endswith("Optimizer")
    return (Generation.TF1, _Sign.SURE) if rest in _TF1_ONLY or old_optimizer else None
