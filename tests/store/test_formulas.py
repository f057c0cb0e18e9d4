"""Tensors kept as formulas: the bits come back, a wrong formula is never believed, and a hostile one reads nothing."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lockstep.core.errors import CorruptError
from lockstep.core.formulas import Formula, Operation, Stored, View
from lockstep.core.records import PIECE, Array
from lockstep.store.derived import evaluation as evaluating
from lockstep.store.derived.derived_tensor import (
    Derived,
    FormulaError,
    formula_from_json,
    json_from_formula,
)
from lockstep.store.derived.evaluation import elements_of
from lockstep.store.derived.search import derived, mostly_zero
from lockstep.store.schema import shard_name
from lockstep.store.tensor_files import TensorFiles
from lockstep.store.tensors import RawTensor, compacted, write_shard
from lockstep.store.writer import RankWriter

COUNT = 5000
DTYPES = (
    "float64", "float32", "float16", "bfloat16", "float8_e4m3fn", "float8_e5m2", "int64", "int32",
    "int16", "int8", "uint8", "bool", "complex64",
)  # fmt: skip


def raw(
    number: int, tensor: torch.Tensor, formula: Formula | None = None, zeros: int = 0
) -> RawTensor:
    flat = tensor.flatten().clone(memory_format=torch.contiguous_format)
    data = flat.view(torch.uint8).numpy() if flat.numel() else np.empty(0, np.uint8)
    dtype = str(tensor.dtype).removeprefix("torch.")
    return RawTensor(number, dtype, (flat.numel(),), data, formula, zeros)


def random_of(dtype: str, count: int, seed: int = 0) -> torch.Tensor:
    """Any bits, NaN payloads and subnormals included."""
    kind = getattr(torch, dtype)
    drawn = np.random.default_rng(seed).integers(0, 256, count * kind.itemsize, dtype=np.uint8)
    drawn = drawn & 1 if kind is torch.bool else drawn
    if not count:
        return torch.empty(0, dtype=kind)
    return torch.from_numpy(drawn).view(kind)


def numbers(seed: int, count: int = COUNT) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    scale = 10.0 ** torch.randint(-8, 8, (count,), generator=generator)
    return torch.randn(count, generator=generator) * scale


def known(**tensors: torch.Tensor) -> Any:
    """Finds tensors of shard 0 by number: `known(t1=..., t2=...)`."""
    by_number = {
        int(name[1:]): raw(int(name[1:]), tensor).elements for name, tensor in tensors.items()
    }
    return lambda stored: by_number[stored.number]


def place(number: int) -> Stored:
    return Stored(0, number)


def written(directory: Path, *tensors: RawTensor | Derived) -> TensorFiles:
    directory.mkdir(exist_ok=True)
    with (directory / shard_name(0)).open("wb") as file:
        write_shard(file, tensors)
    return TensorFiles(directory)


# --- round trips -----------------------------------------------------------------------------------------------------


@st.composite
def views(draw: st.DrawFn) -> tuple[int, list[int], list[int], int]:
    """Extents and strides within a storage: transposed, overlapping, expanded, with gaps."""
    extents = draw(st.lists(st.integers(1, 12), max_size=4))
    strides = [draw(st.integers(0, 40)) for _ in extents]
    offset = draw(st.integers(0, 50))
    last = offset + sum((e - 1) * s for e, s in zip(extents, strides, strict=True))
    return offset, extents, strides, last + 1 + draw(st.integers(0, 20))


@settings(deadline=None)
@given(dtype=st.sampled_from(DTYPES), view=views())
def test_every_view_comes_back_bit_by_bit(
    dtype: str,
    view: tuple[int, list[int], list[int], int],
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    # given a storage that is saved whole, and a view of it as a formula
    offset, extents, strides, count = view
    storage = random_of(dtype, count)
    seen = storage.as_strided(extents, strides, offset)
    formula = View(place(0), offset, tuple(extents), tuple(strides))
    nothing = np.empty((0, 1), raw(0, storage).elements[1].dtype)
    name = raw(0, storage).elements[0]
    form = Derived(1, name, seen.numel(), formula, 1, np.empty(0, "<u4"), nothing)
    # when both are written and read
    files = written(tmp_path_factory.mktemp("views"), raw(0, storage), form)
    # then they are what `as_strided` gives
    found = elements_of(form, files.find)
    assert found.tobytes() == raw(1, seen).data.tobytes()
    expected = files.load(0, 0)[: seen.numel()]
    assert files.load(0, 1).dtype == expected.dtype


@settings(deadline=None)
@given(
    dtype=st.sampled_from((*DTYPES, "complex128")),
    count=st.integers(0, 3000),
    islands=st.lists(st.tuples(st.integers(0, 2999), st.integers(1, 300)), max_size=4),
)
def test_a_tensor_of_zeros_with_islands_comes_back(
    dtype: str,
    count: int,
    islands: list[tuple[int, int]],
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    tensor = torch.zeros(count, dtype=getattr(torch, dtype))
    for start, length in islands:
        part = tensor[start : start + length]
        part.copy_(random_of(dtype, part.numel()) if dtype != "complex128" else torch.tensor(1j))
    form = compacted(raw(3, tensor, zeros=count), known())
    files = written(tmp_path_factory.mktemp("zeros"), form)
    assert (
        files.load(0, 3).tobytes()
        == written(tmp_path_factory.mktemp("whole"), raw(3, tensor)).load(0, 3).tobytes()
    )


def test_a_mostly_zero_tensor_takes_little_room() -> None:
    # given a gradient of an embedding of which two rows were used, and one of which all were
    gradient = torch.zeros(1000, 64)
    gradient[3], gradient[997] = 1.0, -0.0
    # when they are compacted
    form = compacted(raw(0, gradient, zeros=999 * 64), known())
    full = compacted(raw(0, gradient + 1, zeros=0), known())
    # then the first one's used blocks are kept, minus zeros among them, and the other is kept as it is
    assert isinstance(form, Derived)
    assert form.values.size == 2 * 256
    assert elements_of(form, known()).tobytes() == gradient.numpy().tobytes()
    assert isinstance(full, RawTensor)
    assert mostly_zero(0, "F32", np.zeros(8, "<f4")) is None


A, B, C = numbers(1), numbers(2), numbers(3)
COMPUTED: dict[str, tuple[Formula, torch.Tensor]] = {
    "add": (Operation("add", (place(1), place(2))), A + B),
    "sub": (Operation("sub", (place(1), place(2))), A - B),
    "mul by a number": (Operation("mul", (place(1), 0.1)), 0.1 * A),
    "add a number": (Operation("add", (place(1), 1.0)), 1 + A),
    "div": (Operation("div", (place(1), place(3))), A / C),
    "pow": (Operation("mul", (Operation("mul", (place(1), place(1))), place(1))), A**3.0),
    "add alpha": (Operation("fma", (place(2), 0.3, place(1))), A.add(B, alpha=0.3)),
    "lerp": (
        Operation("fma", (Operation("sub", (place(2), place(1))), 1 - 0.9, place(1))),
        A.lerp(B, 1 - 0.9),
    ),
    "addcmul": (
        Operation("fma", (Operation("mul", (place(2), 1 - 0.999)), place(2), Operation("mul", (place(1), 0.999)))),
        (A * 0.999).addcmul_(B, B, value=1 - 0.999),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", COMPUTED)
def test_what_torch_computes_needs_no_bytes(name: str) -> None:
    formula, result = COMPUTED[name]
    find = known(t1=A, t2=B, t3=C)
    form = derived(9, "F32", result.numpy(), formula, find)
    assert form is not None
    assert form.places.size <= COUNT // 100
    assert elements_of(form, find).tobytes() == result.numpy().tobytes()


@pytest.mark.parametrize("number", range(1, 8))
def test_a_tensor_is_the_same_read_whole_and_in_pieces(number: int, tmp_path: Path) -> None:
    # given large tensors kept as they are, in a dtype that NumPy lacks, as a sum of which some elements are corrected,
    # as a long formula over it, as a view, as islands in zeros, and as a sum of numbers that only NumPy adds
    count = 5 * PIECE + 77
    one, other = numbers(1, count), numbers(2, count).bfloat16()
    total = one + one * 0.5
    total[::1000] = 3
    islands = torch.zeros(count)
    islands[PIECE - 9 : PIECE + 9] = 1
    parts: list[Any] = [raw(1, one), raw(2, other)]
    find = {1: parts[0].elements}
    for each, elements, formula in (
        (3, total, Operation("add", (place(1), Operation("mul", (place(1), 0.5))))),
        (4, total / 3 - one, Operation("sub", (Operation("div", (place(3), 3.0)), place(1)))),
        (5, one[: count - 77].view(-1, 5).t().flatten(), View(place(1), 0, (5, PIECE), (1, 5))),
        (7, one.double() + 1, Operation("add", (place(8), 1.0))),
    ):
        find[8] = raw(8, one.double()).elements
        form = derived(
            each, raw(each, elements).elements[0], raw(each, elements).elements[1], formula,
            lambda stored: find[stored.number],
        )  # fmt: skip
        assert form is not None
        find[each] = form
        parts.append(form)
    parts += [compacted(raw(6, islands, zeros=count), known()), raw(8, one.double())]
    files = written(tmp_path / "rank0", *parts)
    # when one of them is read in pieces, some of them twice and in any order
    pieces, whole = files.open(0, number), files.load(0, number).reshape(-1)
    starts = [*range(0, pieces.size, PIECE), 0, 2 * PIECE]
    # then each of them is what it is in the whole, also after memory was given back
    assert (pieces.size, pieces.dtype) == (whole.size, whole.dtype)
    for start in starts:
        stop = min(start + 2 * PIECE, pieces.size)
        assert pieces.part(start, stop).tobytes() == whole[start:stop].tobytes()
        pieces.release(start, stop)


def test_a_result_that_is_off_here_and_there_is_corrected(tmp_path: Path) -> None:
    # given a sum of which a device got a few elements wrong, by one bit and by far
    wrong = A + B
    wrong.view(torch.int32)[::100] ^= 1
    wrong[7] = math.inf
    formula = Operation("add", (place(1), place(2)))
    form = derived(9, "F32", wrong.numpy(), formula, known(t1=A, t2=B))
    assert form is not None
    # when it is written and read
    files = written(tmp_path / "rank0", raw(1, A), raw(2, B), form)
    # then its own bits come back
    assert files.load(0, 9).tobytes() == wrong.numpy().tobytes()
    assert form.places.size == COUNT // 100 + 1


@pytest.mark.parametrize(
    "formula",
    [
        Operation("sub", (place(1), place(2))),
        Operation("add", (place(1), place(8))),
        Operation("add", (place(1), place(4))),
        Operation("add", (place(1), place(5))),
        Operation("add", (place(1),)),
        View(place(1), 1, (COUNT,), (1,)),
        0.0,
    ],
    ids=["another", "missing", "too short", "wrong type", "operands", "beyond", "zero"],
)
def test_a_formula_that_does_not_hold_is_dropped(formula: Formula) -> None:
    find = known(t1=A, t2=B, t4=A[:-1], t5=A.double())
    assert derived(9, "F32", (A + B).numpy(), formula, find) is None


def test_a_long_chain_of_formulas_ends_in_bytes() -> None:
    # given a tensor to which 0.5 is added over and over, each one kept as a formula over the one before
    forms: dict[int, Any] = {0: raw(0, A).elements}
    value, kept = A, []
    for number in range(1, 20):
        value = value + 0.5
        formula = Operation("add", (place(number - 1), 0.5))
        form = derived(number, "F32", value.numpy(), formula, lambda stored: forms[stored.number])
        kept.append(form is not None)
        forms[number] = form or raw(number, value).elements
    # then most are formulas, but not all
    assert 10 < sum(kept) < 19
    longest = next(form for form in reversed(forms.values()) if isinstance(form, Derived))
    assert elements_of(longest, lambda stored: forms[stored.number]).size == COUNT


FLOATS = st.floats(width=32, allow_nan=False)


@settings(deadline=None, max_examples=50)
@given(
    name=st.sampled_from(["add", "sub", "mul", "div", "sqrt", "fma"]),
    values=st.lists(st.tuples(FLOATS, FLOATS, FLOATS), min_size=1, max_size=20),
)
def test_the_compiled_loop_gives_the_bits_of_numpy(
    name: str, values: list[tuple[float, float, float]]
) -> None:
    columns = np.array(values, np.float32).T
    columns = np.ascontiguousarray(np.tile(columns, 150))
    operands = tuple(place(number) for number in range({"sqrt": 1, "fma": 3}.get(name, 2)))
    formula = Operation("add", (Operation(name, operands), 0.0))
    count = columns.shape[1]
    form = Derived(9, "F32", count, formula, 1, np.empty(0, "<u4"), np.empty((0, 1), "<f4"))

    def find(stored: Stored) -> tuple[str, Array]:
        return "F32", columns[stored.number]

    compiled = elements_of(form, find)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(evaluating, "available", lambda: False)
        plain = elements_of(form, find)
    same = (compiled.view(np.uint32) == plain.view(np.uint32)) | np.isnan(plain)
    assert same.all()
    assert np.array_equal(np.isnan(compiled), np.isnan(plain))


def test_a_fused_product_and_sum_is_rounded_once() -> None:
    # given 1 + 2**-23 squared, minus what rounding it first would leave
    factor = np.full(2000, 1 + 2.0**-23, np.float32)
    summand = np.full(2000, -(1 + 2.0**-22), np.float32)
    formula = Operation("fma", (place(1), place(1), place(2)))
    form = derived(
        9, "F32", np.full(2000, 2.0**-46, np.float32), formula,
        known(t1=torch.from_numpy(factor), t2=torch.from_numpy(summand)),
    )  # fmt: skip
    assert form is not None
    assert form.places.size == 0


def test_the_library_reads_a_shard_with_formulas() -> None:
    form = derived(
        9, "F32", (A + B).numpy(), Operation("add", (place(1), place(2))), known(t1=A, t2=B)
    )
    zeros = torch.zeros(4096)
    zeros[5] = 1.0
    path_free = [raw(1, A), raw(2, B), form, compacted(raw(4, zeros, zeros=4095), known())]
    import io

    file = io.BytesIO()
    write_shard(file, [item for item in path_free if item is not None])
    read = safetensors.torch.load(file.getvalue())
    assert torch.equal(read["1"], A)
    assert read["4.values"].shape == (1, 256)


formulas = st.recursive(
    st.floats(allow_nan=False, allow_infinity=False)
    | st.builds(Stored, st.integers(0, 9), st.integers(0, 9))
    | st.builds(
        View,
        st.builds(Stored, st.integers(0, 9), st.integers(0, 9)),
        st.integers(0, 9),
        st.lists(st.integers(0, 9), max_size=3).map(tuple),
        st.lists(st.integers(0, 9), max_size=3).map(tuple),
    ),
    lambda inner: st.builds(
        Operation,
        st.sampled_from(["add", "sub", "mul", "div", "sqrt", "fma"]),
        st.lists(inner, min_size=1, max_size=3).map(tuple),
    ),
    max_leaves=6,
)


@given(formula=formulas)
def test_formulas_survive_json(formula: Formula) -> None:
    assert formula_from_json(json.loads(json.dumps(json_from_formula(formula)))) == formula


# --- the writer ------------------------------------------------------------------------------------------------------


def test_formulas_reach_back_into_earlier_shards(tmp_path: Path) -> None:
    # given a writer that gets operands in one chunk, and what follows from them in the next
    writer = RankWriter(tmp_path)
    first = writer.add_tensor(raw(0, A))
    writer.flush()
    second = writer.add_tensor(raw(1, B))
    total = Operation("add", (Stored(first, 0), Stored(second, 1)))
    shard = writer.add_tensor(raw(2, A + B, total))
    writer.flush()
    doubled = Operation("mul", (Stored(shard, 2), 2.0))
    last = writer.add_tensor(raw(3, (A + B) * 2, doubled))
    wrong = writer.add_tensor(raw(4, A * 3, doubled))
    writer.close()
    assert not writer.failure
    # then a reader gets their bits, and only the operands and what no formula gave took room
    files = TensorFiles(tmp_path)
    assert files.load(shard, 2).tobytes() == (A + B).numpy().tobytes()
    assert files.load(last, 3).tobytes() == ((A + B) * 2).numpy().tobytes()
    assert files.load(wrong, 4).tobytes() == (A * 3).numpy().tobytes()
    assert isinstance(files.find(Stored(last, 3)), Derived)
    assert not isinstance(files.find(Stored(wrong, 4)), Derived)
    size = sum(file.stat().st_size for file in tmp_path.glob("*.safetensors"))
    assert 3 * 4 * COUNT < size < 3.3 * 4 * COUNT


WRITES_FOR_EVER = """
import sys
from pathlib import Path
import numpy as np
from lockstep.core.formulas import (Operation, Stored)
from lockstep.store.tensors import RawTensor
from lockstep.store.writer import RankWriter

