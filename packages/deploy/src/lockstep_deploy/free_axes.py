"""Axes of inputs that are free in the exported file: as `--dynamic` names and bounds them, and as torch finds them."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from lockstep.errors import UsageError
from lockstep_deploy.model_file import TensorSpec

if TYPE_CHECKING:  # `lockstep run` reads bounds without torch, which is slow to load
    import torch
    from torch.export import ExportedProgram

_PART = re.compile(
    r"(?:(?P<input>[\w.]+):(?P<axis>\d+)=)?(?P<name>[A-Za-z_]\w*)(?:\[(?P<least>\d*):(?P<most>\d*)\])?"
)
_BOUNDED = re.compile(r"(\w+) = Dim\('\w+'(?:, min=(\d+))?(?:, max=(\d+))?\)")
_MULTIPLE = re.compile(r"(\w+) = (\d+)\*_?(\w+)")
_FIXED = re.compile(r"(\w+) = (\d+)")
_GUARD = re.compile(
    r"Not all values of (\w+) = (\S+) in the specified range satisfy the generated guard (.+)\."
)
_ARITHMETIC = re.compile(r"[\dn\s()+\-*/%<>=!]+")


_FACT = "axes"
_TRIED = 1 << 12
"""Extents up to which a bound is looked for; torch checks what is found."""
_ANY = 1 << 31
"""No bound: more than an axis has."""


@dataclass(frozen=True, slots=True)
class FreeAxis:
    """A free axis: its name, the extents that it may have (None: any), and what it is a multiple of."""

    name: str
    least: int | None = None
    most: int | None = None
    multiple: int = 1

    @property
    def is_bounded(self) -> bool:
        """Whether its bounds were given."""
        return self.least is not None or self.most is not None

    def dim(self) -> Any:
        """Return the axis as torch.export takes it."""
        from torch.export import Dim

        bounds = {
            key: one for key, one in (("min", self.least), ("max", self.most)) if one is not None
        }
        if self.multiple > 1:
            return self.multiple * Dim(f"_{self.name}", **bounds)
        return Dim(self.name, **bounds)

    def __str__(self) -> str:
        if self.multiple > 1:
            return f"{self.name} is a multiple of {self.multiple}"
        least, most = ("" if one is None else str(one) for one in (self.least, self.most))
        return f"{self.name}[{least}:{most}]"


Axes = Mapping[str, Mapping[int, FreeAxis]]
"""Free axes by input and axis."""


def free_axes(text: str, inputs: Mapping[str, torch.Tensor]) -> dict[str, dict[int, FreeAxis]]:
    """Free axes by input and axis, as `--dynamic` says them.

    text: `batch,seq`: the first axes of every input that has them; or `ids:0=batch,ids:1=seq`. Bounds, both of them
        extents that are allowed, may follow a name: `seq[2:64]`.
    inputs: What the model is exported with.

    Raises UsageError if it is neither, or names what is not there.
    """
    found: dict[str, dict[int, FreeAxis]] = {}
    for at, part in enumerate(one.strip() for one in text.split(",") if one.strip()):
        match = _PART.fullmatch(part)
        if match is None:
            raise UsageError(
                f"--dynamic {part}: give names, as in batch,seq, or ids:0=batch, with bounds ids:1=seq[2:64]"
            )
        axis = at if match["axis"] is None else int(match["axis"])
        names = [
            name for name in inputs if match["input"] in (None, name) and inputs[name].dim() > axis
        ]
        if not names:
            raise UsageError(
                f"--dynamic {part}: no input has that axis; there are {_shapes(inputs)}"
            )
        least, most = (int(match[one]) if match[one] else None for one in ("least", "most"))
        free = FreeAxis(match["name"], least, most)
        _check_bounds(part, free, [inputs[name].shape[axis] for name in names])
        for name in names:
            found.setdefault(name, {})[axis] = free
    return found


def as_torch_takes(axes: Axes, inputs: Mapping[str, torch.Tensor]) -> dict[str, dict[int, Any]]:
    """`dynamic_shapes` of `torch.export`."""
    dims = {free.name: free.dim() for one in axes.values() for free in one.values()}
    return {
        name: {axis: dims[free.name] for axis, free in axes.get(name, {}).items()}
        for name in inputs
    }


def to_trace_with(inputs: Mapping[str, torch.Tensor], axes: Axes) -> dict[str, torch.Tensor]:
    """The inputs with free axes of extent 0 and 1 made 2: torch takes such an extent for one that is always so."""
    found = dict(inputs)
    for name, free in axes.items():
        for axis in free:
            if found[name].shape[axis] < 2 <= (free[axis].most or 2):
                found[name] = _of_extent(found[name], axis, 2)
    return found


def _of_extent(tensor: torch.Tensor, axis: int, extent: int) -> torch.Tensor:
    """A tensor with an axis of at most twice its extent, its elements again; zeros where it has none."""
    have = tensor.shape[axis]
    if not have:
        return tensor.new_zeros([*tensor.shape[:axis], extent, *tensor.shape[axis + 1 :]])
    times = [1 + (extent > have) if at == axis else 1 for at in range(tensor.dim())]
    return tensor.repeat(times).narrow(axis, 0, extent)


def as_suggested(axes: Axes, said: str) -> dict[str, dict[int, FreeAxis]] | None:
    """Axes with the bounds that torch suggests for those that have none; None where it suggests none, or fixes one.

    axes: As they were tried.
    said: The message of torch's error.
    """
    bounded = {
        one[1]: one.groups()[1:] for one in map(_BOUNDED.fullmatch, suggestions(said)) if one
    }
    bounded |= _guarded(said)
    multiples = {one[1]: one for one in map(_MULTIPLE.fullmatch, suggestions(said)) if one}

    def suggested(free: FreeAxis) -> FreeAxis:
        if free.name in multiples:
            return replace(free, multiple=int(multiples[free.name][2]))
        if free.name in bounded and not free.is_bounded:
            least, most = (int(one) if one else None for one in bounded[free.name])
            return replace(free, least=least, most=most)
        return free

    found = {
        name: {axis: suggested(free) for axis, free in one.items()} for name, one in axes.items()
    }
    return None if found == {name: dict(one) for name, one in axes.items()} else found


def _guarded(said: str) -> dict[str, tuple[str | None, ...]]:
    """The least extents of axes of which torch says what they must satisfy, and suggests nothing."""
    found: dict[str, tuple[str | None, ...]] = {}
    for name, extent, guard in _GUARD.findall(said):
        text = guard.replace(extent, "n")
        if _ARITHMETIC.fullmatch(text):
            wrong = [
                n for n in range(1, _TRIED) if not eval(text, {"__builtins__": {}}, {"n": n})
            ]  # arithmetic alone
            if wrong and wrong[-1] < _TRIED - 1:
                least = max(wrong[-1] + 1, int(found.get(name, ("0",))[0] or 0))
                found[name] = str(least), None
    return found


def suggestions(said: str) -> list[str]:
    """Return torch's suggestions for axes, a line each."""
    _, _, after = said.partition("Suggested fixes:")
    lines = after.lstrip("\n").split("\n\n")[0].splitlines()
    return [line.strip() for line in lines if line.strip()]


