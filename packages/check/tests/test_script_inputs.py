"""What a script takes from outside, and batches that go together in a known way: named as that, twins silent."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest
import torch

import lockstep
from lockstep.core.manifest import Options, RankManifest
from lockstep.core.redaction import REDACTED
from lockstep.core.script_inputs import (
    CONTENT,
    FOLDER,
    library_versions,
    read_variables,
    settings_files,
    settings_in,
)
from lockstep_check.setups.answers import Answers, State
from lockstep_check.setups.checkup import checkup
from lockstep_check.setups.screen import headline
from lockstep_check.setups.script_inputs import look_at_script_inputs

Relabel = Callable[[torch.Tensor], torch.Tensor]


def script(folder: Path, text: str) -> list[str]:
    """A file of a script, as a manifest's sources name it."""
    path = folder / "train.py"
    path.write_text(text)
    return [str(path)]


def test_versions_are_those_of_loaded_libraries_that_the_script_imports(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # given a script that imports libraries in several ways, one of which is not loaded
    library = ModuleType("augmentor")
    vars(library)["__version__"] = "1.4"
    monkeypatch.setitem(sys.modules, "augmentor", library)
    text = "import os, numpy as np\nfrom augmentor.crops import crop\n  import not_loaded\n# import yaml\n"
    # when its libraries are asked for, then there are neither Python's own nor what is not loaded
    found = library_versions(script(tmp_path, text))
    assert set(found) == {"augmentor", "numpy"}
    assert found["augmentor"] == "1.4"


def test_variables_are_those_that_the_script_reads_as_they_may_be_kept(tmp_path: Path) -> None:
    # given a script that reads variables by their names, and an environment with others beside them
    text = "import os\nfor name in ('RATE', \"API_KEY\", 'DATA'):\n    os.environ.get(name)\n"
    environment = {"RATE": "0.5", "API_KEY": "abcdef123456", "DATA": "/home/me/x y", "ELSE": "1"}
    # when they are asked for, then secrets and paths are not kept
    found = read_variables(script(tmp_path, text), environment)
    assert found["RATE"] == "0.5"
    assert found["API_KEY"] == "***"
    assert found["DATA"].startswith("digest ")
    assert "ELSE" not in found


def test_a_script_that_reads_no_environment_has_no_variables(tmp_path: Path) -> None:
    assert read_variables(script(tmp_path, "mode = 'RATE'\n"), {"RATE": "1"}) == {}


@pytest.mark.parametrize(
    ("text", "ending"),
    [
        (b'{"train": {"lr": 0.1, "name": "a"}}', ".json"),
        (b"train:\n  lr: 0.1  # a comment\n  name: a\n", ".yaml"),
    ],
)
def test_settings_are_read_by_their_dotted_names(text: bytes, ending: str) -> None:
    assert settings_in(text, ending) == {"train.lr": 0.1, "train.name": "a"}


def test_files_that_arguments_name_are_kept_by_their_keys(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # given arguments that name a file of settings, a broken one, a folder, and something else
    monkeypatch.chdir(tmp_path)
    Path("a.json").write_text('{"lr": 0.1, "password": "hunter2secret"}')
    Path("broken.json").write_text("{")
    Path("notes.txt").write_text("lr")
    Path("data").mkdir()
    values = {"config": "a.json", "b": "broken.json", "data": "data", "n": "notes.txt", "lr": "x"}
    # when the files are asked for
    found = settings_files({"arguments": values})
    # then there are those of settings, without secrets, and the folder
    assert found["a.json"] == {"lr": 0.1, "password": "***"}
    assert list(found["broken.json"]) == [CONTENT]
    assert found["data"] == {FOLDER: ""}
    assert set(found) == {"a.json", "broken.json", "data"}


def manifest(**fields: object) -> RankManifest:
    """A manifest of a process whose script takes these from outside."""
    plain = {"libraries": {"torch": "2"}, "configuration": {"arguments": {}}}
    base = RankManifest(schema=1, rank="rank0", world_size=1, pid=1, argv=[], python="3")
    for name, value in {**plain, **fields}.items():
        setattr(base, name, value)
    return base


def differing(left: RankManifest, right: RankManifest) -> dict[str, list[str]]:
    """Differences by their aspect."""
    answers = Answers()
    look_at_script_inputs(left, right, answers)
    return {
        one.aspect.name: [str(each) for each in one.differences]
        for one in answers.answers()
        if one.state is State.DIFFERS
    }


def test_variables_and_libraries_that_differ_are_named_and_places_do_not_count() -> None:
    # given two processes whose variables and libraries differ
    one = manifest(
        libraries={"aug": "1"}, variables={"AUG": "1", "DATA_DIR": "digest a", "RANK": "0"}
    )
    other = manifest(libraries={"aug": "2"}, variables={"DATA_DIR": "digest b", "RANK": "1"})
    # when they are compared, then each is of its aspect, and a rank's number is none
    assert differing(one, other) == {
        "variables": ["set-up: AUG 1 / -"],
        "versions": ["set-up: aug 1 / 2"],
        "configured-places": ["set-up: DATA_DIR digest a / digest b"],
    }
    assert differing(one, one) == {}


def test_a_recording_of_an_earlier_build_is_not_accused() -> None:
    older = manifest(libraries={})
    assert differing(older, manifest(variables={"AUG": "1"})) == {}


@pytest.mark.parametrize(
    ("ours", "theirs", "wanted"),
    [
        (("a.json", {"lr": 0.1}), ("b.json", {"lr": 0.1}), {"configured-places"}),
        (("data", {FOLDER: ""}), ("data2", {FOLDER: ""}), {"configured-places"}),
        (("a.json", {"lr": 0.1}), ("a.json", {"lr": 0.2}), {"configuration"}),
        (("a.json", {CONTENT: "x"}), ("a.json", {CONTENT: "y"}), {"configuration"}),
        (("a.json", {"lr": 1}), ("b.json", {"lr": 2}), {"configuration", "configured-places"}),
        (("a", {}), ("b", {}), {"configuration"}),
    ],
)
def test_a_file_of_settings_is_compared_by_its_contents(
    ours: tuple[str, dict[str, object]],
    theirs: tuple[str, dict[str, object]],
    wanted: set[str],
) -> None:
    # given an argument that names a file in both runs
    sides = [
        manifest(
            configuration={"arguments": {"config": name}},
            settings_files={name: settings} if settings else {},
        )
        for name, settings in (ours, theirs)
    ]
    # when they are compared, then only other contents count
    assert set(differing(*sides)) == wanted


def test_what_a_script_writes_is_not_compared() -> None:
    sides = [
        manifest(
            configuration={"arguments": {"metrics_out": "m.json"}},
            settings_files={"m.json": {"loss": loss}},
        )
        for loss in (0.1, 0.2)
    ]
    assert differing(*sides) == {}


def same(labels: torch.Tensor) -> torch.Tensor:
    """Labels as they are."""
    return labels


def reversed_in_batch(labels: torch.Tensor) -> torch.Tensor:
    """Each batch of eight in the reverse order."""
    return labels.view(-1, 8).flip(1).flatten()


def reversed_over_all(labels: torch.Tensor) -> torch.Tensor:
    """Labels of other samples."""
    return labels.flip(0)


def renumbered(labels: torch.Tensor) -> torch.Tensor:
    """Classes in another order."""
    return torch.tensor([2, 0, 1, 4, 3])[labels]


def flipped(labels: torch.Tensor) -> torch.Tensor:
    """Classes counted from the other end."""
    return 4 - labels


def drawn_anew(labels: torch.Tensor) -> torch.Tensor:
    """Others of the same classes."""
    return torch.randint(0, 5, labels.shape, generator=torch.Generator().manual_seed(9))


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Relabel], Path]:
    """Recordings of two steps with labels that are another way, each made once."""
    made: dict[str, Path] = {}

    def record(relabel: Relabel) -> Path:
        name = relabel.__name__
        if name not in made:
            made[name] = tmp_path_factory.mktemp("labels") / name
            generator = torch.Generator().manual_seed(3)
            inputs = torch.randn(16, 4, generator=generator)
            labels = relabel(torch.randint(0, 5, (16,), generator=generator))
            torch.manual_seed(0)
            with lockstep.record(made[name], steps="0:2"):
                model = torch.nn.Linear(4, 5)
                optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
                for x, y in zip(inputs.split(8), labels.split(8), strict=True):
                    optimizer.zero_grad()
                    torch.nn.functional.cross_entropy(model(x.clone()), y.clone()).backward()
                    optimizer.step()
        return made[name]

    return record


