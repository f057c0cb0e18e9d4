"""A migrated project asks for the device when a value is needed: each project is run before and after, on stand-ins."""

from __future__ import annotations

import functools
import inspect
import re
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from test_migration_pairs import parts_of

from lockstep_migrate.files.collection import collect
from lockstep_migrate.options import MigrationOptions
from lockstep_migrate.project import plan_collection
from lockstep_migrate.torch.helper import helper_module

PAIRS = Path(__file__).with_name("pairs") / "lazy"
MACHINE = Path(__file__).with_name("machine_stand_in.py")
CASES = sorted(path.stem for path in PAIRS.glob("*.txt"))
TOLD = re.compile(r"^asked first: (.*); copied after: (True|False)$", re.MULTILINE)


def before_of(case: str, folder: Path) -> Path:
    """Write the project of a pair."""
    for (kind, path), text in parts_of(PAIRS / f"{case}.txt").items():
        if kind == "before":
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / path).write_text(text)
    return folder


def after_of(case: str, folder: Path) -> Path:
    """Write the project of a pair as migrating makes it neutral."""
    before_of(case, folder)
    plan = plan_collection(collect([folder]), MigrationOptions("neutral"))
    for file in plan.files:
        (folder / file.path).write_bytes(file.migrated())
    for new in plan.new_files:
        (folder / new.path).write_bytes(new.data)
    return folder


def run(programs: Path, kind: str, script: Path, *arguments: str) -> tuple[str, str, bool]:
    """Run a script; give what it prints, when the driver was asked first, and whether a process was copied then."""
    command = [programs / "python", "-W", "ignore", MACHINE, kind, script.name, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, cwd=script.parent)
    assert done.returncode == 0, done.stderr
    told = TOLD.findall(done.stderr)[-1]
    return (
        done.stdout.replace(f"{kind}:", "device:").replace(f"'{kind}'", "'device'"),
        told[0],
        told[1] == "True",
    )


@pytest.mark.sampled(2)
@pytest.mark.parametrize("case", CASES)
def test_a_project_does_the_same_on_another_device(
    case: str, programs: Path, tmp_path: Path
) -> None:
    before = run(programs, "cuda", before_of(case, tmp_path / "before") / "train.py")
    after = run(programs, "xpu", after_of(case, tmp_path / "after") / "train.py")
    assert after == before


@pytest.mark.parametrize("kind", ["mps", "none"])
def test_streams_and_events_take_the_arguments_of_cuda(
    kind: str, programs: Path, tmp_path: Path
) -> None:
    after = run(programs, kind, after_of("streams", tmp_path / "after") / "train.py")
    assert after[0] == "True True True\n"


def test_a_module_that_was_saved_by_its_source_loads_elsewhere(
    programs: Path, tmp_path: Path
) -> None:
    # given a pickle that holds the source of the module which its class is from
    project = after_of("persistence", tmp_path / "after")
    run(programs, "xpu", project / "train.py")
    # when it is loaded where the project's own modules are not, but for the one that loads sources
    elsewhere = tmp_path / "elsewhere"
    (elsewhere / "torch_utils").mkdir(parents=True)
    for name in ("torch_utils/__init__.py", "torch_utils/persistence.py", "load.py", "net.pkl"):
        (elsewhere / name).write_bytes((project / name).read_bytes())
    # then the network computes
    assert run(programs, "xpu", elsewhere / "load.py")[0] == "True\n"


def test_the_helper_takes_every_argument_by_the_name_that_torch_cuda_has_for_it() -> None:
    # given
    helper: dict[str, Any] = {}
    exec(helper_module().decode(), helper)
    # when
    lacking = {
        f"{name}({parameter})"
        for name, torchs in _of_torch_cuda(helper)
        for parameter in inspect.signature(torchs).parameters.keys()
        - inspect.signature(helper[name]).parameters.keys()
    }
    # then: those that it lacks are in the table's conditions, so that such a call is listed
    assert lacking == {"is_bf16_supported(including_emulation)", "Event(external)"}


def _of_torch_cuda(helper: dict[str, Any]) -> Iterator[tuple[str, Callable[..., Any]]]:
    """The helper's functions and classes with those of torch.cuda that they stand for."""
    for name in helper.keys() & vars(torch.cuda).keys() - {"device", "torch", "Stream"}:
        found = getattr(torch.cuda, name)
        if callable(found) and not name.startswith("_"):
            yield name, _without_class(found.__new__) if isinstance(found, type) else found
    yield "device_context", _without_class(torch.cuda.device.__init__)


def _without_class(made: Callable[..., Any]) -> Callable[..., Any]:
    return functools.partial(made, None)
