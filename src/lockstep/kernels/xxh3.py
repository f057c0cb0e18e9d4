"""XXH3-128 of chunks of one size in compiled code without the interpreter: its constants and loops.

It follows the specification, with the default secret and no seed:
https://github.com/Cyan4973/xxHash/blob/dev/doc/xxhash_spec.md
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from lockstep.kernels.jit import from_numba

CHUNK = 1 << 17
"""Bytes of a chunk."""

STRIPE, BLOCK = 64, 1024
BLOCK_STRIPES = BLOCK // STRIPE
PRIME32_1, _PRIME32_2, _PRIME32_3 = 0x9E3779B1, 0x85EBCA77, 0xC2B2AE3D
PRIME64_1, PRIME64_2, _PRIME64_3 = 0x9E3779B185EBCA87, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9
_PRIME64_4, _PRIME64_5 = 0x85EBCA77C2B2AE63, 0x27D4EB2F165667C5
AVALANCHE = 0x165667919E3779F9
_SECRET = bytes.fromhex(
    "b8fe6c3923a44bbe7c01812cf721ad1cded46de9839097db7240a4a4b7b3671f"
    "cb79e64eccc0e578825ad07dccff7221b8084674f743248ee03590e6813a264c"
    "3c2852bb91c300cb88d0658b1b532ea371644897a20df94e3819ef46a9deacd8"
    "a8fa763fe39c343ff9dcbbc7c70b4f1d8a51e04bcdb45931c89f7ec9d9787364"
    "eac5ac8334d3ebc3c581a0fffa1363eb170ddd51b7f0da49d316552629d4689e"
    "2b16be587d47a1fc8ff8b8d17ad031ce45cb3a8f95160428afd7fbcabb4b407e"
)


def _words(start: int, count: int) -> npt.NDArray[np.uint64]:
    return np.frombuffer(_SECRET[start : start + 8 * count], "<u8").astype(np.uint64)


KEYS = _words(0, 24)
SCRAMBLE = _words(len(_SECRET) - STRIPE, 8)
LAST = _words(len(_SECRET) - STRIPE - 7, 8)
MERGE_LOW, MERGE_HIGH = _words(11, 8), _words(len(_SECRET) - STRIPE - 11, 8)
BEGINNING = np.array(
    (_PRIME32_3, PRIME64_1, PRIME64_2, _PRIME64_3, _PRIME64_4, _PRIME32_2, _PRIME64_5, PRIME32_1),
    np.uint64,
)  # fmt: skip
START_LOW = np.uint64(CHUNK * PRIME64_1 & (1 << 64) - 1)
START_HIGH = np.uint64(~(CHUNK * PRIME64_2) & (1 << 64) - 1)


def _adding(stripes: int, numba: Any) -> Any:
    """A function that adds so many stripes to the eight sums, in vector registers: loops over eight stay scalar."""

    @numba.extending.intrinsic  # type: ignore[untyped-decorator]
    def add(_: Any, data: Any, start: Any, keys: Any, sums: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> None:
            from llvmlite import ir

            lanes = ir.VectorType(ir.IntType(64), 8)

            def pointer(number: int, offset: Any) -> Any:
                array = context.make_array(signature.args[number])(
                    context, builder, arguments[number]
                )
                place = builder.gep(array.data, [offset])
                return builder.bitcast(place, lanes.as_pointer())

            def constant(number: int) -> Any:
                return ir.Constant(lanes, [number] * 8)

            def index(number: int) -> Any:
                return context.get_constant(numba.types.intp, number)

            products = swapped = constant(0)
            for stripe in range(stripes):
                offset = builder.add(arguments[1], index(stripe * STRIPE))
                words = builder.load(pointer(0, offset), align=1)
                keyed = builder.xor(words, builder.load(pointer(2, index(stripe)), align=8))
                low = builder.and_(keyed, constant(0xFFFF_FFFF))
                product = builder.mul(low, builder.lshr(keyed, constant(32)))
                products, swapped = builder.add(products, product), builder.add(swapped, words)
            order = ir.Constant(ir.VectorType(ir.IntType(32), 8), [1, 0, 3, 2, 5, 4, 7, 6])
            swapped = builder.shuffle_vector(swapped, swapped, order)
            place = pointer(3, index(0))
            total = builder.add(builder.load(place, align=8), builder.add(products, swapped))
            builder.store(total, place, align=8)

        return numba.types.void(data, start, keys, sums), generate

    return add


def _multiplying(numba: Any) -> Any:
    """The upper half of a product of two 64-bit numbers, combined with the lower by exclusive or."""

    @numba.extending.intrinsic  # type: ignore[untyped-decorator]
    def folded(_: Any, left: Any, right: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            from llvmlite import ir

            wide, word = ir.IntType(128), ir.IntType(64)
            product = builder.mul(*(builder.zext(argument, wide) for argument in arguments))
            upper = builder.trunc(builder.lshr(product, ir.Constant(wide, 64)), word)
            return builder.xor(builder.trunc(product, word), upper)

        return numba.types.uint64(numba.types.uint64, numba.types.uint64), generate

    return folded


add_stripe = from_numba(partial(_adding, 1))
add_block = from_numba(partial(_adding, BLOCK_STRIPES))
folded = from_numba(_multiplying)
