"""Dumps of an Ascend device beside folders of `.npy` of the framework, fused operators at their boundaries."""

from __future__ import annotations

from contextlib import suppress
from itertools import pairwise
from pathlib import Path

import made_device_dumps as made
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from made_device_dumps import FRACTAL_NZ, FRACTAL_Z, HWCN, NC1HWC0, NCHW, ND, NHWC, STAMP, Tensor

import lockstep
from lockstep.cli.main import main
from lockstep.comparison import compare_recordings
from lockstep.core.errors import CorruptError
from lockstep.core.finding import Verdict
from lockstep.report.comparison.screen import headline
from lockstep_interop_names.dumps.device_dump import dump_in, tensor_of
from lockstep_interop_names.dumps.device_layouts import put_back
from lockstep_interop_names.dumps.readers import ascend_dump
from lockstep_interop_names.dumps.wire import fields_of, text_message

SOURCE = np.random.default_rng(3)


def values(*shape: int) -> np.ndarray:
    """Some numbers."""
    return SOURCE.standard_normal(shape).astype("f4")


@pytest.mark.parametrize(
    ("value", "form"),
    [
        (values(2, 17, 3, 5), NC1HWC0), (values(2, 16, 3, 3), NC1HWC0), (values(18, 3, 3, 2), FRACTAL_Z),
        (values(5, 33, 1, 1), FRACTAL_Z), (values(17, 33), FRACTAL_NZ), (values(2, 3, 16, 5), FRACTAL_NZ),
        (values(4, 7), ND), (values(), ND), (values(0, 3), ND),
        (np.arange(40, dtype="i8").reshape(2, 20), FRACTAL_NZ), (np.ones((3, 2), bool), ND), (np.ones(3, "f2"), ND),
    ],
)  # fmt: skip
@pytest.mark.parametrize("packed", [True, False])
def test_what_a_device_keeps_in_blocks_comes_back_as_it_was(
    value: np.ndarray, form: int, packed: bool, tmp_path: Path
) -> None:
    file = made.dump(
        tmp_path / f"Op.a.1.2.{STAMP}", [Tensor(value, form)], [Tensor(value.copy())], packed=packed
    )
    for part in dump_in(file).parts:
        tensor = tensor_of(file, part)
        assert (tensor.dtype, tensor.shape) == (str(value.dtype), value.shape)
        assert tensor.load is not None
        assert tensor.load().tobytes() == value.tobytes()


def test_axes_follow_the_framework_where_it_is_told(tmp_path: Path) -> None:
    # given a square whose shape alone leaves its axes open
    value = values(2, 4, 4, 4)
    data = made.blocked(value, NC1HWC0)
    assert np.array_equal(put_back(data, NC1HWC0, (2, 4, 4, 4)), value)
    assert np.array_equal(put_back(data, NC1HWC0, (2, 4, 4, 4), NHWC), value.transpose(0, 2, 3, 1))
    weights = values(4, 4, 4, 4)
    assert np.array_equal(
        put_back(made.blocked(weights, FRACTAL_Z), FRACTAL_Z, (4, 4, 4, 4), HWCN),
        weights.transpose(2, 3, 1, 0),
    )
    with pytest.raises(ValueError, match="is not"):
        put_back(data, NC1HWC0, (3, 4, 4, 4), NCHW)


@given(st.integers(1, 40), st.integers(1, 40), st.sampled_from([np.float32, np.int8, np.float64]))
def test_any_matrix_comes_back(rows: int, columns: int, dtype: type) -> None:
    value = np.arange(rows * columns).reshape(rows, columns).astype(dtype)
    assert np.array_equal(put_back(made.blocked(value, FRACTAL_NZ), FRACTAL_NZ, value.shape), value)


