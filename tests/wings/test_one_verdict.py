"""Every verb and face that compares says one verdict: the same headline and the same exit code."""

from __future__ import annotations

import inspect
import json
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from lockstep.cli import comparing
from lockstep.cli.main import main
from lockstep.comparison import SteppedTo, compare_recordings
from lockstep.core.finding import Comparison
from lockstep.core.manifest import Options
from lockstep.core.records import TensorRecord
from lockstep.launch.events import Ended
from lockstep.report.comparison.markdown import code as in_code
from lockstep.report.comparison.markdown import render_markdown
from lockstep.report.comparison.verdict_words import answer_of
from lockstep.store.integrity import with_digest
from lockstep.store.reader import open_recording
from lockstep.testing import MadeTraining, write_recording
from lockstep.wings.follow import follow_command
from lockstep.wings.follow.following import Followed
from lockstep.wings.report.comparison_data import gather
from lockstep_deploy.export_command import _exit_code
from lockstep_deploy.parity import Parity, with_gaps
from lockstep_deploy.stage import Stage
from lockstep_gate import gating
from lockstep_gate.gating import gate_training
from lockstep_gate.github import annotation_lines
from lockstep_gate.golden import open_golden
from lockstep_gate.junit import junit_xml
from lockstep_interop_names.faces import verdict
from lockstep_ui.graph import comparing as graphs

Array = npt.NDArray[np.float32]


def made(*, bare: bool = False, steps: int = 1, rows: int = 8, **how: object) -> MadeTraining:
    """A small training; a `bare` one keeps statistics alone, as some dumps of other tools do."""
    training = MadeTraining(steps=steps, rows=rows, **how)  # type: ignore[arg-type]  # by name
    if bare:
        training.steps = [
            [replace(call, records=tuple(map(_statistics_alone, call.records))) for call in step]
            for step in training.steps
        ]
    return training


def _statistics_alone(record: TensorRecord) -> TensorRecord:
    content = replace(record.content, digest=None, sketch_loader=None, loader=None)
    return replace(record, content=content)


def changed(place: str, change: Callable[[Array], Array]) -> dict[str, Callable[[Array], Array]]:
    """An alteration at one place."""
    return {place: change}


def one_percent(value: Array) -> Array:
    return np.asarray(value * np.float32(1.01), dtype=np.float32)


def rounded(value: Array) -> Array:
    return np.asarray(value * np.float32(1 + 2**-23), dtype=np.float32)


def halved(value: Array) -> Array:
    return value.astype(np.float16).astype(np.float32)


def with_nan(value: Array) -> Array:
    value = value.copy()
    value.reshape(-1)[0] = np.nan
    return value


PAIRS: dict[str, tuple[list[MadeTraining], list[MadeTraining], dict[str, object]]] = {
    "equal": ([made()], [made()], {}),
    "equal, whole": ([made(whole=True)], [made(whole=True)], {}),
    "noise": ([made()], [made(alter=changed("fc1", rounded))], {}),
    "another operator": ([made()], [made(spelling="torch.nn.functional.gelu")], {}),
    "two faults": (
        [made(), made()],
        [made(alter=changed("relu", one_percent)), made(alter=changed("grad fc2", one_percent))],
        {},
    ),
    "a fault": ([made()], [made(alter=changed("relu", one_percent))], {}),
    "of backward": ([made()], [made(alter=changed("grad relu", one_percent))], {}),
    "of the update": ([made()], [made(alter=changed("update", one_percent))], {}),
    "of the data": ([made()], [made(alter=changed("data", one_percent))], {}),
    "of the start": ([made()], [made(alter=changed("init", one_percent))], {}),
    "NaN": ([made()], [made(alter=changed("fc2", with_nan))], {}),
    "another rate": ([made()], [made(settings={"lr": 0.04})], {}),
    "by hand": ([made()], [made(by_hand=True)], {}),
    "one call more": ([made()], [made(extra=True)], {}),
    "half precision": ([made()], [made(alter={"fc1": halved, "fc2": halved})], {}),
    "statistics": ([made(bare=True)], [made(bare=True)], {}),
    "statistics that differ": (
        [made(bare=True)],
        [made(bare=True, alter=changed("relu", one_percent))],
        {},
    ),
    "one step more": ([made()], [made(steps=2)], {}),
    "one rank more": ([made()], [made(), made()], {}),
    "a crash": ([made()], [made()], {"exit_code": 3}),
    "a crash after a fault": ([made()], [made(alter=changed("relu", one_percent))], {"exit_code": 1}),
    "no end": ([made()], [made()], {"state": "recording", "exit_code": None}),
    "half precision, a crash": ([made()], [made(alter={"fc1": halved, "fc2": halved})], {"exit_code": 3}),
    "another model": ([made()], [MadeTraining(rows=8, steps=1, seed=1)], {}),
}  # fmt: skip


