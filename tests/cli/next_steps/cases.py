"""Pairs of small trainings whose printed next steps are followed."""

from __future__ import annotations

from dataclasses import dataclass

SKETCHES, TENSORS, STATS = (), ("--save", "tensors"), ("--save", "stats")


@dataclass(frozen=True)
class Case:
    """A training without and with one difference, recorded alike.

    Parameters
    ----------
    script, mode
        The file in `scripts`, and its first argument; the reference has `sound`.
    options
        As `lockstep record` takes them.
    more
        Further arguments of the script.
    comparing
        As `lockstep compare` takes them.
    """

    script: str
    mode: str
    options: tuple[str, ...] = ()
    more: tuple[str, ...] = ()
    comparing: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        words = (self.script, self.mode, *self.options, *self.more, *self.comparing)
        return "-".join(word.strip("-").replace(",", "+") for word in words)


_LAYERS = [
    "function",
    "tanh",
    "written",
    "eps",
    "drop",
    "no-norm",
    "half",
    "branch",
    "detached",
    "hook",
    "gradient-hook",
    "double",
    "frozen",
    "init",
    "one-init",
    "lr",
    "decay",
    "betas",
    "adam",
    "kept",
    "batch",
    "random",
    "scaled",
    "rows",
    "late",
    "smoothing",
    "reduction",
    "no-zero",
    "loss",
    "clip",
    "lost",
    "between",
    "short",
    "bias",
    "seed",
    "again",
]
_ATTENTION = [
    "order",
    "scale",
    "no-mask",
    "diagonal",
    "fill",
    "dim",
    "log",
    "cast",
    "einsum",
    "norm",
    "roll",
    "cumsum",
    "momentum",
    "target",
    "mean",
    "auxiliary",
]
_IMAGES = [
    "padding",
    "running",
    "slope",
    "pool",
    "no-pool",
    "eval",
    "nesterov",
    "flipped",
    "channels",
]
_OF_EVERY_WAY = (("layers", "function"), ("layers", "written"), ("layers", "no-norm"),
    ("layers", "lost"), ("layers", "lr"), ("layers", "hook"), ("attention", "dim"),
    ("attention", "scale"), ("attention", "cumsum"), ("images", "padding"), ("experts", "bug"))  # fmt: skip

CASES = [
    *(Case("layers", mode) for mode in _LAYERS),
    Case("classes", "written"),
    *(Case("attention", mode) for mode in _ATTENTION),
    *(Case("images", mode) for mode in _IMAGES),
    *(Case("experts", mode) for mode in ("bug", "rows")),
    *(Case(*one, TENSORS) for one in _OF_EVERY_WAY),
    *(Case(*one, STATS) for one in _OF_EVERY_WAY[:9:2]),
    *(Case(*one, ("--level", "module")) for one in _OF_EVERY_WAY[:9:2]),
    *(Case(*one, ("--level", "aten")) for one in _OF_EVERY_WAY[::2]),
    *(Case("layers", mode, ("--steps", "1:3")) for mode in ("late", "between", "function")),
    *(
        Case("compiled", mode, (), more)
        for mode in ("norm", "relu", "half", "eager")
        for more in ((), ("--bfloat16",))
    ),
    *(Case("ranks", mode) for mode in ("hook", "tanh", "weights", "lr", "batch", "lost")),
    *(Case("in_code", mode) for mode in ("tanh", "batch", "lost")),
    *(Case("layers", mode, (), (), ("--all",)) for mode in ("tanh", "again")),
]