@pytest.mark.parametrize(
    ("relabel", "aspect", "words"),
    [
        (reversed_in_batch, "data-order", "permuted: the same in another order"),
        (reversed_over_all, "data-order", "permuted: the reference's samples in another order"),
        (renumbered, "data-preprocessing", "permuted: 0 is 2, 1 is 0"),
        (flipped, "data-preprocessing", "permuted: 0 is 4"),
        (drawn_anew, "data", "as where labels were permuted"),
    ],
)
def test_labels_are_told_as_what_was_done_to_them(
    trained: Callable[[Relabel], Path], relabel: Relabel, aspect: str, words: str
) -> None:
    # given a training with labels that are another way
    answers = checkup(trained(same), trained(relabel))
    # when set-ups are compared, then it is told in its aspect, and never as a factor
    found = {one.aspect.name: one for one in answers.answers() if one.state is State.DIFFERS}
    said = [one.candidate for one in found[aspect].differences]
    assert any(words in one for one in said)
    assert not any("times" in one for one in said)


def test_a_cause_that_the_script_was_given_stands_in_the_headline(
    trained: Callable[[Relabel], Path], tmp_path: Path
) -> None:
    # given a training with other labels, whose recording says that a variable was another one
    sides = []
    for relabel, value in ((same, "1"), (flipped, "2")):
        copy = tmp_path / value
        for file in sorted(trained(relabel).rglob("*")):
            target = copy / file.relative_to(trained(relabel))
            if file.is_file():
                target.parent.mkdir(parents=True, exist_ok=True)
                os.link(file, target)
        kept = copy / "rank0" / "manifest.json"
        values = json.loads(kept.read_text())
        values["variables"], values["files"] = {"AUG": value}, {}
        kept.unlink()
        kept.write_text(json.dumps(values))
        sides.append(copy)
    # when set-ups are compared, then the headline names it beside its effect
    assert "first of all preprocessing of the batches, perhaps by AUG;" in headline(checkup(*sides))


def test_recording_notes_nothing_of_a_script_that_is_redacted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from lockstep.capture.settings import setup

    # given a script that reads a variable, or none
    for read, kept in (({"RATE": "3"}, {REDACTED: REDACTED}), ({}, {})):
        monkeypatch.setattr(setup, "read_variables", lambda *_, read=read: read)
        # when its recording is redacted, then at most that something was left out is noted
        made = setup.rank_manifest(0, 1, Options(redact=True))
        assert (made.variables, made.settings_files) == (kept, {})