def constraint_sentence(said: str, places: Mapping[str, str] | None = None) -> str:
    """Return the error in free axes as a sentence, with torch's own suggestion and the places of axes, as clauses."""
    fixed = [one for one in map(_FIXED.fullmatch, suggestions(said)) if one]
    if fixed:
        at = {one[1]: (places or {}).get(one[1], "") or " in the module's code" for one in fixed}
        names = " and ".join(f"{one[1]} is always {one[2]}{at[one[1]]}" for one in fixed)
        return f"--dynamic: {names}, so it cannot be free; leave it out"
    lines = suggestions(said) or [
        line.strip(" -") for line in said.splitlines()[1:] if line.strip()
    ]
    return (
        f"--dynamic: the module's code bounds these axes; torch suggests {'; '.join(lines)[:600]}; say bounds, as in"
        " seq[2:64]"
    )


def other_extents(
    inputs: Mapping[str, torch.Tensor], axes: Axes, program: ExportedProgram
) -> dict[str, torch.Tensor]:
    """The inputs with every free axis twice as long, or as long as it may be, the same elements again.

    Where an axis may not be longer, it is shorter by one, or by what it is a multiple of.
    """
    found = {}
    for name, one in inputs.items():
        for axis, free in axes.get(name, {}).items():
            least, most = _range_of(program, name, axis)
            have = one.shape[axis]
            want = min(2 * have or 2, most - most % free.multiple)
            want = max(have - free.multiple, least) if want == have else want
            one = _of_extent(one, axis, want)
        found[name] = one.contiguous()
    return found