def written(name: str, place: Path) -> tuple[Path, Path]:
    """A pair on disk."""
    references, candidates, manifest = PAIRS[name]
    reference = write_recording(place / "reference", *references)
    candidate = write_recording(place / "candidate", *candidates)
    path = candidate / "manifest.json"
    values = json.loads(path.read_text())
    del values["digest"]
    path.write_text(with_digest(json.dumps(values | manifest, indent=1)))
    return reference, candidate


@dataclass
class Kept:
    """A training that was recorded before, and why it did not end well."""

    recording: Path
    failed: str = ""

    def record(self, directory: Path, options: Options) -> str:
        assert options.steps
        shutil.copytree(self.recording, directory)
        return self.failed


def faces(reference: Path, candidate: Path, place: Path) -> Iterator[tuple[str, list[str]]]:
    """The commands that compare two recordings."""
    both = [str(reference), str(candidate)]
    yield "compare", ["compare", *both]
    yield "report", ["report", *both, "-o", str(place / "page.html")]
    yield "plot", ["plot", *both, "--tensorboard", str(place / "events")]
    yield "shell", ["shell", *both, "-c", "compare"]
    yield "msaccucmp", ["msaccucmp", "compare", "-g", both[0], "-m", both[1], "-out", str(place)]
    yield "msprobe", ["msprobe", "compare", "-gp", both[0], "-tp", both[1], "-o", str(place)]


