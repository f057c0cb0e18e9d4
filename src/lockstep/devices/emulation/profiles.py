"""The names of emulated devices, and their arithmetic. No torch here: the command line lists them."""

from __future__ import annotations

import dataclasses
import difflib
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from lockstep.core.errors import UsageError
from lockstep.core.manifest import Options

RANDOM_ROUNDING = "random-rounding"

FAULT_KINDS = {
    "scale": 1.01,
    "offset": 0.01,
    "noise": 0.01,
    "zero": 1.0,
    "nan": 1.0,
    "fp16": 0.0,
}
"""What a wrong operator can do to its result, each with the amount where none is given."""


@dataclass(frozen=True, slots=True)
class WrongOperator:
    """One operator made wrong on purpose.

    text: As the user wrote it.
    operator: Shell pattern on its aten name (`gelu`, `convolution_backward`, `aten.add.Tensor`) or on the name of the
        torch function whose work it does (`torch.nn.functional.linear`).
    module: Shell pattern on the path of the module that calls it, or "" for anywhere.
    call: Which of the calls that match, from 0, or None for all of them.
    kind, amount: What is done to its first floating-point result y: `scale` y * amount, `offset` y + amount, `noise` y
        * (1 + amount * n) with n from a standard normal distribution, `zero` the first share `amount` of its elements
        becomes 0, `nan` its first `amount` elements become NaN, `fp16` rounded to 16 bits.
    """

    text: str
    operator: str
    module: str = ""
    call: int | None = None
    kind: str = "scale"
    amount: float = FAULT_KINDS["scale"]


@dataclass(frozen=True, slots=True)
class Profile:
    """The differences of an emulated device.

    operands: Format to which float32 inputs of matrix products and convolutions are rounded: "fp16", "bf16", "tf32",
        "hf32", or "" for none.
    reorder: Sums run in another order.
    accumulate_fp16: Sums are kept in 16 bits while they run.
    flush_subnormals: Results below the smallest normal number become zero.
    saturate: Overflow gives the largest finite number.
    random_rounding: Seed of the random rounding of every result, or None for none.
    wrong: Operators made wrong on purpose.
    """

    operands: str = ""
    reorder: bool = False
    accumulate_fp16: bool = False
    flush_subnormals: bool = False
    saturate: bool = False
    random_rounding: int | None = None
    wrong: tuple[WrongOperator, ...] = ()


@dataclass(frozen=True, slots=True)
class _Entry:
    """One line of the table: the profile of that name, and what it is in words."""

    description: str
    profile: Profile


PROFILES = {
    "npu-fp16": _Entry(
        "matrix products and convolutions round their float32 inputs to fp16",
        Profile(operands="fp16"),
    ),
    "npu-bf16": _Entry(
        "matrix products and convolutions round their float32 inputs to bf16",
        Profile(operands="bf16"),
    ),
    "tf32": _Entry(
        "the same to TF32: 8 bits of exponent, 10 of mantissa", Profile(operands="tf32")
    ),
    "hf32": _Entry(
        "the same to HF32: 8 bits of exponent, 11 of mantissa", Profile(operands="hf32")
    ),
    "reorder": _Entry(
        "sums run in another order: a sound device that rounds differently", Profile(reorder=True)
    ),
    "fp16-accumulate": _Entry(
        "sums inside of products, convolutions and reductions are kept in fp16",
        Profile(accumulate_fp16=True),
    ),
    "ftz": _Entry("subnormal results become zero", Profile(flush_subnormals=True)),
    "saturate": _Entry("overflow gives the largest finite number, not inf", Profile(saturate=True)),
    RANDOM_ROUNDING: _Entry(
        "every result is rounded at random; with another seed: random-rounding:7",
        Profile(random_rounding=0),
    ),
}
"""Every profile. HF32 is the HFLOAT32 of Ascend's matrix unit; TF32 is NVIDIA's."""

_WRONG_SYNTAX = "wrong:[MODULE/]OPERATOR[#CALL][:KIND[:AMOUNT]]"


