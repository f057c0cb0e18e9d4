"""The migration benchmark: it gathers what its list names, and it sees what misses a bar."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from types import SimpleNamespace

import pytest
from migrating import plan_of_code

from lockstep_migrate.engine.text import read_python
from lockstep_migrate.plan import Edit, FilePlan, Mention, Outcome, Span, rows_of

_FOLDER = Path(__file__).parents[3] / "benchmarks" / "migrate"
_MODULES = ("corpus", "counter", "emitted", "measures", "report", "stand_in", "runs")


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Iterator[SimpleNamespace]:
    """The benchmark's modules, which find each other by being started from their folder."""
    monkeypatch.syspath_prepend(str(_FOLDER))
    yield SimpleNamespace(**{name: importlib.import_module(name) for name in _MODULES})
    for name in _MODULES:
        del sys.modules[name]


def _git(folder: Path, *words: str) -> str:
    environment = {**os.environ, "GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_SYSTEM": os.devnull}
    identity = ("-c", "user.name=a", "-c", "user.email=a@example.invalid")
    done = subprocess.run(
        ["git", *identity, *words],
        cwd=folder, env=environment, stdout=subprocess.PIPE, text=True, check=True,
    )  # fmt: skip
    return done.stdout.strip()


def _clone(folder: Path, files: dict[str, str]) -> str:
    """A repository with one commit more than the one that is returned."""
    folder.mkdir(parents=True)
    _git(folder, "init", "-q")
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    _git(folder, "add", ".")
    _git(folder, "commit", "-q", "-m", "first")
    commit = _git(folder, "rev-parse", "HEAD")
    (folder / "train.py").write_text("later = True\n")
    _git(folder, "commit", "-q", "-a", "-m", "second")
    return commit


def test_a_repository_is_gathered_as_it_was_at_its_commit(
    bench: SimpleNamespace, tmp_path: Path
) -> None:
    # Given a clone whose work tree has moved on, with a file twice and files that are no scripts
    files = {
        "train.py": "a\n",
        "again.py": "a\n",
        "run.sh": "b\n",
        "data.bin": "c\n",
        "x/no.py": "d\n",
    }
    commit = _clone(tmp_path / "clones" / "owner" / "name", files)
    wanted = [
        bench.corpus.Repository(
            "owner/name", commit, ("train.py", "again.py", "run.sh", "data.bin")
        ),
        bench.corpus.Repository("owner/missing", commit),
    ]
    # when it is gathered
    gathered = bench.corpus.gather(wanted, tmp_path / "clones", tmp_path / "into")
    # then each content is there once, as of that commit, and what is not to be had is named
    found = {
        file.name: file.read_text() for file in (tmp_path / "into").rglob("*") if file.is_file()
    }
    assert found == {"again.py": "a\n", "run.sh": "b\n"}
    assert (gathered.repositories, gathered.files) == (1, 2)
    assert gathered.missing == ("owner/missing",)


def test_the_list_names_each_repository_once_and_its_whole_commit(
    bench: SimpleNamespace,
) -> None:
    entries = bench.corpus.repositories()
    assert len(entries) == len({entry.name for entry in entries})
    assert all(len(entry.commit) == 40 for entry in entries)


def _planned(text: str, *mentions: Mention) -> FilePlan:
    return FilePlan(PurePosixPath("train.py"), read_python(text.encode()), mentions)


def _mention(start: int, end: int, outcome: Outcome, *edits: Edit) -> Mention:
    return Mention("a/rule", outcome, Span(start, end), "because", edits=edits)


def test_a_site_without_a_row_is_unaccounted_and_one_with_a_row_is_not(
    bench: SimpleNamespace,
) -> None:
    # Given a file with two sites and a row for the first only
    text = "x.cuda()\ny.cuda()\n"
    file = _planned(text, _mention(0, 8, Outcome.LISTED))
    # when they are held against each other
    found = bench.measures.Findings()
    sites = bench.counter.python_sites(text)
    bench.measures._account("train.py", sites, list(rows_of(file)), found)
    # then the second is named with its place
    assert found.sites[".cuda", "listed"] == 1
    assert found.unaccounted == ["train.py:2:3: cuda (.cuda)"]


def test_a_line_that_changed_outside_of_its_row_is_seen(bench: SimpleNamespace) -> None:
    # Given a rewritten row on the first line
    file = _planned("x.cuda()\ny = 1\n", _mention(0, 8, Outcome.REWRITTEN, Edit(Span(0, 8), "z")))
    rows = list(rows_of(file))
    # when that line changes, or another one does
    assert list(bench.measures._outside("x.cuda()\ny = 1\n", "import q\nz\ny = 1\n", rows)) == []
    assert list(bench.measures._outside("x.cuda()\ny = 1\n", "z\ny = 2\n", rows)) == [":2"]