def network(wrong: str = "") -> dict[str, np.ndarray]:
    """Results of conv1, bn1, relu1, conv2, pool by name, each from the one before."""
    results = {"image": np.random.default_rng(0).standard_normal((2, 3, 8, 8)).astype("f4")}
    value = results["image"]
    for number, name in enumerate(("block/conv1", "block/bn1", "block/relu1", "conv2", "pool")):
        value = np.tanh(value * np.float32(1 + number / 3) + np.float32(0.1))
        value = (value * np.float32(1.05 if name == wrong else 1)).astype("f4")
        results[name] = value
    return results


def framework(folder: Path, wrong: str = "") -> Path:
    """Every result as tfdbg leaves it."""
    folder.mkdir()
    for name, value in network(wrong).items():
        np.save(folder / f"{name.replace('/', '_')}.0.{STAMP}.npy", value)
    return folder


def device(folder: Path, wrong: str = "", *, told: bool = True) -> Path:
    """The same where a device runs conv1, bn1 and relu1 as one, and conv2 as two; the header may tell of which."""
    folder.mkdir()
    results = network(wrong)
    image, relu1, conv2, pool = (results[one] for one in ("image", "block/relu1", "conv2", "pool"))
    origin = ("block/relu1", 0, NCHW) if told else None
    fused = [Tensor(relu1, NC1HWC0, origin=origin)]
    made.dump(folder / f"Conv2D.block_conv1bn1relu1.3.2.{STAMP}", [Tensor(image, NC1HWC0)], fused)
    half = conv2 / 2
    made.dump(
        folder / f"Split.conv2_part.4.2.{STAMP + 5}", [Tensor(relu1, NC1HWC0)], [Tensor(half)]
    )
    joined = [Tensor(conv2, NC1HWC0, origin=("conv2", 0, NCHW))]
    made.dump(folder / f"Add.conv2_join.5.2.{STAMP + 9}", [Tensor(half)], joined)
    made.dump(folder / f"Pooling.pool.6.2.{STAMP + 20}", [Tensor(conv2, NC1HWC0)], [Tensor(pool)])
    return folder


@pytest.mark.parametrize("wrong", ["block/relu1", "conv2", "pool"])
def test_fused_and_split_operators_are_compared_at_their_boundaries(
    wrong: str, tmp_path: Path
) -> None:
    reference, fault = framework(tmp_path / "gpu"), device(tmp_path / "npu", wrong)
    found = compare_recordings(reference, fault)
    assert [one.module for one in found.origins] == [wrong.replace("/", "_")]
    assert [one.module for one in compare_recordings(fault, reference).origins] == [
        wrong.replace("/", "_")
    ]
    # and of two devices, whose operators are not those of the framework
    first = {"conv2": "conv2_part"}.get(wrong, wrong.replace("/", "_"))
    between = compare_recordings(device(tmp_path / "other"), fault)
    assert [one.module for one in between.origins] == [first]


def test_a_sound_device_agrees_and_what_was_not_compared_is_said(tmp_path: Path) -> None:
    found = compare_recordings(framework(tmp_path / "gpu"), device(tmp_path / "npu"))
    assert found.verdict is Verdict.AGREE
    assert found.compared == 3  # relu1, conv2, pool
    assert {"what went into calls", "settings of calls", "the device's graph"} <= set(
        found.unrecorded
    )
    alone = {one.pair.present.site.module for one in found.findings if one.pair.candidate is None}
    assert {"block_conv1", "block_bn1"} <= alone


def test_the_graph_tells_what_a_fused_operator_stands_for(tmp_path: Path) -> None:
    operators = {
        "block/conv1bn1relu1": (["block/conv1", "block/bn1", "block/relu1"], "block/relu1")
    }
    fault = device(tmp_path / "npu", "block/relu1", told=False)
    # without it the fused operator has no partner
    blind = compare_recordings(framework(tmp_path / "gpu"), fault)
    assert "block_relu1" not in [one.module for one in blind.origins]
    made.graph(tmp_path / "ge_proto_00000343_Build.txt", operators)
    found = compare_recordings(tmp_path / "gpu", fault)
    assert [one.module for one in found.origins] == ["block_relu1"]
    (gap,) = (one for one in lockstep.open(fault).manifest.not_seen if "fused" in one.what)
    assert gap.reason == "block_bn1, block_conv1 in block_conv1bn1relu1"
    # two graphs are not chosen from, and one may be named
    other = made.graph(fault / "ge_proto_00000001_Build.txt", operators)
    with pytest.raises(CorruptError, match="2 graphs"):
        lockstep.open(fault)
    assert main(["show", str(fault), "--format", f"ascend:{other}"]) == 0


