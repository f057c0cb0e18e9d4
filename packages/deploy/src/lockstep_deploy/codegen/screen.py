"""Print the result of code generation, as text and as values for JSON."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from lockstep.terminal import Column, Page, add_paragraph, add_table, counted, terminal_width
from lockstep_deploy.codegen.checked import Held
from lockstep_deploy.codegen.generate import Program

_COLUMNS = (
    Column("result"), Column("equal", right=True), Column("max ulp", right=True), Column("max off", right=True),
    Column("allowed", right=True),
)  # fmt: skip

_CORTEX = ("arm-none-eabi-gcc", "qemu-system-arm")


@dataclass(frozen=True)
class Answer:
    """The answer about a generated program.

    program: What was generated.
    folder: Where it lies.
    held: Its results; empty where it could not be built.
    samples: How many it was run on.
    cc: Who built it; None where there is no compiler.
    """

    program: Program
    folder: Path
    held: Sequence[Held]
    samples: int
    cc: str | None

    @property
    def agrees(self) -> bool:
        """Whether it was run, and all of its results are allowed."""
        return bool(self.held) and all(one.agrees for one in self.held)


def headline(answer: Answer) -> str:
    """The answer in one sentence."""
    where = f"{answer.folder}: C99 of {counted(len(answer.program.model.graph.node), 'node')}"
    if not answer.held:
        return f"NOT COMPARED: {where}; no C compiler (cc, gcc, clang) is here, run `make test` where one is"
    if not answer.agrees:
        one = next(one for one in answer.held if not one.agrees)
        return f"DIFFERS: {where}, whose {one.name} is off by {one.max_abs:.3g}, and {one.allowed:.3g} is allowed"
    equal = all(one.equal == 1.0 for one in answer.held)
    return f"AGREES: {where}, {'equal to the runtime bit by bit' if equal else 'within what the order of sums changes'}"


def render(answer: Answer) -> Page:
    """The headline, memory, and a row a result."""
    text = Page()
    arena = answer.program.arena
    add_paragraph(text, headline(answer), indent="  ", first="")
    largest = arena.largest
    add_paragraph(
        text,
        f"memory: arena {arena.size_bytes:,} bytes, static ({arena.unshared_bytes:,} if no two values shared it)"
        + (f", largest buffer {largest.name} {largest.size_bytes:,} bytes" if largest else "")
        + f"; constants {answer.program.weight_bytes:,} bytes; no heap",
    )
    if answer.held:
        add_paragraph(
            text,
            f"built by {answer.cc}, run on {counted(answer.samples, 'sample')}, against onnxruntime node by node",
        )
    add_paragraph(text, cortex_words())
    add_table(
        text, _COLUMNS,
        [[one.name, f"{one.equal:.2%}", one.max_ulp, one.max_abs, one.allowed] for one in answer.held],
        indent="  ", width=terminal_width(),
    )  # fmt: skip
    return text


def cortex_words() -> str:
    """Return the checks for microcontrollers that were not done, and the reason."""
    missing = [name for name in _CORTEX if shutil.which(name) is None]
    if missing:
        return f"not run as a Cortex-M: {' and '.join(missing)} not found here; the Makefile says how to build for one"
    return "not run as a Cortex-M: the Makefile says how to build for one"


def as_values(answer: Answer) -> dict[str, Any]:
    """The answer as values of its JSON."""
    arena = answer.program.arena
    largest = arena.largest
    return {
        "headline": headline(answer),
        "agrees": answer.agrees if answer.held else None,
        "samples": answer.samples,
        "compiler": answer.cc,
        "arena_bytes": arena.size_bytes,
        "unshared_bytes": arena.unshared_bytes,
        "largest_buffer": None
        if largest is None
        else {"name": largest.name, "bytes": largest.size_bytes},
        "constant_bytes": answer.program.weight_bytes,
        "results": [asdict(one) | {"agrees": one.agrees} for one in answer.held],
    }