def bounds_of(axes: Axes) -> dict[str, Any]:
    """The facts of a file that say how long its free axes may be; none where any extent is right."""
    free = {one.name: one for some in axes.values() for one in some.values()}
    found = {
        name: [one.least, one.most, one.multiple]
        for name, one in free.items()
        if one.is_bounded or one.multiple > 1
    }
    return {_FACT: found} if found else {}


def extents_to_draw(facts: Mapping[str, Any]) -> dict[str, int]:
    """Extents of free axes that a file takes, by name: the smallest of those with bounds."""
    found = facts.get(_FACT)
    bounds = found if isinstance(found, dict) else {}
    multiples = {f"{one[2]}*_{name}": int(one[2]) for name, one in bounds.items() if one[2] > 1}
    least = {name: int(one[0]) for name, one in bounds.items() if one[0] is not None}
    return least | multiples


def check_extents(
    facts: Mapping[str, Any], signature: Sequence[TensorSpec], arrays: Mapping[str, Any]
) -> None:
    """Refuse inputs that a file was not exported for, where it says which: it would compute something with them.

    Raises UsageError if an axis is too long or too short.
    """
    found = facts.get(_FACT)
    bounds: Mapping[str, Any] = found if isinstance(found, dict) else {}
    for spec in signature if bounds else ():
        for name, have in zip(spec.shape or (), arrays[spec.name].shape, strict=False):
            least, most, _ = bounds.get(str(name), (None, None, 1))
            if not (least or 0) <= have <= (_ANY if most is None else most):
                raise UsageError(
                    f"--inputs {spec.name} has {have} along {name!r}; the file was exported for"
                    f" {FreeAxis(str(name), least, most)}"
                )


def name_axes(model: Any, axes: Axes, program: ExportedProgram) -> None:
    """Call free axes in a file what the user calls them, instead of the symbols that torch has for them."""
    names = {}
    for node in program.graph.nodes:
        for axis, free in axes.get(node.name, {}).items() if node.op == "placeholder" else ():
            symbol = str(node.meta["val"].shape[axis]).split("*")[-1]
            names[symbol] = f"_{free.name}" if free.multiple > 1 else free.name
    if not names:
        return
    words = re.compile(r"\b(" + "|".join(map(re.escape, names)) + r")\b")
    for value in (*model.graph.input, *model.graph.output, *model.graph.value_info):
        for dim in value.type.tensor_type.shape.dim:
            if dim.dim_param:
                dim.dim_param = words.sub(lambda match: names[match[1]], dim.dim_param)


def _range_of(program: ExportedProgram, name: str, axis: int) -> tuple[int, int]:
    """The extents that an axis may have: of torch's constraints, or any."""
    for node in program.graph.nodes:
        if node.op == "placeholder" and node.name == name:
            extent = node.meta["val"].shape[axis]
            known = program.range_constraints.get(
                getattr(getattr(extent, "node", None), "expr", None)
            )
            if known is not None:
                upper = str(known.upper)  # torch has an infinity of its own
                return int(known.lower), int(upper) if upper.isdigit() else _ANY
    return 1, _ANY


def _check_bounds(part: str, free: FreeAxis, extents: Sequence[int]) -> None:
    least, most = free.least or 0, 1 << 62 if free.most is None else free.most
    if least > most or any(not least <= one <= most for one in extents):
        raise UsageError(
            f"--dynamic {part}: the inputs have {', '.join(map(str, extents))} there; give bounds around that"
        )


def _shapes(inputs: Mapping[str, torch.Tensor]) -> str:
    return ", ".join(f"{name} {list(one.shape)}" for name, one in inputs.items())
