"""The files around a generated program: header, test with recorded samples, Makefile."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from lockstep.errors import UsageError
from lockstep_deploy.codegen.generate import Program
from lockstep_deploy.runtime import Array

_C_TYPES = {
    "float32": "float", "float64": "double", "bool": "_Bool",
    **{f"{sign}int{bits}": f"{sign}int{bits}_t" for sign in ("", "u") for bits in (8, 16, 32, 64)},
}  # fmt: skip

_MAKEFILE = """\
# make test: build for this machine and compare with the recorded results.
# Another processor:
#   make {name}.o weights.o CC=arm-none-eabi-gcc CFLAGS="-mcpu=cortex-m4 -mthumb -Os -fno-strict-aliasing"
CC ?= cc
# One rounding an operation, as the runtime that recorded the results; the arena holds values of several types.
CFLAGS ?= -std=c99 -O2 -Wall -ffp-contract=off -fno-strict-aliasing

test: check
\t./check

check: test.o {name}.o weights.o
\t$(CC) $(CFLAGS) -o $@ $^ -lm

%.o: %.c {name}.h
\t$(CC) $(CFLAGS) $(EXTRA) -c -o $@ $<

test.o: test_data.h

clean:
\trm -f check test.o {name}.o weights.o

.PHONY: test clean
"""

_TEST = """\
/* Runs {name} on recorded samples: 0 if each result is equal or its difference is allowed, 1 if one is not. */
#include <math.h>
#include <stdio.h>
#include <string.h>
#include "{name}.h"
#include "test_data.h"

{results}
#ifdef LOCKSTEP_DUMP
static void dump(const void *result, size_t bytes) {{
    for (size_t at = 0; at < bytes; ++at) printf("%02x", ((const unsigned char *)result)[at]);
    printf("\\n");
}}
#endif

/* What is equal is never off, an infinity too; NaN always is. */
static int off(double found, double expected, double allowed) {{
    return !(found == expected || fabs(found - expected) <= allowed);
}}

int main(void) {{
    int wrong = 0;
    for (int sample = 0; sample < SAMPLES; ++sample) {{
        {name}({arguments});
{checks}
    }}
#ifndef LOCKSTEP_DUMP
    printf(wrong ? "%d elements are off by more than is allowed\\n" : "all results agree\\n", wrong);
#endif
    return wrong ? 1 : 0;
}}
"""

_CHECK = """\
        for (size_t at = 0; at < sizeof {result} / sizeof(({type} *){result})[0]; ++at)
            wrong += off((({type} *){result})[at], (({type} *)expected_{result}[sample])[at], {allowed});
#ifdef LOCKSTEP_DUMP
        dump({result}, sizeof {result});
#endif"""


def files_of(
    program: Program, samples: Sequence[Mapping[str, Array]], results: Sequence[Mapping[str, Array]],
    allowed: Mapping[str, float],
) -> dict[str, str]:  # fmt: skip
    """All files by name.

    program: What was generated.
    samples, results: Inputs and results of the runtime, in the model's order.
    allowed: How far each result may be off, by its name.
    """
    parameters = _parameters(program.prototype)
    inputs, outputs = parameters[: len(samples[0])], parameters[len(samples[0]) :]
    names = list(results[0])
    if len(outputs) != len(names):
        raise UsageError(
            f"the C function takes {len(parameters)} arrays for {len(samples[0])} inputs and {len(names)} results"
        )
    declared = [
        f"static {_type(results[0][name])} {c}{_shape(results[0][name])};"
        for name, c in zip(names, outputs, strict=True)
    ]
    checks = [
        _CHECK.format(result=c, type=_type(results[0][name]), allowed=repr(float(allowed[name])))
        for name, c in zip(names, outputs, strict=True)
    ]
    guard = f"{program.name.upper()}_H"
    return {
        f"{program.name}.c": program.code,
        "weights.c": program.weights,
        f"{program.name}.h": (
            f"#ifndef {guard}\n#define {guard}\n\n#include <stdint.h>\n\n"
            "/* Not to be entered twice at once: its values lie in one static arena of"
            f" {program.arena.size_bytes} bytes. */\n"
            f"{program.prototype};\n\n#endif\n"
        ),
        "test_data.h": "\n".join(_data(inputs, outputs, samples, results)),
        "test.c": _TEST.format(
            name=program.name, results="\n".join(declared), checks="\n".join(checks),
            arguments=", ".join([*(f"input_{one}[sample]" for one in inputs), *outputs]),
        ),
        "Makefile": _MAKEFILE.format(name=program.name),
    }  # fmt: skip


def _parameters(prototype: str) -> list[str]:
    """Names of the function's parameters, in order."""
    inside = prototype[prototype.index("(") + 1 : prototype.rindex(")")]
    return [
        found[1]
        for one in inside.split(",")
        if (found := re.search(r"(\w+)\s*(?:\[|$)", one.strip()))
    ]


def _data(
    inputs: Sequence[str], outputs: Sequence[str], samples: Sequence[Mapping[str, Array]],
    results: Sequence[Mapping[str, Array]],
) -> Iterator[str]:  # fmt: skip
    yield "/* Recorded samples and what the runtime makes of them, bit by bit. */"
    yield "#include <stdint.h>"
    yield f"#define SAMPLES {len(samples)}"
    for prefix, names, several in (("input", inputs, samples), ("expected", outputs, results)):
        for at, name in enumerate(names):
            arrays = [list(one.values())[at] for one in several]
            # Some compilers warn where an array of an array is given for one of constants: inputs are none.
            yield f"static {_type(arrays[0])} {prefix}_{name}[SAMPLES]{_shape(arrays[0])} = {{"
            yield from (f"{_initializer(np.asarray(array))}," for array in arrays)
            yield "};"


def _initializer(array: Array) -> str:
    if array.ndim == 0:
        return _literal(array)
    return "{" + ", ".join(_initializer(one) for one in array) + "}"


def _literal(value: Array) -> str:
    if value.dtype.kind == "f":
        number = float(value)
        if number != number or number in (float("inf"), float("-inf")):
            return "NAN" if number != number else "INFINITY" if number > 0 else "-INFINITY"
        return number.hex() + ("f" if value.dtype.itemsize == 4 else "")
    return str(int(value))


def _type(array: Array) -> str:
    name = str(np.asarray(array).dtype)
    if name not in _C_TYPES:
        raise UsageError(
            f"no C can be written for arrays of {name}; give a model of {', '.join(_C_TYPES)}"
        )
    return _C_TYPES[name]


def _shape(array: Array) -> str:
    return "".join(f"[{extent}]" for extent in np.shape(array)) or "[1]"
