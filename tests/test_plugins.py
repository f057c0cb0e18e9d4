"""Plug-ins of other people: the example is installed and used, and one that is broken takes nothing with it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import lockstep
from lockstep import plugins
from lockstep.cli.main import main
from lockstep.testing.fixtures import FaultyPair

EXAMPLE = Path(__file__).parents[1] / "examples" / "plugin"


@pytest.fixture
def use(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[Path], None]]:
    """Puts what is installed in a folder beside what is installed already."""

    def find_also(folder: Path) -> None:
        monkeypatch.syspath_prepend(str(folder))
        plugins.forget()

    yield find_also
    monkeypatch.undo()
    plugins.forget()


@pytest.fixture(scope="module")
def example(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the example is installed."""
    folder = tmp_path_factory.mktemp("site")
    options = ["--quiet", "--no-deps", "--no-build-isolation", "--no-index", "--target"]
    command = [sys.executable, "-m", "pip", "install", *options, str(folder), str(EXAMPLE)]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return folder


def test_the_example_adds_a_verb_a_format_and_a_device(
    example: Path,
    use: Callable[[Path], None],
    lockstep_faulty_pair: FaultyPair,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    # given the example beside Lockstep, and two recordings
    use(example)
    reference, candidate = lockstep_faulty_pair.reference, lockstep_faulty_pair.candidate

    # then its verb stands under a heading of its own, after those of Lockstep and before compatibility, and runs
    assert main(["--help"]) == 0
    shown = capsys.readouterr().out
    places = [shown.index(f"{one}:") for one in ("Start here", "Export and serve", "Examples")]
    assert places == sorted(places)
    assert places[-1] < shown.index("count ") < shown.index("Stand in for another tool:")
    assert main(["count", str(reference)]) == 0
    tensors = lockstep.open(reference).ranks["rank0"].record_count
    assert capsys.readouterr().out == f"rank0: {tensors} tensors\n"
    # and its format is written beside the others
    assert main(["compare", str(reference), str(candidate), "-o", str(tmp_path / "out")]) == 1
    written = {path.name.removeprefix("comparison"): path for path in (tmp_path / "out").iterdir()}
    assert set(written) == {
        ".csv", ".html", ".json", ".largest.json", ".md", ".trace.json", ".xlsx",
    }  # fmt: skip
    assert written[".md"].read_text().startswith("# diverged\n\n- ")
    # and scripts are migrated to its device
    script = "import torch\nprint(torch.cuda.is_available())\ntorch.fft.fft(x)\ntorch.sort(x)\n"
    (tmp_path / "train.py").write_text(script)
    command = ["migrate", "train.py", "--to", "toy", "-o", "toy.py"]
    run = subprocess.run(
        [sys.executable, "-m", "lockstep", *command],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(example)},
        check=True,
        capture_output=True,
        text=True,
    )
    assert "print(torch.toy.is_available())" in (tmp_path / "toy.py").read_text()
    # where what the device cannot run is listed, and nothing else
    assert "1 x torch.fft.fft: toy 1.0 has no transforms; run them on the host" in run.stdout
    assert "torch.sort" not in run.stdout


