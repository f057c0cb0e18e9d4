"""Every verb and face that compares says one verdict: the same headline and the same exit code."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from lockstep.cli.main import main
from lockstep.comparison import compare_recordings
from lockstep.core.manifest import Options
from lockstep.core.records import TensorRecord
from lockstep.report.comparison.verdict_words import first_word, headline
from lockstep.store.integrity import with_digest
from lockstep.testing import MadeTraining, write_recording
from lockstep.wings.deploy.export_command import _exit_code
from lockstep.wings.deploy.parity import Parity, with_gaps
from lockstep.wings.deploy.stage import Stage
from lockstep.wings.gate.gating import gate_training
from lockstep.wings.gate.golden import open_golden
from lockstep.wings.interop.faces.verdict import said_of
from lockstep.wings.ui.graph import comparing as graphs

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
}  # fmt: skip


@dataclass
class Kept:
    """A training that was recorded before."""

    recording: Path

    def record(self, directory: Path, options: Options) -> str:
        assert options.steps
        shutil.copytree(self.recording, directory)
        return ""


def faces(reference: Path, candidate: Path, place: Path) -> Iterator[tuple[str, list[str]]]:
    """The commands that compare two recordings."""
    both = [str(reference), str(candidate)]
    yield "compare", ["compare", *both]
    yield "report", ["report", *both, "-o", str(place / "page.html")]
    yield "plot", ["plot", *both, "--tensorboard", str(place / "events")]
    yield "shell", ["shell", *both, "-c", "compare"]
    yield "msaccucmp", ["msaccucmp", "compare", "-g", both[0], "-m", both[1], "-out", str(place)]
    yield "msprobe", ["msprobe", "compare", "-gp", both[0], "-tp", both[1], "-o", str(place)]


SILENT = ("report", "plot")
"""Verbs that write their words to a file."""


@pytest.mark.parametrize("name", PAIRS)
def test_every_verb_and_face_says_one_verdict(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    # Given a pair of recordings, and what comparing them in Python says
    references, candidates, manifest = PAIRS[name]
    reference = write_recording(tmp_path / "reference", *references)
    candidate = write_recording(tmp_path / "candidate", *candidates)
    path = candidate / "manifest.json"
    values = json.loads(path.read_text())
    del values["digest"]
    path.write_text(with_digest(json.dumps(values | manifest, indent=1)))
    found = compare_recordings(reference, candidate)
    code, words = found.exit_code(), headline(found)
    assert words.startswith(first_word(found))

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
    said = said_of(reference, candidate)
    assert (said.sentence, said.code) == (words, code)
    gated = gate_training(open_golden(reference), Kept(candidate), tmp_path / "gated")
    assert gated.exit_code == code
    assert gated.headline.startswith(words.replace(str(candidate), str(tmp_path / "gated")))
    parity = Parity(with_gaps(found, [], []), 1, 1)
    assert _exit_code([Stage("plain", "as it is", parity)]) == parity.comparison.exit_code()
    drawn = graphs.compare(reference, candidate).answer()
    assert (drawn["verdict"], f"{first_word(found)}{drawn['headline']}") == (found.verdict.value, words)  # fmt: skip