@pytest.mark.parametrize(
    ("after", "fault"),
    [
        ("import torch\ntorch.zeros(1).to(d)\n", "new_warnings"),
        ("import torch\nimport os\ntorch.zeros(1)\n", "new_warnings"),
        ("import torch\ntorch.zeros(1).to(\n", "broken"),
        ("import torch\ntorch.accelerator.flush_everything()\n", "missing_names"),
        ("import torch\ntorch.zeros(1).to('cpu')\n", ""),
    ],
)
def test_bad_output_is_seen_and_good_output_is_not(
    bench: SimpleNamespace, after: str, fault: str
) -> None:
    found = bench.measures.Findings()
    bench.measures._check_code(
        "a.py", "import torch\ntorch.zeros(1).cuda()\n", after, "neutral", found
    )
    seen = {name for name in ("new_warnings", "broken", "missing_names") if getattr(found, name)}
    assert seen == ({fault} if fault else set())


def test_an_import_that_comes_from_elsewhere_now_is_no_new_warning(bench: SimpleNamespace) -> None:
    before = "from apex.parallel import DistributedDataParallel as DDP\n"
    after = "from torch.nn.parallel import DistributedDataParallel as DDP\n"
    found = bench.measures.Findings()
    bench.measures._check_code("a.py", before, after, "npu", found)
    assert found.new_warnings == []


def test_a_run_is_the_same_only_if_it_says_and_places_as_much(bench: SimpleNamespace) -> None:
    # Given a script that ends well on CUDA's stand-in, and a plan that lists one of its lines
    ending, plan = bench.runs.Ending, plan_of_code("import torch\ntorch.cuda.cudart()\n")
    before = ending(0, "loss", "", 4)

    def fate(after: object) -> str:
        result = bench.runs._compared("a", "b", "mps", before, after, SimpleNamespace(files=[plan]))
        return str(result.fate)

    # when the migrated one ends in some way, then it is the same, excused by a listing, or missed
    assert fate(ending(0, "loss", "", 4)) == "same"
    assert fate(ending(0, "lost", "", 4)) == "MISSED"
    assert fate(ending(0, "loss", "", 3)) == "MISSED"
    assert fate(ending(1, "", "  torch.cuda.cudart()\nRuntimeError: none", 4)) == "listed"
    assert fate(ending(1, "", "  torch.cuda.other()\nRuntimeError: none", 4)) == "MISSED"


@pytest.mark.exhaustive
def test_a_stand_in_has_the_listed_names_and_no_double_precision(tmp_path: Path) -> None:
    # Given a script that asks what there is
    script = tmp_path / "script.py"
    script.write_text(
        "import torch\n"
        "x = torch.nn.Linear(2, 2).to('mps').weight\n"
        "print(x.device, x.is_mps, x.grad, hasattr(torch.mps, 'empty_cache'), hasattr(torch.mps, 'Stream'))\n"
        "print(torch.cuda.is_available(), (x + 1).cpu().is_mps)\n"
        "x.double()\n"
    )
    # when it runs on the stand-in for mps
    command = [sys.executable, str(_FOLDER / "stand_in.py"), "mps", str(script)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    # then it finds the device with its names, and no other device
    assert done.stdout.split() == ["mps:0", "True", "None", "True", "False", "False", "False"]
    assert "doesn't support float64" in done.stderr


@pytest.mark.exhaustive
def test_the_benchmark_runs_from_end_to_end(tmp_path: Path) -> None:
    # Given a folder with one repository
    script = tmp_path / "scripts" / "owner__name" / "train.py"
    script.parent.mkdir(parents=True)
    script.write_text("import torch\nx = torch.zeros(1).cuda()\n")
    page = tmp_path / "page.md"
    page.write_text(
        "Before\n<!-- bench-migrate begin -->\nold\n<!-- bench-migrate end -->\nAfter\n"
    )
    # when it is measured
    command = [sys.executable, str(_FOLDER), "--corpus", str(script.parents[1])]
    done = subprocess.run(
        [*command, "--to", "neutral", "--docs", str(page)],
        capture_output=True,
        text=True,
        check=False,
    )
    # then the page holds the table; whether this machine is fast enough is not asked here
    assert done.returncode in (0, 1), done.stderr
    text = page.read_text()
    assert "| sites accounted for | 1 of 1 (100.00 %) | 100 % | yes |" in text
    assert "| imports torch | no | no | yes |" in text
    assert text.startswith("Before\n")
    assert text.endswith("After\n")
    assert "old" not in text


def test_without_scripts_it_says_how_to_gather_them() -> None:
    done = subprocess.run(
        [sys.executable, str(_FOLDER)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert "corpus.yaml says how" in done.stderr