def test_a_whole_wing_takes_sixty_lines_with_its_test_and_its_page(
    example: Path,
    use: Callable[[Path], None],
    lockstep_faulty_pair: FaultyPair,
    lockstep_whole_recording: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    # given the example's wing, and its test
    files = [EXAMPLE / name for name in ("lockstep_largest.py", "test_lockstep_largest.py")]
    assert sum(len(file.read_text().splitlines()) for file in files) <= 60

    # then its test passes where the wing is installed
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-c", os.devnull]
    environment = {**os.environ, "PYTHONPATH": str(example)}
    command += ["--rootdir", str(tmp_path), str(files[1])]
    subprocess.run(command, check=True, cwd=tmp_path, env=environment, stdout=subprocess.DEVNULL)

    # and its verb lists twenty differences as a table, the largest first
    use(example)
    reference, candidate = lockstep_faulty_pair.reference, lockstep_faulty_pair.candidate
    assert main(["largest", str(reference), str(candidate)]) == 1
    title, *rows = capsys.readouterr().out.splitlines()
    assert title.split() == ["rel", "step", "role", "site"]
    assert len(rows) == 20
    sizes = [float(row.split()[0]) for row in rows]
    assert sizes == sorted(sizes, reverse=True)
    # and finds none between a recording and its copy
    shutil.copytree(lockstep_whole_recording, tmp_path / "copy")
    assert main(["largest", str(lockstep_whole_recording), str(tmp_path / "copy")]) == 0

    # and its page holds the same of a comparison
    page = tmp_path / "out"
    assert main(["compare", str(reference), str(candidate), "-o", str(page)]) == 1
    value = json.loads((page / "comparison.largest.json").read_text())
    assert value["schema"] == 1
    assert len(value["largest"]) == 10


def write_dump(folder: Path, relu: Callable[[NDArray[Any]], NDArray[Any]]) -> Path:
    """What the example's reader reads: a linear layer and a relu, in two steps."""
    folder.mkdir()
    random = np.random.default_rng(0)
    for step in range(2):
        batch, weight = (random.standard_normal((8, 8)).astype("f4") for _ in range(2))
        hidden = batch @ weight.T
        linear, active = "0|fc1|torch.nn.functional.linear", "1||torch.relu"
        np.savez(
            folder / f"step-{step}.npz",
            **{
                f"{linear}|input|args.0": batch,
                f"{linear}|input|fc1.weight": weight,
                f"{linear}|output|result": hidden,
                f"{active}|input|args.0": hidden,
                f"{active}|output|result": relu(hidden),
            },
        )
    return folder


def test_the_example_reads_what_another_tool_wrote(
    example: Path,
    use: Callable[[Path], None],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # given two dumps of another tool that are equal, and one whose relu is off by a thousandth
    use(example)
    monkeypatch.chdir(tmp_path)
    write_dump(Path("ref"), lambda value: np.maximum(value, 0))
    shutil.copytree("ref", "same")
    write_dump(Path("off"), lambda value: np.maximum(value, 0) * np.float32(1.001))

    # then they are compared as recordings are, and what the tool left out is said
    assert main(["compare", "ref", "same"]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "10 tensors compared, all equal bit by bit" in said
    assert "not recorded: what the other tool left out" in said
    assert main(["compare", "ref", "off"]) == 1
    said = " ".join(capsys.readouterr().out.split())
    assert "DIVERGED at step 0, forward of the model (torch.relu)" in said
    assert "lockstep replay ref off" in said
    # and shown, extracted and read by a plug-in, bit by bit
    assert main(["show", "off", "relu", "--steps", "1"]) == 0
    assert "saved whole" in capsys.readouterr().out
    assert main(["extract", "off", "relu", "--steps", "1", "-o", "relu.npz"]) == 0
    (result,) = (
        record
        for record in lockstep.open("off").records()
        if (record.step, record.name, record.site.op) == (1, "result", "torch.relu")
    )
    with np.load("off/step-1.npz") as dump:
        assert np.array_equal(result.load(), dump["1||torch.relu|output|result"])
    assert str(lockstep.open("off").path) == "off"


def dump_of(folder: Path, **tensors: object) -> Path:
    """What the example's reader reads: one call of one step, with these results."""
    folder.mkdir()
    np.savez(
        folder / "step-0.npz",
        **{f"0|m|torch.relu|output|{name}": np.asarray(value) for name, value in tensors.items()},
    )
    return folder


def test_what_another_tool_wrote_comes_back_in_every_form_or_is_refused(
    example: Path,
    use: Callable[[Path], None],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    use(example)
    # given numbers of every kind, order of bytes and shape, and the same again
    tensors = {
        "swapped": np.arange(4, dtype=">f4"), "number": np.float64(3.5), "none": np.zeros((0, 3), "f4"),
        "half": np.ones(3, "f2"), "complex": np.array([1 + 2j], "c8"), "whole": np.array([2**63], "u8"),
        "odd": np.array([np.nan, np.inf, 1.0]), "mask": np.array([[True], [False]]), "again": np.ones(3, "f2"),
    }  # fmt: skip
    records = list(lockstep.open(dump_of(tmp_path / "dump", **tensors)).records())
    # then each comes back as it was
    assert [record.name for record in records] == list(tensors)
    for record, value in zip(records, tensors.values(), strict=True):
        assert record.shape == np.shape(value)
        assert np.array_equal(record.load(), value, equal_nan=record.name == "odd")
    # and what is no number, or not there, is refused in a sentence
    assert main(["show", str(dump_of(tmp_path / "words", word=["x", "y"]))]) == 2
    assert "the reader npz cannot read it (ValueError: a tensor of dtype" in capsys.readouterr().err
    assert main(["show", str(dump_of(tmp_path / "empty"))]) == 2
    assert "it holds no call" in capsys.readouterr().err


READER = """
from lockstep.hookspecs import Reader, hookimpl

def read(path):
    raise KeyError("shape")

@hookimpl
def lockstep_readers():
    return [Reader("odd", lambda path: True, read)]
"""


def test_a_reader_that_fails_is_said_in_a_sentence_and_never_asked_of_a_recording(
    use: Callable[[Path], None],
    lockstep_recording: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    # given a reader that takes everything, and cannot read it
    install(tmp_path, "odd_reader", READER)
    use(tmp_path)
    dump = tmp_path / "dump.bin"
    dump.write_bytes(b"dump")
    # then a dump is refused by its name, a recording is read, and what is not there is not asked for
    assert main(["show", str(dump)]) == 2
    assert "the reader odd cannot read it (KeyError: 'shape')" in capsys.readouterr().err
    assert main(["show", str(lockstep_recording)]) == 0
    assert main(["show", str(tmp_path / "none")]) == 2
    assert "no such directory" in capsys.readouterr().err


WING = """
import sys
import click
from lockstep.hookspecs import Verb, hookimpl, hookspec
from lockstep.plugins import manager

@hookspec
def colours():
    "Colours that the wing may paint in."

@hookimpl
def lockstep_add_hookspecs(plugins):
    plugins.add_hookspecs(sys.modules[__name__])

@hookimpl
def lockstep_commands():
    return [Verb("paint", "Paint.", "Examples", lambda: paint)]

@click.command
def paint():
    click.echo(sorted(sum(manager().hook.colours(), [])))
"""
COLOUR = """
from lockstep.hookspecs import hookimpl

@hookimpl
def colours():
    return ["red"]
"""


@pytest.mark.parametrize("names", [("a_wing", "b_colour"), ("b_wing", "a_colour")])
def test_a_wing_asks_by_a_hook_of_its_own(
    names: tuple[str, str],
    use: Callable[[Path], None],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    # given a wing with a hook of its own, and a plug-in that answers it, in either order
    for name, source in zip(names, (WING, COLOUR), strict=True):
        install(tmp_path, name, source)
    use(tmp_path)
    # then the wing hears the answer
    assert main(["paint"]) == 0
    assert capsys.readouterr() == ("['red']\n", "")


def install(folder: Path, name: str, source: str) -> None:
    """Put a plug-in into a folder as an installer would."""
    (folder / f"{name}.py").write_text(source)
    information = folder / f"{name}-1.0.dist-info"
    information.mkdir()
    (information / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    (information / "entry_points.txt").write_text(f"[lockstep]\n{name} = {name}\n")


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("raise RuntimeError('no luck')", "no luck"),
        ("import no_such_module", "No module named 'no_such_module'"),
        (
            "from lockstep.hookspecs import hookimpl\n@hookimpl\ndef lockstep_commands(other): ...",
            "Argument(s) {'other'}",
        ),
    ],
)
def test_a_broken_plug_in_is_said_and_takes_nothing_with_it(
    source: str,
    reason: str,
    use: Callable[[Path], None],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # given an installed plug-in that cannot be loaded
    monkeypatch.delitem(sys.modules, "broken", raising=False)
    install(tmp_path, "broken", source)
    use(tmp_path)

    # then every verb is there, and what is wrong stands in one line
    assert main(["--help"]) == 0
    said = capsys.readouterr()
    assert "record" in said.out
    assert said.err.count("\n") == 1
    assert "the plug-in broken (broken) cannot be loaded" in said.err
    assert reason in said.err
