"""Dumps of ONNX Runtime's nodes and of TensorFlow 2's debugger, each written here after its published layout."""

from __future__ import annotations

import sqlite3
import struct
import tarfile
from contextlib import suppress
from pathlib import Path
from types import ModuleType

import numpy as np
import onnx
import pytest
from made_events import Directory, tensor
from onnx import TensorProto, helper, numpy_helper

import lockstep
from lockstep.cli.main import main
from lockstep.comparison import compare_recordings
from lockstep.core.errors import CorruptError
from lockstep.core.finding import Verdict
from lockstep.core.manifest import NotSeen
from lockstep.core.read_calls import ReadCall
from lockstep_interop_names.dumps.event_files import events_in
from lockstep_interop_names.dumps.proto_tensor import onnx_tensor, tensorflow_tensor
from lockstep_interop_names.dumps.readers import onnxruntime_dump, tensorflow_debugger

Array = np.ndarray
NODES = ("/body/0/Gemm", "/body/1/Relu", "/body/2/Gemm", "/Softmax")


def chain(wrong: int = -1, run: int = 0) -> list[Array]:
    """What goes in, and what four nodes return one behind the other."""
    found = [np.random.default_rng(run).standard_normal((4, 16)).astype("f4")]
    for number in range(len(NODES)):
        result = np.tanh(found[-1] + np.float32(number)).astype("f4")
        found.append(result * np.float32(1.05 if number == wrong else 1))
    return found


def names(number: int) -> str:
    """Of what a node returns."""
    return "input" if number < 0 else f"{NODES[number]}_output_0"


def model(path: Path) -> Path:
    nodes = [
        helper.make_node(name.rpartition("/")[2], [names(number - 1)], [names(number)], name=name)
        for number, name in enumerate(NODES)
    ]
    value = helper.make_tensor_value_info
    graph = helper.make_graph(
        nodes, "network", [value("input", TensorProto.FLOAT, [4, 16])], [value(names(3), TensorProto.FLOAT, [4, 16])]
    )  # fmt: skip
    onnx.save(helper.make_model(graph), path)
    return path


def files(folder: Path, wrong: int = -1, rank: str = "") -> Path:
    """As a runtime leaves them that dumps inputs and outputs into files."""
    folder.mkdir(parents=True, exist_ok=True)
    for number, value in enumerate(chain(wrong), -1):
        plain = "".join(one if one.isalnum() else "_" for one in names(number))
        (folder / f"{plain}{rank}.tensorproto").write_bytes(
            numpy_helper.from_array(value, names(number)).SerializeToString()
        )
    return folder


def database(path: Path, wrong: int = -1, runs: int = 2) -> Path:
    """As a runtime leaves it that dumps into a database."""
    with sqlite3.connect(path) as base:
        base.execute(
            "create table Tensors (Step int, Name text, Value TensorProto, DeviceType text, TracedProducer NodeArg,"
            " TracedConsumers NodeArgList, primary key (Step, Name))"
        )
        base.execute(
            "create table Nodes (ExecutionCounter int, Name text primary key, OpType text, ExecutionProvider text)"
        )
        for number, name in enumerate(NODES):
            base.execute(
                "insert into Nodes values (?, ?, ?, 'CPU')", (number, name, name.rpartition("/")[2])
            )
        for run in range(runs):
            for number, value in enumerate(chain(wrong, run), -1):
                row = numpy_helper.from_array(value, names(number)).SerializeToString()
                made = f"{NODES[number]}:0" if number >= 0 else ""
                used = f"{NODES[number + 1]}:0" if number < 3 else ""
                base.execute(
                    "insert into Tensors values (?, ?, ?, 'CPU', ?, ?)",
                    (run + 1, names(number), row, made, used),
                )
    base.close()
    return path


def given_by(reader: ModuleType, path: Path) -> list[ReadCall]:
    """The calls that a reader gives."""
    return [one for one in reader.read(path) if isinstance(one, ReadCall)]


def test_nodes_of_onnx_runtime_are_compared_by_files_and_by_a_database(tmp_path: Path) -> None:
    file = model(tmp_path / "network.onnx")
    sound, fault = files(tmp_path / "sound"), files(tmp_path / "fault", 2)
    for folder in (sound, fault):
        (folder / "network.onnx").write_bytes(file.read_bytes())
    assert [(one.module, one.op) for one in compare_recordings(sound, fault).origins] == [
        ("body.2", "Gemm")
    ]
    twin = compare_recordings(sound, files(tmp_path / "twin"))
    assert twin.verdict is not Verdict.DIVERGED
    calls = lockstep.open(sound).ranks["rank0"].calls(0)
    assert [(str(call.site.module), len(call.records)) for call in calls] == [
        ("body.0", 2),
        ("body.1", 2),
        ("body.2", 2),
        ("", 2),
    ]
    # a database tells the nodes itself, and every run
    left, right = database(tmp_path / "sound.db"), database(tmp_path / "fault.db", 1)
    found = compare_recordings(left, right)
    assert [(one.module, one.step) for one in found.origins] == [("body.1", 0)]
    assert lockstep.open(left).ranks["rank0"].steps == (0, 1)
    assert compare_recordings(sound, database(tmp_path / "one.db", runs=1)).verdict is Verdict.AGREE