def profile_table() -> str:
    """Every profile with its description, one line each."""
    rows = {name: entry.description for name, entry in PROFILES.items()}
    width = max(len(name) for name in PROFILES)
    lines = [f"{name:{width}}  {text}" for name, text in rows.items()]
    lines += [_WRONG_SYNTAX, f"{'':{width}}  one operator is wrong: {', '.join(FAULT_KINDS)}"]
    return "\n".join(lines)


def device_of(options: Options) -> str:
    """Name of the device that a recording is to emulate, "" for none.

    >>> device_of(Options(emulate="tf32", calibrate=True))
    'tf32+random-rounding'
    """
    parts = [options.emulate, RANDOM_ROUNDING if options.calibrate else ""]
    return "+".join(part for part in parts if part)


def parse_profile(text: str) -> Profile:
    """Profile of an emulated device from its name, or several joined by `+`.

    Raises
    ------
    UsageError
        If a name is unknown, given twice, or does not go with another; the message lists the names.

    Examples
    --------
    >>> parse_profile("npu-fp16+ftz").operands
    'fp16'
    >>> parse_profile("wrong:encoder.norm/native_layer_norm:scale:1.5").wrong[0].module
    'encoder.norm'
    """
    merged = Profile()
    for part in text.split("+"):
        merged = _merged(merged, _part(part.strip(), text), text)
    return merged


def _part(part: str, whole: str) -> Profile:
    name, colon, rest = part.partition(":")
    if name == "wrong" and rest:
        return Profile(wrong=(_wrong_operator(rest, whole),))
    if name == RANDOM_ROUNDING and colon:
        return Profile(random_rounding=_number(int, rest, "a seed", whole))
    if part in PROFILES:
        return PROFILES[part].profile
    near = difflib.get_close_matches(name, [*PROFILES, "wrong"], n=1)
    raise UsageError(
        f"emulated device {whole!r}: there is no {part!r}; "
        + (f"did you mean {near[0]}? " if near else "")
        + f"choose from {', '.join(PROFILES)} and {_WRONG_SYNTAX}; several are joined by +"
    )


def _wrong_operator(rest: str, whole: str) -> WrongOperator:
    # A name of aten may hold two colons of its own: aten::add.
    place, kind, amount = [*rest.replace("::", ".").split(":", 2), "", ""][:3]
    module, slash, operator = place.rpartition("/")
    operator, hash_sign, call = operator.partition("#")
    kind = kind or "scale"
    if not operator or (slash and not module):
        raise UsageError(f"emulated device {whole!r}: write {_WRONG_SYNTAX}")
    if kind not in FAULT_KINDS:
        raise UsageError(
            f"emulated device {whole!r}: {kind!r} is not a kind of fault; choose one of"
            f" {', '.join(FAULT_KINDS)}"
        )
    return WrongOperator(
        text=rest,
        operator=operator,
        module=module,
        call=_number(int, call, "the number of a call", whole) if hash_sign else None,
        kind=kind,
        amount=_number(float, amount, "an amount", whole) if amount else FAULT_KINDS[kind],
    )


def _number(kind: Callable[[str], float], text: str, what: str, whole: str) -> int:
    # Typed as the narrower of the two; `kind` decides which it is.
    try:
        return kind(text)  # type: ignore[return-value]
    except ValueError:
        raise UsageError(f"emulated device {whole!r}: {text!r} is not {what}") from None


def _merged(first: Profile, second: Profile, whole: str) -> Profile:
    changes: dict[str, Any] = {}
    for item in dataclasses.fields(Profile):
        before, after = getattr(first, item.name), getattr(second, item.name)
        if item.name == "wrong":
            changes[item.name] = (*before, *after)
        elif after != item.default:
            if before != item.default:
                problem = "a part is given twice"
                if item.name == "operands":
                    problem = "inputs of products can be rounded to one format only"
                raise UsageError(f"emulated device {whole!r}: {problem}; keep one of them")
            changes[item.name] = after
    return dataclasses.replace(first, **changes)


def named_operator(pattern: str) -> str:
    """The part of an operator pattern that aten names can match: no package, no trailing underscore.

    >>> named_operator("torch.nn.functional.gelu"), named_operator("aten.add_.Tensor")
    ('gelu', 'aten.add_.Tensor')
    """
    return re.sub(r"^torch\.(?!ops\.)(\w+\.)*", "", pattern).removeprefix("torch.ops.")