writer = RankWriter(Path(sys.argv[1]))
before, place = np.arange(50_000, dtype=np.float32), None
for number in range(1_000_000):
    now = before + np.float32(1)
    formula = place and Operation("add", (place, 1.0))
    place = Stored(writer.add_tensor(RawTensor(number, "float32", now.shape, now.view(np.uint8), formula)), number)
    before = now
    writer.flush()
    if number == 40:
        writer.drain()
        print("ready", flush=True)
"""


def test_what_was_written_before_a_kill_can_be_read(tmp_path: Path) -> None:
    # given a process that writes tensor after tensor, each a formula over the one before
    command = [sys.executable, "-c", WRITES_FOR_EVER, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        # when it is killed
        process.kill()
    # then every shard that is there can be read, and all that a shard needs is there
    files = TensorFiles(tmp_path)
    shards = sorted(tmp_path.glob("tensors-*.safetensors"))
    assert len(shards) > 40
    for number in range(len(shards)):
        assert files.load(number, number)[:2].tolist() == [number + 1, number + 2]


# --- hostile and damaged files ---------------------------------------------------------------------------------------


def hostile(directory: Path, value: object, **parts: tuple[str, list[int], bytes]) -> TensorFiles:
    """A shard with a sound tensor 1 of 2000 float32 zeros, tensor 9 as given, and its corrections."""
    tensors = {"1": ("F32", [2000], bytes(8000))} | {
        f"9.{name}": part for name, part in parts.items()
    }
    header: dict[str, Any] = {
        "__metadata__": {"derived": value if isinstance(value, str) else json.dumps(value)}
    }
    data = b""
    for name, (dtype, shape, content) in tensors.items():
        header[name] = {
            "dtype": dtype,
            "shape": shape,
            "data_offsets": [len(data), len(data) + len(content)],
        }
        data += content
    text = json.dumps(header).encode()
    (directory / shard_name(0)).write_bytes(len(text).to_bytes(8, "little") + text + data)
    return TensorFiles(directory)


def nine(formula: object, **changes: object) -> dict[str, object]:
    return {"9": {"dtype": "F32", "count": 2000, "block": 1, "formula": formula} | changes}


DEEP: Any = 1.0
for _ in range(100):
    DEEP = ["sqrt", DEEP]
WIDE: Any = ["tensor", 0, 1]
for _ in range(9):
    WIDE = ["add", WIDE, WIDE]
HOSTILE = {
    "not JSON": "{",
    "a list": [1],
    "nested without end": '{"9":' + "[" * 200_000,
    "no formula": {"9": 5},
    "an unknown dtype": nine(0.0, dtype="F7"),
    "a count that is no number": nine(0.0, count="many"),
    "a negative count": nine(0.0, count=-1),
    "a count beyond all memory": nine(0.0, count=2**62),
    "a block of zero": nine(0.0, block=0),
    "a block that is no power of two": nine(0.0, block=3),
    "a negative block": nine(0.0, block=-8),
    "a huge block": nine(0.0, block=2**40),
    "an unknown operation": nine(["exec", "rm"]),
    "too few operands": nine(["add", ["tensor", 0, 1]]),
    "text for a number": nine(["add", "1", 2.0]),
    "deep": nine(DEEP),
    "wide": nine(WIDE),
    "itself": nine(["add", ["tensor", 0, 9], 1.0]),
    "a view of itself": nine(["view", 0, 9, 0, [2000], [1]]),
    "a tensor that is not there": nine(["tensor", 0, 5]),
    "a shard that is not there": nine(["tensor", 7, 1]),
    "a negative shard": nine(["tensor", -1, 1]),
    "a path for a shard": nine(["tensor", "../../etc/passwd", 1]),
    "a truth value for a number": nine(["tensor", False, True]),
    "another count": nine(["tensor", 0, 1], count=1999),
    "a block beyond all memory": nine(["tensor", 0, 1], block=1 << 63),
    "another dtype": nine(["tensor", 0, 1], dtype="F64"),
    "integers": nine(["add", ["tensor", 0, 1], 1.0], dtype="I32"),
    "a view beyond its base": nine(["view", 0, 1, 1, [2000], [1]]),
    "a view far beyond its base": nine(["view", 0, 1, 0, [2, 1000], [2**61, 1]]),
    "a view before its base": nine(["view", 0, 1, -1, [2000], [1]]),
    "a negative stride": nine(["view", 0, 1, 1999, [2000], [-1]]),
    "a view of another size": nine(["view", 0, 1, 0, [1999], [1]]),
    "extents without strides": nine(["view", 0, 1, 0, [2000], []]),
    "too many extents": nine(["view", 0, 1, 0, [1] * 100 + [2000], [1] * 101]),
    "extents whose product wraps": nine(["view", 0, 1, 0, [2**32, 2**32, 2000], [0, 0, 0]]),
    "an offset that overflows": nine(["view", 0, 1, 2**63, [2000], [1]]),
}  # fmt: skip
CORRECTIONS = {
    "a place beyond the tensor": (("U32", [1], b"\xff" * 4), ("F32", [1, 1], bytes(4))),
    "places out of order": (("U32", [2], b"\2\0\0\0\1\0\0\0"), ("F32", [2, 1], bytes(8))),
    "a place twice": (("U32", [2], b"\1\0\0\0" * 2), ("F32", [2, 1], bytes(8))),
    "too few values": (("U32", [2], b"\1\0\0\0\2\0\0\0"), ("F32", [1, 1], bytes(4))),
    "values of another width": (("U32", [1], bytes(4)), ("F32", [1, 2], bytes(8))),
    "values of another dtype": (("U32", [1], bytes(4)), ("F64", [1, 1], bytes(8))),
    "values without blocks": (("U32", [1], bytes(4)), ("F32", [1], bytes(4))),
    "signed places": (("I32", [1], b"\xff" * 4), ("F32", [1, 1], bytes(4))),
}


@pytest.mark.parametrize(
    ("formula", "number"),
    [(["div", 1, 0], math.inf), (["mul", 1e38, 1e38], math.inf), (["add", 1, ["sqrt", 4]], 3.0)],
)
def test_a_formula_of_numbers_alone_is_that_number_everywhere(
    formula: object, number: float, tmp_path: Path
) -> None:
    # given a tensor whose author wrote no tensor into its formula, when it is read, whole and in pieces
    files = hostile(tmp_path, nine(formula))
    pieces = files.open(0, 9)
    # then it has that number everywhere, and nothing is said of overflow
    for found in (files.load(0, 9), pieces.part(0, pieces.size)):
        assert (np.asarray(found) == number).all()


def test_a_number_that_no_dtype_holds_is_no_formula() -> None:
    with pytest.raises(FormulaError):
        formula_from_json(["add", ["tensor", 0, 1], 10**400])


@pytest.mark.parametrize("value", HOSTILE.values(), ids=HOSTILE.keys())
def test_a_hostile_formula_is_refused_by_name(value: object, tmp_path: Path) -> None:
    for read in (TensorFiles.load, TensorFiles.open):
        with pytest.raises(CorruptError, match=r"tensors-0000[07]\.safetensors"):
            read(hostile(tmp_path, value), 0, 9)


@pytest.mark.parametrize(("places", "values"), CORRECTIONS.values(), ids=CORRECTIONS.keys())
def test_hostile_corrections_are_refused_by_name(places: Any, values: Any, tmp_path: Path) -> None:
    for read in (TensorFiles.load, TensorFiles.open):
        with pytest.raises(CorruptError, match=r"tensors-00000\.safetensors: tensor 9"):
            read(hostile(tmp_path, nine(0.0), places=places, values=values), 0, 9)


def test_corrections_without_values_are_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(CorruptError, match=r"tensors-00000\.safetensors"):
        hostile(tmp_path, nine(0.0), places=("U32", [1], bytes(4))).load(0, 9)


def test_the_sound_twin_of_the_hostile_files_is_read(tmp_path: Path) -> None:
    files = hostile(
        tmp_path,
        nine(["add", ["tensor", 0, 1], 1.0]),
        places=("U32", [1], b"\2\0\0\0"),
        values=("F32", [1, 1], b"\0\0\0\x40"),
    )
    assert files.load(0, 9)[:4].tolist() == [1, 1, 2, 1]


@settings(deadline=None, max_examples=300)
@given(data=st.data())
def test_any_damage_ends_in_values_or_one_error(
    data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    small, directory = A[:1200], tmp_path_factory.mktemp("fuzz")
    formula = Operation("add", (View(place(1), 0, (30, 40), (1, 30)), 1.0))
    result = small.view(40, 30).t().reshape(-1) + 1
    result[3] = 7
    form = derived(9, "F32", result.numpy(), formula, known(t1=small))
    assert form is not None
    path = directory / shard_name(0)
    with path.open("wb") as file:
        write_shard(file, [raw(1, small), form])
    whole = bytearray(path.read_bytes())
    header = int.from_bytes(whole[:8], "little") + 8
    for _ in range(data.draw(st.integers(1, 4))):
        whole[data.draw(st.integers(0, header - 1))] = data.draw(st.integers(0, 255))
    path.write_bytes(bytes(whole))
    with suppress(CorruptError):
        TensorFiles(directory).load(0, 9)
    with suppress(CorruptError):
        pieces = TensorFiles(directory).open(0, 9)
        pieces.part(0, min(pieces.size, PIECE))


def test_a_formula_is_not_evaluated_beyond_its_limit() -> None:
    form = Derived(
        9,
        "F32",
        COUNT,
        Operation("add", (place(9), 1.0)),
        1,
        np.empty(0, "<u4"),
        np.empty((0, 1), "<f4"),
    )
    with pytest.raises(FormulaError, match="operations"):
        elements_of(form, lambda _: form)
