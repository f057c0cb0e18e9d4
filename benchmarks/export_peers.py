"""Who names a fault of an exported file: Lockstep beside torch.onnx's verification, polygraphy, onnxslim, onnxruntime.

`make bench-export PEERS=OTHER/bin/python` prints the table of docs/export.md. OTHER is an environment with polygraphy,
onnxslim, onnx and onnxruntime. Twelve networks are exported; each is looked at as it is, and with one mistake planted
in the file. A tool *names* a mistake if the first value it shows is the one that the faulty node makes, or a weight
that this node reads.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir
import torch
from onnx import helper, numpy_helper
from torch.onnx.verification import verify_onnx_program

from lockstep.capture.modules.exported_modules import module_of
from lockstep.core.finding import Verdict
from lockstep_deploy import exporting
from lockstep_deploy.calls import array_of, names_of
from lockstep_deploy.engines import quiet
from lockstep_deploy.model_source import ModelSource, bound
from lockstep_deploy.module_run import run_module
from lockstep_deploy.parity import ParityRuns

NETS = Path(__file__).parents[1] / "packages" / "deploy" / "tests"

PEERS = """
import contextlib, io, json, sys
from pathlib import Path
import numpy as np, onnx
def given(folder):
    return dict(np.load(folder / "inputs.npz"))
def polygraphy(folder):
    from polygraphy.backend.onnxrt import OnnxrtRunner, SessionFromOnnx
    from polygraphy.comparator import Comparator, CompareFunc, IterationResult, RunResults
    meant = dict(np.load(folder / "outputs.npz"))
    session = SessionFromOnnx(str(folder / "model.onnx"), providers=["cpu"])
    runs = Comparator.run([OnnxrtRunner(session)], data_loader=[given(folder)])
    names = list(runs[0][1][0].keys())
    both = RunResults([("torch", [IterationResult(dict(zip(names, meant.values())))]), runs[0]])
    found = Comparator.compare_accuracy(both, compare_func=CompareFunc.simple())
    return "" if bool(found) else "outputs differ"
def onnxslim(folder):
    import onnxslim
    onnxslim.slim(onnx.load(folder / "model.onnx"), model_check=True)
    return ""
def onnxruntime(folder):
    from onnxruntime.quantization import CalibrationDataReader, qdq_loss_debug
    class Reader(CalibrationDataReader):
        def __init__(self):
            self.left = [given(folder)]
        def get_next(self):
            return self.left.pop() if self.left else None
    values = []
    for name in ("sound.onnx", "model.onnx"):
        augmented = folder / f"all-{name}"
        qdq_loss_debug.modify_model_output_intermediate_tensors(str(folder / name), str(augmented))
        values.append(qdq_loss_debug.collect_activations(str(augmented), Reader()))
    errors = qdq_loss_debug.compute_activation_error(qdq_loss_debug.create_activation_matching(values[1], values[0]))
    return next(iter(errors), "")
for folder in map(Path, sys.argv[1:]):
    for tool in (polygraphy, onnxslim, onnxruntime):
        with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.redirect_stderr(out):
            try:
                shown = tool(folder)
            except BaseException as error:
                shown = f"fails: {type(error).__name__} {str(error)[:80]}"
        print(json.dumps([folder.name, tool.__name__, shown]), flush=True)