def test_files_without_a_model_tell_names_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sound = files(files(tmp_path / "sound", rank="_rank_0"), rank="_rank_1")
    fault = files(files(tmp_path / "fault", rank="_rank_0"), 1, rank="_rank_1")
    recording = lockstep.open(sound)
    assert (len(recording.ranks), "the graph" in recording.unrecorded) == (2, True)
    assert compare_recordings(sound, fault).verdict is Verdict.DIVERGED
    told = model(tmp_path / "network.onnx")
    code = main(["compare", str(sound), str(fault), "--format", f"onnxruntime:{told}"])
    assert (code, "body.1" in capsys.readouterr().out) == (1, True)
    (tmp_path / "odd.onnx").write_bytes(told.read_bytes()[:-9])
    assert main(["show", str(sound), "--format", f"onnxruntime:{tmp_path / 'odd.onnx'}"]) == 2
    database(sound / "too.db")
    assert main(["show", str(sound)]) == 2
    assert "of two runs" in capsys.readouterr().err


@pytest.mark.parametrize(
    "dtype",
    [
        TensorProto.FLOAT16,
        TensorProto.BFLOAT16,
        TensorProto.INT8,
        TensorProto.BOOL,
        TensorProto.UINT64,
        TensorProto.DOUBLE,
        TensorProto.COMPLEX64,
        TensorProto.FLOAT8E5M2,
    ],
)
def test_tensors_of_onnx_are_read_raw_and_by_numbers(dtype: int) -> None:
    given = np.array([[0, 1], [1, 0], [1, 1]])
    made = helper.make_tensor("x", dtype, (3, 2), given.ravel().tolist())
    raw = numpy_helper.from_array(numpy_helper.to_array(made), "x")
    by_number, by_bytes = (onnx_tensor(memoryview(one.SerializeToString())) for one in (made, raw))
    assert by_number.shape == (3, 2)
    if dtype != TensorProto.FLOAT8E5M2:
        assert bytes(by_number.data) == bytes(by_bytes.data)
    assert len(bytes(by_number.data)) == 6 * numpy_helper.to_array(made).itemsize
    outside = TensorProto(data_location=TensorProto.EXTERNAL, dims=[1], data_type=dtype)
    for odd in (
        outside,
        TensorProto(dims=[2], data_type=8),
        TensorProto(dims=[1 << 40, 1 << 40], data_type=1),
    ):
        with pytest.raises(ValueError, match=r"lie in another file|is not read|impossible shape"):
            onnx_tensor(memoryview(odd.SerializeToString()))


def test_a_dump_of_onnx_runtime_that_is_cut_off_anywhere_is_refused(tmp_path: Path) -> None:
    file = files(tmp_path / "dump") / "input.tensorproto"
    whole = numpy_helper.from_array(np.arange(6, dtype="f4"), "input").SerializeToString()
    for length in range(len(whole)):
        file.write_bytes(whole[:length])
        with suppress(CorruptError):  # a name may be lost, but then the tensor is whole
            shapes = {
                one.value.shape
                for call in given_by(onnxruntime_dump, file.parent)
                for one in call.tensors
            }
            assert (len(shapes), len(whole) - length < 9) == (2, True)
    base = database(tmp_path / "cut.db", runs=1)
    data = base.read_bytes()
    for length in range(0, len(data), 1021):
        base.write_bytes(data[:length])
        with suppress(lockstep.LockstepError):
            given_by(onnxruntime_dump, base)


def debugged(folder: Path, wrong: int = -1) -> Path:
    """A step function that is called twice, and an operator that runs by itself before and behind it."""
    dump = Directory(folder)
    for number, name in enumerate(NODES):
        before = [NODES[number - 1] + ":0"] if number else ["x"]
        dump.create("graph-1", name, name.rpartition("/")[2], before)
    for run in range(2):
        given, *results = chain(wrong, run)
        dump.run("Mul", [], [(10 * run + 1, given)], typed=run == 1)
        for number, name in enumerate(NODES):
            dump.trace("graph-1", name, results[number])
        dump.run(
            "__inference_step_17", [10 * run + 1], [(10 * run + 2, results[-1])], graph="graph-1"
        )
        dump.run("Sum", [10 * run + 2], [(10 * run + 3, results[-1].sum(0))])
        dump.run("Equal", [], [(10 * run + 4, np.array(run, "i4"))], typed=True)
    return dump.write()


