"""`record --keep-course`: after its windows the candidate trains as it does bare, bit by bit."""

from __future__ import annotations

from pathlib import Path

import pytest
from workplace import Workplace

TRAIN = """
import os
import sys
import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(8, 8), nn.GELU(), nn.Dropout(0.1), nn.Linear(8, 2))
if "resume" in sys.argv and os.path.exists("own.pt"):
    model.load_state_dict(torch.load("own.pt"))
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
for step in range(8):
    optimizer.zero_grad()
    model(torch.randn(4, 8)).square().mean().backward()
    optimizer.step()
    if "resume" in sys.argv:
        torch.save(model.state_dict(), "own.pt")
final = torch.cat([one.detach().flatten() for one in model.parameters()])
open(sys.argv[1], "wb").write(final.numpy().tobytes())
"""


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory, programs: Path) -> Workplace:
    place = Workplace(tmp_path_factory.mktemp("course"), programs)
    place.script("train.py", TRAIN)
    done = place.record("-o", "ref", "--windows", "0:1,4:6", "--", "python", "train.py", "ref.bin")
    assert done.code == 0
    return place


def keeps_course(place: Workplace, name: str, *words: str) -> tuple[int, str]:
    device = ("--emulate", "reorder")
    how = ("-o", name, "--start-from", "ref", *device, "--keep-course")
    done = place.record(*how, "--", "python", "train.py", f"{name}.bin", *words)
    return done.code, done.err


def test_the_training_ends_as_the_one_without_windows(place: Workplace) -> None:
    # given the candidate on its device, without a window
    how = ("-o", "alone", "--emulate", "reorder")
    assert place.record(*how, "--", "python", "train.py", "alone.bin").code == 0

    # when its windows are recorded and its course is kept
    code, said = keeps_course(place, "cand")

    # then it ends with the same bits, which are not those of the reference, and both are compared
    final = {name: (place.path / f"{name}.bin").read_bytes() for name in ("alone", "cand", "ref")}
    assert code == 0
    assert final["cand"] == final["alone"] != final["ref"]
    windows = place.run("lockstep", "compare", "ref", "cand")
    assert "AGREE: steps 0, 4-5 of 6 and 8 trained" in windows.out
    line = said.strip().splitlines()[-1].partition(": lockstep ")[2]
    assert line == "compare ref cand-course"
    course = place.run("lockstep", *line.split())
    assert course.code == 0
    assert "AGREE: step 0 of 8 trained" in course.out
    assert "its other windows are in" in course.out
    # while a training of its own that lacks the reference's windows is not compared as a whole
    assert place.run("lockstep", "compare", "ref", "alone").code == 2


def test_a_script_that_resumes_from_the_first_run_is_told(place: Workplace) -> None:
    code, said = keeps_course(place, "resumed", "resume")
    assert code == 0
    assert "Does the script resume from files of an earlier run?" in said


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (("-o", "other", "--keep-course"), "no state is set"),
        (("-o", "other", "--start-from", "ref", "--keep-course", "--exit-after"), "--exit-after"),
        (("-o", "taken", "--start-from", "ref", "--keep-course"), "taken-course: exists already"),
    ],
)
def test_a_course_that_cannot_be_kept_is_told_before_anything_runs(
    place: Workplace, words: tuple[str, ...], why: str
) -> None:
    (place.path / "taken-course").mkdir(exist_ok=True)
    done = place.record(*words, "--", "python", "train.py", "none.bin")
    assert done.code == 2
    assert why in done.err
    assert not (place.path / "none.bin").exists()