"""


def _node(model: Any, op: str) -> Any:
    return [one for one in model.graph.node if one.op_type == op][-1]


def _made_of(node: Any) -> str:
    """The operator of the program that the exporter wrote a node for: it notes that in the file."""
    noted = [one.value for one in node.metadata_props if one.key == "pkg.torch.onnx.fx_node"]
    return re.findall(r"^%(\S+) :", noted[0])[0]


def _attribute(op: str, name: str, value: Any) -> Callable[[Any], str]:
    def plant(model: Any) -> str:
        node = _node(model, op)
        for one in [one for one in node.attribute if one.name == name]:
            node.attribute.remove(one)
        node.attribute.append(helper.make_attribute(name, value))
        return _made_of(node)

    return plant


def _weight(op: str, at: int, change: Callable[[Any], Any]) -> Callable[[Any], str]:
    def plant(model: Any) -> str:
        held = {one.name: one for one in model.graph.initializer}
        node = [one for one in model.graph.node if one.op_type == op and one.input[at] in held][-1]
        weight = held[node.input[at]]
        array = np.array(numpy_helper.to_array(weight))
        weight.CopyFrom(numpy_helper.from_array(np.ascontiguousarray(change(array)), weight.name))
        return _made_of(node)

    return plant


def _operator(op: str, other: str) -> Callable[[Any], str]:
    def plant(model: Any) -> str:
        node = _node(model, op)
        node.op_type = other
        return _made_of(node)

    return plant


def _off(array: Any) -> Any:
    array.flat[0] += 0.1 * np.abs(array).max()
    return array


def _larger(array: Any) -> Any:
    return array * np.float32(1.02)


FAULTS: dict[str, tuple[str, Callable[[Any], str]]] = {
    "gpt2": ("eps of the last layer norm", _attribute("LayerNormalization", "epsilon", 1e-3)),
    "bert": ("axis of a softmax", _attribute("Softmax", "axis", -2)),
    "vit": ("GELU by its approximation", _attribute("Gelu", "approximate", "tanh")),
    "t5": ("an embedding 2 % off", _weight("Gather", 0, _larger)),
    "llama": ("sigmoid for tanh", _operator("Sigmoid", "Tanh")),
    "resnet": ("a bias 2 % off", _weight("Gemm", 2, _larger)),
    "convnext": ("eps of the last layer norm", _attribute("LayerNormalization", "epsilon", 1e-3)),
    "mobilenet": ("an element of a weight", _weight("Conv", 1, _off)),
    "whisper": ("GELU by its approximation", _attribute("Gelu", "approximate", "tanh")),
    "lstm": ("an embedding 2 % off", _weight("Gather", 0, _larger)),
    "unet": ("a weight 2 % off", _weight("Conv", 1, _larger)),
    "detector": ("sigmoid left out", _operator("Sigmoid", "Identity")),
}  # fmt: skip


def _exported(net: Any) -> tuple[Any, dict[str, torch.Tensor], Any]:
    """A network's module, its inputs, and torch's export of it."""
    module, given = net()
    inputs = bound(module.eval(), given)
    program = exporting.program_of(ModelSource(net.__name__, module), inputs)
    with quiet():
        made = torch.onnx.export(
            program, (), kwargs=inputs, dynamo=True, opset_version=20, optimize=False, verbose=False
        )
    return module, inputs, made


def _torch_verify(made: Any, model: Any, inputs: dict[str, torch.Tensor]) -> str:
    """The first value that torch.onnx's own verification shows beyond torch's own tolerance for float32."""
    whole, made.model = made.model, onnx_ir.from_proto(model)
    try:
        with quiet():
            found = verify_onnx_program(made, (), inputs, compare_intermediates=True)
    except Exception as error:
        return f"fails: {type(error).__name__}"
    finally:
        made.model = whole
    off = [one for one in found if one.max_abs_diff > 1e-5 and one.max_rel_diff > 1.3e-6]
    return off[0].name if off else ""


def _ours(made: Any, model: Any, inputs: Any, module: Any, folder: Path, value: str) -> str:
    """The value of the faulty node where its module and operator, or a weight of it, is the first origin."""
    found = ParityRuns(made.exported_program, inputs, folder, module).plain(model).comparison
    if found.verdict is not Verdict.DIVERGED:
        return ""
    first = found.origins[0]
    for node in made.exported_program.graph.nodes:
        if value in names_of(node) and first.module == module_of(node)[0]:
            return value
    return f"{first.module} {first.op}"


def _looked_at(net: Any, folder: Path) -> list[tuple[Path, str, str, str]]:
    """Place, name of the value at fault ("" where none is), and what the tools of this environment show."""
    rows = []
    module, inputs, made = _exported(net)
    outputs = run_module(module, inputs).outputs or []
    sound = made.model_proto
    faulty = onnx.ModelProto()
    faulty.CopyFrom(sound)
    value = FAULTS[net.__name__][1](faulty)
    for kind, model, at in (("sound", sound, ""), ("faulty", faulty, value)):
        place = folder / f"{net.__name__}-{kind}"
        place.mkdir()
        onnx.save(sound, place / "sound.onnx")
        onnx.save(model, place / "model.onnx")
        np.savez(place / "inputs.npz", **{name: array_of(one) for name, one in inputs.items()})
        np.savez(place / "outputs.npz", *[array_of(one) for one in outputs])
        ours = _ours(made, model, inputs, module, place, at)
        rows.append((place, at, ours, _torch_verify(made, model, inputs)))
    return rows


def _words(shown: str, value: str) -> str:
    """What a tool's answer is worth: of a sound file it should be silent."""
    if not shown:
        return "silent"
    if shown == "outputs differ" or shown.startswith("fails"):
        return shown
    return "names it" if shown == value else f"names {shown}"


def main() -> None:
    """Print the table as Markdown, a network after the other."""
    sys.path.insert(0, str(NETS))
    import public_nets

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--peers", required=True, help="Python with polygraphy and onnxslim.")
    parser.add_argument("--only", default="", help="Names of networks.")
    asked = parser.parse_args()
    wanted = {one.__name__: one for one in public_nets.EVERY}
    tools = ("Lockstep", "torch.onnx verify", "polygraphy", "onnxslim", "onnxruntime")
    print(f"| file | mistake | {' | '.join(tools)} |\n|{'---|' * 7}", flush=True)
    for name in asked.only.split(",") if asked.only else wanted:
        with tempfile.TemporaryDirectory() as place:
            rows = _looked_at(wanted[name], Path(place))
            done = subprocess.run(
                [asked.peers, "-c", PEERS, *(str(row[0]) for row in rows)],
                capture_output=True, text=True, check=True,
            )  # fmt: skip
        theirs = {tuple(one[:2]): one[2] for one in map(json.loads, done.stdout.splitlines())}
        for where, value, ours, verify in rows:
            shown = [ours, verify, *(theirs[where.name, one] for one in tools[2:])]
            said = " | ".join(_words(one, value) for one in shown)
            print(f"| {where.name} | {FAULTS[name][0] if value else 'none'} | {said} |", flush=True)


if __name__ == "__main__":
    main()
