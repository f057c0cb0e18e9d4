"""The graph optimizers of the runtime: it names them in its log alone, and takes an unknown name without a word."""

from __future__ import annotations

import mmap
import os
import re
import sys
import tempfile
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cache
from pathlib import Path

from lockstep.errors import UsageError
from lockstep.terminal import listed
from lockstep_deploy.engines import engine

RULES = (
    "EliminateIdentity", "EliminateSlice", "UnsqueezeElimination", "EliminateDropout", "ExpandElimination",
    "CastElimination", "CastChainElimination", "PreShapeNodeElimination", "NoopElimination", "DivMulFusion",
    "FuseReluClip", "GemmSumFusion", "GemmTransposeFusion", "NotWhereFusion", "ConvAddFusion", "ConvMulFusion",
    "ConvBNFusion", "Pad_Fusion", "MatMul_BatchNormalization_Fusion", "ClipQuantRewrite", "ReluQuantRewrite",
    "LabelEncoderFusion",
)  # fmt: skip
"""Rules inside of `RULE_SET`, which has the log's only line about them; each may be disabled by its own name."""

RULE_SET = "Level1_RuleBasedTransformer"

_RAN = re.compile(r"GraphTransformer (\S+) modified: ([01]) with status")


@dataclass(frozen=True, slots=True)
class Optimizer:
    """An optimizer that the runtime ran over a graph, and whether it changed anything."""

    name: str
    changed: bool


def ran_in(log: str) -> tuple[Optimizer, ...]:
    """The optimizers that a session's log tells of, in the order of their first run."""
    changed: dict[str, bool] = {}
    for name, flag in _RAN.findall(log):
        changed[name] = changed.get(name, False) or flag == "1"
    return tuple(Optimizer(name, flag) for name, flag in changed.items())


def check_names(names: Collection[str], ran: Collection[Optimizer]) -> None:
    """Refuse names that the runtime would ignore.

    names: To be disabled.
    ran: What the runtime has for this model, with nothing disabled.

    Raises UsageError with the nearest name.
    """
    known = [*(one.name for one in ran), *rules_of_library()]
    for name in names:
        if name not in known:
            near = get_close_matches(name, known, 1, cutoff=0.5)
            advice = f"the nearest is {near[0]}" if near else f"there are {listed(known, 99)}"
            raise UsageError(
                f"the runtime has no optimizer {name}, and would disable nothing; {advice}"
            )


@cache
def rules_of_library() -> tuple[str, ...]:
    """Those of `RULES` that the installed runtime has: their names stand in its library."""
    return tuple(name for name in RULES if _stands_in_library(name))


def check_entries(entries: Sequence[tuple[str, str]]) -> None:
    """Refuse settings that the runtime does not have: it takes any name without a word.

    Raises UsageError if the name of one does not stand in its library.
    """
    unknown = [key for key, _ in entries if not _stands_in_library(key)]
    if unknown:
        version = engine("onnxruntime").__version__
        raise UsageError(
            f"--session {unknown[0]}: onnxruntime {version} has no such setting, and would say nothing; its names are"
            " listed in onnxruntime_session_options_config_keys.h"
        )


@cache
def _stands_in_library(name: str) -> bool:
    state = engine("onnxruntime.capi.onnxruntime_pybind11_state")
    with (
        Path(state.__file__).open("rb") as file,
        mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data,
    ):
        return data.find(b"\0" + name.encode() + b"\0") >= 0


def with_native_log(work: Callable[[], object]) -> str:
    """Return native code's output on the error stream while `work` runs; Python's earlier output goes out first."""
    sys.stderr.flush()
    kept = os.dup(2)
    with tempfile.TemporaryFile() as aside:
        os.dup2(aside.fileno(), 2)
        try:
            work()
        finally:
            os.dup2(kept, 2)
            os.close(kept)
        aside.seek(0)
        return aside.read().decode("utf-8", "replace")