def test_names_that_are_numbers_are_told_by_a_list(tmp_path: Path) -> None:
    folder = device(tmp_path / "npu")
    lines = []
    for number, file in enumerate(sorted(folder.iterdir()), 1000):
        lines.append(f"{number},{file.name}\n")
        file.rename(folder / str(number))
    (folder / "mapping.csv").write_text("".join(lines))
    found = compare_recordings(framework(tmp_path / "gpu", "conv2"), folder)
    assert [one.module for one in found.origins] == ["conv2"]


def test_bytes_that_no_numpy_has_are_read_or_said(tmp_path: Path) -> None:
    value = np.array([1.0, -2.5, 3.0], "f4")
    half = (value.view("u4") >> 16).astype("u2")
    folder = tmp_path / "npu"
    folder.mkdir()
    made.dump(folder / f"Cast.cast.1.2.{STAMP}", [Tensor(value)], [Tensor(half, dtype="bfloat16")])
    records = list(lockstep.open(folder).records())
    assert [(one.dtype, one.load().tolist()) for one in records] == [
        ("float32", [1.0, -2.5, 3.0]), ("bfloat16", [1.0, -2.5, 3.0]),
    ]  # fmt: skip
    made.DTYPES["int4"] = 28
    made.dump(folder / f"Cast.cast.1.2.{STAMP}", [Tensor(value)], [Tensor(half, dtype="int4")])
    (odd,) = (one for one in lockstep.open(folder).records() if one.role.value == "output")
    assert odd.content.note == "its dtype 28 is not read"


def test_a_dump_that_is_cut_off_at_any_byte_ends_in_a_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = made.dump(
        tmp_path / f"Op.a.1.2.{STAMP}",
        [Tensor(values(2, 3))],
        [Tensor(values(2, 3), origin=("b", 0, 0))],
    )
    data = file.read_bytes()
    for length in range(len(data)):
        file.write_bytes(data[:length])
        with pytest.raises(CorruptError, match="is not a dump of a device, or cut off"):
            dump_in(file)
    # a folder of one that is whole and one that is cut off names the latter
    file.write_bytes(data)
    (tmp_path / f"Op.b.2.2.{STAMP}").write_bytes(data[:-1])
    assert main(["show", str(tmp_path)]) == 2
    assert f"Op.b.2.2.{STAMP}" in capsys.readouterr().err


@given(st.binary(max_size=200))
def test_any_bytes_are_a_message_or_none(data: bytes) -> None:
    for read in (fields_of, lambda one: text_message(one.decode("latin-1"))):
        with suppress(ValueError):
            read(data)