def test_directories_of_the_debugger_are_compared(tmp_path: Path) -> None:
    sound, fault = debugged(tmp_path / "sound"), debugged(tmp_path / "fault", 1)
    found = compare_recordings(sound, fault)
    assert [(one.module, one.op) for one in found.origins] == [("_body_1_Relu", "Relu")]
    assert compare_recordings(sound, debugged(tmp_path / "twin")).verdict is Verdict.AGREE
    calls = lockstep.open(sound).ranks["rank0"].calls(0)
    assert [str(call.site).rpartition(",")[0] for call in calls[:7]] == [
        "(model) / Mul #0", "_body_0_Gemm / Gemm #0", "_body_1_Relu / Relu #0", "_body_2_Gemm / Gemm #0",
        "_Softmax / Softmax #0", "step / step #0", "(model) / Sum #0",
    ]  # fmt: skip
    by_hand = {
        (call.site.op, one.role.value): one.content.load() for call in calls for one in call.records
    }
    assert np.array_equal(by_hand["Sum", "input"], chain(run=1)[-1])
    assert np.array_equal(by_hand["Relu", "input"], chain(run=1)[1])


def test_what_tensorflow_wrote_is_read(tmp_path: Path) -> None:
    # Given two steps of TensorFlow 2.21, and the same with another factor in front of the activation
    with tarfile.open(Path(__file__).with_name("tensorflow-debugger.tar.xz")) as archive:
        archive.extractall(tmp_path, filter="data")
    found = compare_recordings(tmp_path / "sound", tmp_path / "fault")
    # Then that factor is named, which the graph holds as a constant
    assert (found.origins[0].module, found.origins[0].op) == ("mul_y", "Const")
    assert found.compared == 180
    calls = {
        call.site.module: call for call in lockstep.open(tmp_path / "sound").ranks["rank0"].calls(0)
    }
    left, right, result = (one.content.load() for one in calls["MatMul_1"].records)
    assert np.allclose(left @ right, result, atol=1e-5)


def test_what_the_debugger_kept_no_elements_of_is_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    dump = Directory(tmp_path / "health")
    dump.run("Mul", [], [(1, np.zeros(2, "f4"))], mode=4)
    dump.run("Add", [1], [(2, np.ones(2, "f4"))])
    dump.write()
    assert main(["show", str(tmp_path / "health")]) == 0
    recording = lockstep.open(tmp_path / "health")
    assert "1 results' elements" in recording.unrecorded
    assert any("mode FULL_HEALTH keeps none" in text for text in recording.missing)


def test_a_directory_of_the_debugger_that_is_cut_off_anywhere_is_refused_or_said(
    tmp_path: Path,
) -> None:
    dump = Directory(tmp_path / "dump")
    dump.run("Mul", [], [(1, np.arange(3, dtype="f4"))])
    dump.run("Add", [1], [(2, np.ones(2, "f4"))])
    file = next(dump.write().glob("*.execution"))
    whole = file.read_bytes()
    end = int.from_bytes(whole[:8], "little") + 16  # of the first record
    for length in range(len(whole)):
        file.write_bytes(whole[:length])
        with suppress(CorruptError):
            given = list(tensorflow_debugger.read(tmp_path / "dump"))
            assert (
                any(isinstance(one, NotSeen) and one.what == "the end of the dump" for one in given)
                or length == end
            )
    file.write_bytes(whole[:8] + b"\0\0\0\0" + whole[12:])
    with pytest.raises(CorruptError, match="byte 0 begins no record"):
        lockstep.open(tmp_path / "dump")
    # the checksum of RFC 3720's own example
    assert list(events_in(file.with_suffix(".metadata"), []))


def test_one_element_of_tensorflow_stands_for_all() -> None:
    shape = b"\x12\x02\x08\x03"
    one = tensorflow_tensor(
        memoryview(b"\x08\x01\x12\x04" + shape + b"\x2a\x04" + struct.pack("<f", 2.5))
    )
    assert np.array_equal(one.data.view("f4"), [2.5, 2.5, 2.5])
    assert tensorflow_tensor(memoryview(tensor(np.array(3, "i4"), typed=True))).shape == ()
    with pytest.raises(ValueError, match="whose elements take"):
        tensorflow_tensor(memoryview(b"\x08\x01\x12\x04" + shape))
