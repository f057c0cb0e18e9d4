"""Which knobs are worth a try for a training, from where it could take them; the safest and cheapest first."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from lockstep_tune.settings import KNOBS, Value
from lockstep_tune.tuned_run import TimedRun

PRECISION = ("float32_matmul", "autocast", "weights")
"""They compute in another precision: tried where the user accepts one."""


def worth_trying(told: TimedRun, *, accepts_precision: bool) -> dict[str, list[Value]]:
    """Return values by knob that differ from what the training has, in the order in which they are tried.

    told: What the training told as it is.
    accepts_precision: Whether another precision throughout may be kept.
    """
    found = {
        name: _VALUES[name](told)
        for name in KNOBS
        if name in _VALUES and (accepts_precision or name not in PRECISION)
    }
    return {name: values for name, values in found.items() if values}


def named_first(values: Mapping[str, list[Value]], wanted: Sequence[str]) -> dict[str, list[Value]]:
    """Return the same values, those of the wanted knobs first, in that order."""
    order = [name for name in dict.fromkeys(wanted) if name in values]
    order += [name for name in values if name not in order]
    return {name: values[name] for name in order}


def left_out(told: TimedRun, *, accepts_precision: bool) -> dict[str, str]:
    """Return why each of the other knobs is not tried."""
    tried = worth_trying(told, accepts_precision=accepts_precision)
    return {name: _why_not(told, name, accepts_precision) for name in KNOBS if name not in tried}


def _why_not(told: TimedRun, name: str, accepts_precision: bool) -> str:
    if name in PRECISION and not accepts_precision:
        return "another precision, without --accept"
    needs = KNOBS[name].used_as
    if needs and not any(use.knob == needs for use in told.uses):
        return f"no {KNOBS[name].place}"
    return f"the script has chosen, or nothing to gain on {told.device}"


def _threads(told: TimedRun) -> list[Value]:
    return [one for one in dict.fromkeys((told.cores, 1)) if one != told.threads]


def _workers(told: TimedRun) -> list[Value]:
    given = {use.given["num_workers"] for use in told.uses if use.knob == "workers"}
    if given != {0}:  # no loader, or the script has chosen
        return []
    return list(dict.fromkeys((told.cores, 1)))


def _prefetch(told: TimedRun) -> list[Value]:
    return [8] if any(use.given.get("num_workers") for use in told.uses) else []


def _pin(told: TimedRun) -> list[Value]:
    loaders = [use for use in told.uses if use.knob == "workers"]
    copies = told.device != "cpu" and any(not use.given["pin_memory"] for use in loaders)
    return [True] if copies else []


def _optimizer(told: TimedRun) -> list[Value]:
    uses = [use for use in told.uses if use.knob == "optimizer" and use.given]
    if not uses or all(use.given.get("fused") for use in uses):
        return []
    return ["fused", "foreach"] if any("fused" in use.given for use in uses) else ["foreach"]


def _where(knob: str, *values: Value) -> Callable[[TimedRun], list[Value]]:
    """These values, where the training has a place for the knob."""
    return lambda told: list(values) if any(use.knob == knob for use in told.uses) else []


def _compile(told: TimedRun) -> list[Value]:
    models = [use for use in told.uses if use.knob == "model"]
    if not models or any(use.given["compiled"] for use in models):
        return []
    return ["default"] if told.device == "cpu" else ["default", "max-autotune"]


def _sixteen_bits(told: TimedRun) -> list[Value]:
    return ["bfloat16"] if told.device == "cpu" else ["bfloat16", "float16"]


def _float32_matmul(told: TimedRun) -> list[Value]:
    return [] if told.device == "cpu" else ["high"]


_VALUES: Mapping[str, Callable[[TimedRun], list[Value]]] = {
    "threads": _threads,
    "affinity": lambda told: ["close"] if told.cores > 1 else [],
    "workers": _workers,
    "prefetch": _prefetch,
    "pin": _pin,
    "optimizer": _optimizer,
    "checkpointing": _where("checkpointing", False),
    "channels_last": _where("channels_last", True),
    "bucket": _where("bucket", 100),
    "compile": _compile,
    "float32_matmul": _float32_matmul,
    "autocast": _sixteen_bits,
    "weights": _sixteen_bits,
    "loss_scale": _where("loss_scale", 65536),
}