def test_hostile_headers_and_graphs_are_refused(tmp_path: Path) -> None:
    huge = made.number(2, 1) + made.message(
        4, made.number(1, 1) + made.shape(3, (1 << 40, 1 << 40)) + made.number(5, 8)
    )
    file = tmp_path / f"Op.a.1.2.{STAMP}"
    for header in (
        huge,
        made.number(2, 1),
        b"\x12\xff",
        made.message(2, b"x") + made.message(3, b""),
    ):
        file.write_bytes(len(header).to_bytes(8, "little") + header + bytes(64))
        with pytest.raises(CorruptError):
            dump_in(file)
    file.write_bytes((1 << 60).to_bytes(8, "little") + bytes(64))
    with pytest.raises(CorruptError):
        dump_in(file)
    made.dump(file, [Tensor(values(2, 2))], [Tensor(values(2, 2))])
    for text in (
        "graph {",
        "}",
        "graph { " * 100 + "}" * 100,
        'graph { op { name: "x }',
        "nothing: 1",
    ):
        (tmp_path / "ge_proto_1_Build.txt").write_text(text)
        with pytest.raises(CorruptError):
            list(ascend_dump.read(tmp_path))
    # a file whose shape and bytes disagree is none
    (tmp_path / "ge_proto_1_Build.txt").unlink()
    lying = Tensor(values(2, 2))
    made.dump(file, [lying], [Tensor(values(2, 2))])
    data = file.read_bytes().replace(made.number(5, 16), made.number(5, 12), 1)
    file.write_bytes(data)
    with pytest.raises(CorruptError):
        list(ascend_dump.read(tmp_path))


def chain(folder: Path, *, says: bool, origins: bool) -> Path:
    """Each operator of the network as a file; headers say which it is, or of which the results are, or neither."""
    folder.mkdir()
    results = network()
    names = list(results)
    for number, (before, name) in enumerate(pairwise(names), 3):
        made.dump(
            folder / f"Tanh.{name.replace('/', '_')}.{number}.2.{STAMP + number}",
            [Tensor(results[before])],
            [Tensor(results[name], origin=(name, 0, NCHW) if origins else None)],
            says=name if says else "",
        )
    return folder


@pytest.mark.parametrize(("says", "origins"), [(True, False), (False, True), (True, True)])
def test_files_whose_headers_are_of_other_operators_never_agree(
    says: bool, origins: bool, tmp_path: Path
) -> None:
    sides = [chain(tmp_path / name, says=says, origins=origins) for name in ("a", "b")]
    golden = framework(tmp_path / "gpu")
    assert {compare_recordings(one, sides[1]).verdict for one in (sides[0], golden)} == {
        Verdict.AGREE
    }
    first, second, third = sorted(sides[1].iterdir())[:3]
    kept = first.read_bytes()
    for file, data in ((first, second.read_bytes()), (second, third.read_bytes()), (third, kept)):
        file.write_bytes(data)
    for left, right in ((sides[0], sides[1]), (sides[1], sides[0]), (golden, sides[1])):
        found = compare_recordings(left, right)
        assert (found.verdict, found.origins) == (Verdict.INCOMPARABLE, ())
        side = "candidate" if right is sides[1] else "reference"
        assert f"in the {side}, {first.name} is of block_conv1 by its header" in headline(found)


def test_a_longer_name_in_a_header_is_the_same_operator(tmp_path: Path) -> None:
    value = Tensor(values(2, 3))
    for folder, says in (("a", ""), ("b", "Default/network/conv1")):
        (tmp_path / folder).mkdir()
        made.dump(tmp_path / folder / f"Conv2D.conv1.1.2.{STAMP}", [value], [value], says=says)
    assert compare_recordings(tmp_path / "a", tmp_path / "b").verdict is Verdict.AGREE
    # unless there is a file of that very operator
    made.dump(tmp_path / "b" / f"Conv2D.Default_network_conv1.3.2.{STAMP}", [value], [value])
    found = compare_recordings(tmp_path / "a", tmp_path / "b")
    assert "is of Default_network_conv1 by its header" in headline(found)


def test_results_that_are_not_those_of_the_graph_never_agree(tmp_path: Path) -> None:
    fault = device(tmp_path / "npu")
    originals = ["block/conv1", "block/bn1", "block/relu1"]
    for origin, verdict in (("block/relu1", Verdict.AGREE), ("block/bn1", Verdict.INCOMPARABLE)):
        made.graph(fault / "ge_proto_1_Build.txt", {"block/conv1bn1relu1": (originals, origin)})
        compared = compare_recordings(framework(tmp_path / f"gpu{verdict}"), fault)
        assert compared.verdict is verdict
