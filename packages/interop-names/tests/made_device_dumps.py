"""Ascend dumps after the published layout, written by other means than they are read: bytes put together by hand."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from pathlib import Path

import numpy as np

Array = np.ndarray
DTYPES = {
    "float32": 1,
    "float16": 2,
    "int8": 3,
    "uint8": 4,
    "int32": 7,
    "int64": 8,
    "bool": 11,
    "bfloat16": 27,
}
NCHW, NHWC, ND, NC1HWC0, FRACTAL_Z, HWCN, FRACTAL_NZ = 0, 1, 2, 3, 4, 16, 29
STAMP = 1664000000000000


def varint(value: int) -> bytes:
    """A number, seven bits a byte."""
    out = bytearray()
    while value > 127:
        out.append(value % 128 + 128)
        value //= 128
    return bytes([*out, value])


def number(field: int, value: int) -> bytes:
    """A field that is a number."""
    return varint(field << 3) + varint(value)


def message(field: int, data: bytes) -> bytes:
    """A field that is a message or a text."""
    return varint(field << 3 | 2) + varint(len(data)) + data


def shape(field: int, extents: tuple[int, ...], *, packed: bool = True) -> bytes:
    """A field that is a shape."""
    if packed:
        return message(field, message(1, b"".join(map(varint, extents))))
    return message(field, b"".join(number(1, one) for one in extents))


@dataclass
class Tensor:
    """A tensor as the framework has it, and how the device keeps it."""

    value: Array
    format: int = ND
    dtype: str = ""
    origin: tuple[str, int, int] | None = None

    @property
    def data(self) -> Array:
        """As it lies on the device."""
        return blocked(self.value, self.format)


def blocked(value: Array, form: int) -> Array:
    """NCHW or ND in blocks of 16, element by element."""
    if form == NC1HWC0:
        n, c, h, w = value.shape
        out = np.zeros((n, (c + 15) // 16, h, w, 16), value.dtype)
        for channel in range(c):
            out[:, channel // 16, :, :, channel % 16] = value[:, channel]
        return out
    if form == FRACTAL_Z:
        n, c, h, w = value.shape
        out = np.zeros(((c + 15) // 16 * h * w, (n + 15) // 16, 16, 16), value.dtype)
        for filter_, channel, row, column in np.ndindex(n, c, h, w):
            place = (channel // 16 * h + row) * w + column
            out[place, filter_ // 16, filter_ % 16, channel % 16] = value[
                filter_, channel, row, column
            ]
        return out
    if form == FRACTAL_NZ:
        *above, m, n = value.shape
        out = np.zeros((*above, (n + 15) // 16, (m + 15) // 16, 16, 16), value.dtype)
        for row, column in np.ndindex(m, n):
            out[..., column // 16, row // 16, row % 16, column % 16] = value[..., row, column]
        return out
    return value


def dump(
    path: Path, inputs: list[Tensor], outputs: list[Tensor], *, packed: bool = True, says: str = ""
) -> Path:
    """One file: the length of the header, the header, the tensors."""
    header, data = number(2, STAMP) + message(1, b"2.0"), b""
    for one in outputs:
        told = number(1, DTYPES[one.dtype or str(one.value.dtype)]) + number(2, one.format)
        told += shape(3, one.data.shape, packed=packed)
        if one.origin is not None:
            name, index, form = one.origin
            told += message(4, message(1, name.encode()) + number(2, index) + number(4, form))
        header += message(
            3, told + number(6, one.data.nbytes) + shape(7, one.value.shape, packed=packed)
        )
    for one in inputs:
        told = number(1, DTYPES[one.dtype or str(one.value.dtype)]) + number(2, one.format)
        told += shape(3, one.data.shape, packed=packed) + number(5, one.data.nbytes)
        header += message(4, told + shape(6, one.value.shape, packed=packed))
    header += message(6, says.encode()) if says else b""
    for one in (*inputs, *outputs):
        data += one.data.tobytes()
    path.write_bytes(struct.pack("<Q", len(header)) + header + data)
    return path


def graph(path: Path, operators: dict[str, tuple[list[str], str]]) -> Path:
    """A graph as text: operators by name, each with those that it stands for and the one whose result it returns."""
    lines = ["graph {", '  name: "ge_default_1"']
    for name, (originals, origin) in operators.items():
        lines += ["  op {", f'    name: "{name}"', '    type: "Conv2D"', '    input: "data:0"']
        listed = " ".join(f's: "{one}"' for one in originals)
        value = f"list {{ {listed} val_type: VT_LIST_STRING }}"
        lines.append(f'    attr {{ key: "_datadump_original_op_names" value {{ {value} }} }}')
        lines.append("    output_desc {")
        lines.append(f'      attr {{ key: "_datadump_origin_name" value {{ s: "{origin}" }} }}')
        lines.append('      attr { key: "_datadump_origin_output_index" value { i: 0 } }')
        lines += ["    }", "  }"]
    path.write_text("\n".join([*lines, "}", ""]))
    return path
