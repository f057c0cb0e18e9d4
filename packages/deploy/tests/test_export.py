"""`lockstep export` and `lockstep run`: a model becomes a file, proven operator by operator, and runs."""

import json
import shlex
import shutil
from pathlib import Path

import numpy as np
import pytest
import small_nets
import torch
from click.testing import CliRunner
from onnx import numpy_helper

from lockstep.cli.main import cli
from lockstep.core.errors import LockstepError
from lockstep_deploy import export_command, exporting
from lockstep_deploy.bisect_command import bisect_fusions
from lockstep_deploy.export_command import export
from lockstep_deploy.model_file import open_model
from lockstep_deploy.run_command import run

NETS = Path(small_nets.__file__)


def called(command, *arguments):
    """What a verb printed, and its exit code."""
    done = CliRunner().invoke(
        command,
        [str(one) for one in arguments],
        standalone_mode=False,
        help_option_names=["-h", "--help"],
    )
    if done.exception is not None:
        raise done.exception
    return done.output, done.return_value


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with both nets exported, and what was said."""
    folder = tmp_path_factory.mktemp("exported")
    for name in ("resnet", "gpt"):
        output, code = called(export, f"{NETS}:{name}", "-o", folder / f"{name}.onnx")
        (folder / f"{name}.txt").write_text(output)
        assert code == 0, output
    return folder


@pytest.mark.parametrize(("name", "operators"), [("resnet", 12), ("gpt", 20)])
def test_each_operator_of_a_sound_export_agrees(folder, name, operators):
    said = (folder / f"{name}.txt").read_text()
    assert said.count("\nAGREE: step 0, ") == 2
    proven = open_model(folder / f"{name}.onnx").facts["proven"]
    assert proven["plain"]["operators"] == proven["plain"]["operators_compared"] >= operators
    assert proven["plain"]["verdict"] == proven["as_run"]["verdict"] == "agree"


def test_what_was_fused_away_is_said_and_counted(folder):
    said = " ".join((folder / "resnet.txt").read_text().split())
    proven = open_model(folder / "resnet.onnx").facts["proven"]["as_run"]
    assert proven["operators_compared"] < proven["operators"]
    fused = proven["operators"] - proven["operators_compared"]
    assert f"{fused} of {proven['operators']} operators were fused or folded away" in said


def test_the_file_returns_what_the_module_does(folder):
    module, x = small_nets.resnet()
    np.savez(folder / "in.npz", x=x.numpy())
    called(
        run,
        folder / "resnet.onnx",
        "--inputs",
        folder / "in.npz",
        "-o",
        folder / "out.npz",
        "--force",
    )
    with torch.no_grad():
        wanted = module.eval()(x).numpy()
    (found,) = np.load(folder / "out.npz").values()
    np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-5)


def test_a_run_tells_outputs_latency_memory_and_nodes(folder):
    said, code = called(run, folder / "gpt.onnx", "--inputs", "ids:int64[2,6]<50", "--runs", "2")
    assert code == 0
    assert "in   ids: int64[2, 6]" in said
    assert "latency" in said
    assert "bytes held by the runtime" in said
    assert "MatMul" in said
    told = json.loads(called(run, folder / "gpt.onnx", "--json", "--runs", "1")[0])
    assert told["schema"] == 1
    assert told["facts"]["proven"]["plain"]["verdict"] == "agree"
    assert len(told["latencies_s"]) == 1
    assert told["nodes"][0]["time_s"] > 0


def test_the_same_run_gives_the_same_numbers(folder):
    first, again = (
        json.loads(
            called(run, folder / "resnet.onnx", "--json", "--runs", "1", "--threads", "1")[0]
        )["outputs"]
        for _ in range(2)
    )
    assert first == again


def test_a_checkpoint_says_what_was_done_to_it(folder):
    module, x = small_nets.resnet()
    state = {f"module.{key}": value for key, value in module.state_dict().items()}
    torch.save(
        {"epoch": 3, "state_dict": module.state_dict(), "state_dict_ema": state},
        folder / "best.pth.tar",
    )
    np.savez(folder / "x.npz", x=x.numpy())
    told, code = called(
        export, folder / "best.pth.tar", "--factory", f"{NETS}:resnet", "--inputs", folder / "x.npz", "--json",
        "-o", folder / "checkpoint.onnx",
    )  # fmt: skip
    said = json.loads(told)["said"]
    assert code == 0
    assert any("weights under 'state_dict_ema'" in one and "state_dict too" in one for one in said)
    assert any("took 'module.' off" in one for one in said)
    assert any("set to evaluation" in one for one in said)


def test_a_line_is_named_in_a_project_whose_folder_is_called_as_this_package(tmp_path, monkeypatch):
    # given a model in a folder of that name, as of a clone of this project
    project = tmp_path / "lockstep" / "models"
    project.mkdir(parents=True)
    (project / "nets_here.py").write_text(Path(small_nets.__file__).read_text())
    monkeypatch.chdir(tmp_path)
    # when it cannot be exported, then its line is told
    with pytest.raises(LockstepError, match=r"lockstep/models/nets_here\.py:\d+"):
        called(export, f"{project / 'nets_here.py'}:branches", "-o", "m.onnx")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([f"{NETS}:missing"], "cannot be imported"),
        (["no.such.module:f"], "cannot be imported"),
        (["resnet"], "give pkg.mod:function"),
        ([f"{NETS}:nothing"], "returns a int"),
        ([f"{NETS}:sorts"], r"small_nets\.py:\d+"),
        ([f"{NETS}:branches"], r"small_nets\.py:\d+"),
        ([f"{NETS}:resnet", "--inputs", "y:float32[2,1,8,8]"], "do not fit forward"),
        ([f"{NETS}:resnet", "--inputs", "x:float32[2,3,8,8]"], "cannot be exported"),
        ([f"{NETS}:resnet", "--opset", "11"], "--opset 11: the exporter wrote opset 18 instead"),
        (["weights.pth"], "--factory"),
        (["weights.pth", "--factory", f"{NETS}:resnet"], "cannot be read as a checkpoint"),
        (
            ["other.pth", "--factory", f"{NETS}:resnet"],
            r"lacks stem\.weight.* it has beside stam\.weight",
        ),
        (["program.pt2"], "cannot be read as a torch.export file"),
    ],
)
def test_what_cannot_be_exported_is_one_sentence_and_leaves_no_file(
    tmp_path, monkeypatch, arguments, said
):
    monkeypatch.chdir(tmp_path)
    state = small_nets.resnet()[0].state_dict()
    torch.save({key.replace("stem", "stam"): value for key, value in state.items()}, "other.pth")
    Path("weights.pth").write_bytes(b"PK garbage")
    Path("program.pt2").write_bytes(b"PK garbage")
    before = set(tmp_path.iterdir())
    with pytest.raises(LockstepError, match=said):
        called(export, *arguments, "-o", "m.onnx")
    assert set(tmp_path.iterdir()) == before


def test_no_file_is_replaced_without_being_asked(folder, tmp_path):
    shutil.copy(folder / "gpt.onnx", tmp_path / "m.onnx")
    with pytest.raises(LockstepError, match="exists already"):
        called(export, f"{NETS}:gpt", "-o", tmp_path / "m.onnx")
    with pytest.raises(LockstepError, match=r"ends in \.onnx"):
        called(export, f"{NETS}:gpt", "-o", tmp_path / "m.tflite")


def pasted(line):
    """Where the line that a verb printed leads: what that prints and its exit code."""
    words = shlex.split(line)
    words = words[words.index("lockstep") + 1 :]
    done = CliRunner().invoke(cli, words, standalone_mode=False)
    assert done.exception is None, done.exception
    return done.output, done.return_value


def test_the_line_that_leads_on_takes_the_options_that_were_given(tmp_path, monkeypatch):
    # Given an export on inputs of the user's
    monkeypatch.chdir(tmp_path)
    given = (
        "--inputs", "ids:int64[1,6]<50", "--session", "session.set_denormal_as_zero=1", "--seed", "7",
    )  # fmt: skip
    said, code = called(export, f"{NETS}:gpt", "-o", "gpt.onnx", *given)
    assert code == 0, said

    # When the printed line is pasted
    line = said[said.index("What next: ") :].splitlines()[1].strip()
    ran, code = pasted(line)

    # Then the file runs on them
    assert code == 0, ran
    assert tuple(shlex.split(line)[-len(given) :]) == given
    assert "ids" in ran
    assert "drawn: give --inputs" not in ran


def test_the_line_that_keeps_recordings_is_what_was_typed(tmp_path, monkeypatch):
    # Given an export as it was typed
    monkeypatch.chdir(tmp_path)
    (tmp_path / "parity").mkdir()
    typed = [
        "best.pt", "-o", "it's.onnx", "--factory", "nets.py:net", "--inputs", "x:float32[1,3]",
        "--inputs", "y.npy", "--dynamic", "batch", "--opset", "18", "--plain", "--session", "a.b=c=d", "--seed", "3",
    ]  # fmt: skip
    context = export.make_context("export", list(typed))
    # When the line that keeps its recordings is typed
    with context:
        words = shlex.split(export_command._kept_again(context.params["entries"]))
    again = export.make_context("export", words[words.index("export") + 1 :])
    # Then nothing else is different
    changed = {name for name in again.params if again.params[name] != context.params[name]}
    assert changed == {"recordings", "force"}
    assert again.params["recordings"] == Path("parity-2")


def test_a_wrong_optimisation_of_the_exporter_leads_to_a_file_without_it(tmp_path, monkeypatch):
    # given an exporter whose own optimisation changes a weight
    def optimised(program, inputs, **how):
        made = to_onnx(program, inputs, **how)
        (held,) = [one for one in made.optimized.graph.initializer if one.name == "head.weight"]
        held.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(held) * 2, held.name))
        return made

    to_onnx = exporting.to_onnx
    monkeypatch.setattr(exporting, "to_onnx", optimised)
    monkeypatch.chdir(tmp_path)
    # when a net is exported on the inputs of its factory
    said, code = called(export, f"{NETS}:tiny", "-o", "tiny.onnx")
    assert code == 1
    # then the line that leads on leaves that optimisation out, and what it writes agrees
    assert "AGREE" in said
    assert "DIVERGED" in said
    line = next(one.strip() for one in said.splitlines() if " --plain" in one)
    # and bisect-fusions blames no optimizer of the runtime, and accuses the file too
    found, code = called(bisect_fusions, "tiny.onnx", "--inputs", "tiny.inputs.pt")
    assert code == 1
    assert "the exporter's own optimisation changed them: export it with --plain" in found
    again, code = pasted(line)
    assert code == 0, again
    found, code = called(bisect_fusions, "tiny.onnx", "--inputs", "tiny.inputs.pt")
    assert (code, found.startswith("AGREE")) == (0, True)