@pytest.fixture(autouse=True)
def _each_comparison_is_made_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is compared again, in the same way, is known; a face that asks for it otherwise has it compared anew."""
    known: dict[tuple[str, ...], Comparison] = {}
    asked = inspect.signature(compare_recordings)

    def compared(*sides: object, progress: object = None, **how: object) -> Comparison:
        bound = asked.bind(*(getattr(side, "path", side) for side in sides), **how)
        bound.apply_defaults()
        empty = ("[]", "()", "None")
        key = tuple(text for text in map(str, bound.arguments.values()) if text not in empty)
        if key not in known:
            known[key] = compare_recordings(*sides, **how)  # type: ignore[arg-type]  # as asked
        return known[key]

    for user in (comparing, verdict, gating, follow_command, graphs):
        monkeypatch.setattr(user, "compare_recordings", compared)


SILENT = ("report", "plot")
"""Verbs that write their words to a file."""


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", PAIRS)
def test_every_verb_and_face_says_one_verdict(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    # Given a pair of recordings, and what comparing them in Python says
    reference, candidate = written(name, tmp_path)
    found = compare_recordings(reference, candidate)
    answer = answer_of(found)
    code, words = answer.exit_code, answer.headline
    assert words.startswith(answer.word)
    # and an agreement is told where it is one: with code 0 nothing differs and nothing was left out
    assert (code == 0) == (answer.word in ("AGREE", "ANOTHER PRECISION"))
    assert code or not (found.not_compared or found.origins)

    # When each verb compares them
    for verb, command in faces(reference, candidate, tmp_path):
        assert main(command) == code, verb
        shown = " ".join(capsys.readouterr().out.split())
        # Then its exit code is that one, and so is its first line
        assert verb in SILENT or words in shown.replace(" in train.py", ", train.py"), verb

    # And JSON has both
    assert main(["compare", str(reference), str(candidate), "--json"]) == code
    told = json.loads(capsys.readouterr().out)
    assert (told["verdict"], told["headline"], told["exit_code"]) == (found.verdict.value, words, code)  # fmt: skip
    # And so has what is called from Python: the import of an older tool, a golden's gate, an export, the pages
    said = verdict.said_of(reference, candidate)
    assert (said.sentence, said.code) == (words, code)
    gated = gate_training(open_golden(reference), Kept(candidate), tmp_path / "gated")
    assert gated.exit_code == code
    assert gated.headline.startswith(words.replace(str(candidate), str(tmp_path / "gated")))
    parity = Parity(with_gaps(found, [], []), 1, 1)
    assert _exit_code([Stage("plain", "as it is", parity)]) == parity.comparison.exit_code()
    assert (
        f'"{int(code == 1)}" errors="{int(code == 2)}"' in junit_xml(gated, "", seconds=0).decode()
    )
    (note, *_) = annotation_lines(gated)
    assert note.startswith("::error" if code else "::notice")
    drawn = graphs.compare(reference, candidate).answer()
    assert (drawn["word"], drawn["rest"]) == (answer.word, answer.rest)
    page = gather(found, open_recording(reference), open_recording(candidate))
    assert (page.headline, page.answer["headline"]) == (answer.rest, words)
    assert render_markdown(found).startswith(f"**{answer.word}** {in_code(answer.rest)}")


@dataclass
class AlreadyTrained:
    """In place of a training that is followed: its recording is there."""

    recording: Path
    directory: Path
    code: int = 0
    followed: Followed = field(default_factory=Followed)

    def run(self, *_: object, **__: object) -> Ended:
        shutil.copytree(self.recording, self.directory)
        return Ended(self.code, "", as_asked=False, left_out=0, trained=0)


@pytest.mark.parametrize(
    ("name", "stopped_at", "code"),
    [("equal", None, 0), ("equal", None, 7), ("equal", 0, 0), ("half precision", 0, 0), ("a fault", None, 7)],
)  # fmt: skip
def test_what_is_followed_or_gated_and_not_to_its_end_says_in_words_and_numbers_that_it_does_not_agree(
    name: str,
    stopped_at: int | None,
    code: int,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # Given a training that is followed, and fails, is asked to end, or neither
    reference, candidate = written(name, tmp_path)
    training = AlreadyTrained(candidate, tmp_path / "followed", code)
    training.followed.stopped_at = stopped_at
    if stopped_at is not None:
        training.followed.steps.append(SteppedTo(0, 0.0, None, ()))
    monkeypatch.setattr(follow_command, "Following", lambda *_, **__: training)
    found = compare_recordings(reference, candidate, steps=training.followed.at_the_end)
    # When it has ended
    ended = main(["follow", str(reference), "-o", str(training.directory), "--json", "--", "true"])
    told = json.loads(capsys.readouterr().out)
    # Then it agrees only where it came to its end by itself
    whole = stopped_at is None and code == 0
    assert told["exit_code"] == ended
    assert (ended == 0) == (whole and found.exit_code() == 0)
    assert (told["outcome"] in ("agree", "other-precision")) == (ended == 0)
    if found.exit_code():
        assert (told["outcome"], ended) == (found.outcome, found.exit_code())
    # And the gate says the same of one that fails
    gated = gate_training(
        open_golden(reference), Kept(candidate, "it failed" * bool(code)), tmp_path / "gated"
    )
    assert gated.comparison is not None
    assert gated.exit_code == gated.comparison.exit_code()
    assert (gated.exit_code == 0) == (found.exit_code() == 0 and not code)


def test_strict_is_said_in_json_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    # Given runs of which one computes in another precision
    both = list(map(str, written("half precision", tmp_path)))
    for strict in ([], ["--strict"]):
        # When they are compared, strictly or not
        code = main(["compare", *both, "--json", *strict])
        # Then JSON has the exit code of the command
        assert json.loads(capsys.readouterr().out)["exit_code"] == code == len(strict)
