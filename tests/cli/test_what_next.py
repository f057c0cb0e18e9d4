"""The line under a verdict: whoever pastes it gets further."""

from __future__ import annotations

import re
import shlex
from dataclasses import replace
from pathlib import Path

import pytest
from workplace import Ended, Workplace

import lockstep
from lockstep.commands.record_again import record_again
from lockstep.commands.what_next import Manner, what_next

TRAIN = """
import sys
import torch
from torch import nn

fault = sys.argv[1]
torch.manual_seed(1 if fault in ("init", "random") else 0)
model = nn.Sequential(nn.Linear(8, 8), nn.GELU(), nn.Dropout(0.5), nn.Linear(8, 2))
if fault == "random":
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 8), nn.GELU(), nn.Dropout(0.5), nn.Linear(8, 2))
    torch.manual_seed(2)
else:
    torch.manual_seed(3)
if fault == "forward":
    model[1].register_forward_hook(lambda module, args, output: output * 1.01)
trained = [own for name, own in model.named_parameters() if (fault, name) != ("kept", "3.bias")]
optimizer = torch.optim.SGD(trained, lr=0.1)
batch = torch.linspace(-1, 1, 32).reshape(4, 8)
for step in range(4):
    optimizer.zero_grad()
    model(batch).square().mean().backward()
    optimizer.step()
"""


BALANCED = """
import sys
import torch
from torch import nn

torch.manual_seed(0)
model = nn.Linear(8, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
batch, mask = torch.linspace(-1, 1, 64).reshape(8, 8), (torch.arange(8) < 5).float()
for step in range(2):
    shares = torch.softmax(model(batch), -1)
    if sys.argv[1] == "masked":
        share = (shares * mask[:, None]).sum(0) / mask.sum()
    else:
        share = shares.mean(0)
    optimizer.zero_grad()
    share.square().sum().backward()
    optimizer.step()
"""


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory, programs: Path) -> Workplace:
    """A training recorded as it is and with faults, named after them; folder and script need quoting."""
    place = Workplace(tmp_path_factory.mktemp("work") / "it's here", programs)
    script = place.script("my train.py", TRAIN)
    for name in ("sound", "again", "forward", "init", "random", "kept"):
        done = place.record("-o", name, "--save", "sketch", "--", "python", script, name)
        assert done.code == 0, done.err
    return place


def pasted(place: Workplace, printed: str) -> tuple[str, Ended]:
    """What the last lines of a comparison say comes next, and what comes of it in a shell."""
    words, line = printed.rstrip("\n").splitlines()[-2:]
    assert words.startswith("What next: ")
    assert line.startswith("  lockstep ")
    return line.strip(), place.run("bash", "-c", line)


def test_an_origin_without_whole_tensors_is_recorded_with_and_run_again(place: Workplace) -> None:
    compared = place.run("lockstep", "compare", "sound", "forward")
    assert compared.code == 1

    line, done = pasted(place, compared.out)

    assert "--only 1 --save tensors --steps 0 " in line
    assert "sound: step 0, 1 / torch.nn.functional.gelu #0" in done.out.replace(
        "reference", "sound"
    )
    # and what is compared then leads on without recording
    again = place.run("lockstep", "compare", "sound-whole", "forward-whole")
    assert again.code == 1
    assert again.out.splitlines()[-1] == "  lockstep replay sound-whole forward-whole"


def test_a_result_that_the_runs_write_otherwise_is_compared_again_with_its_step(
    place: Workplace,
) -> None:
    # Given a mean over all rows, where the reference leaves some out by hand: an operator of one run alone
    script = place.script("balanced.py", BALANCED)
    for name in ("masked", "mean"):
        assert place.record("-o", name, "--save", "sketch", "--", "python", script, name).code == 0
    compared = place.run("lockstep", "compare", "masked", "mean")
    assert compared.code == 1

    # When the next step is pasted
    line, done = pasted(place, compared.out)

    # Then no run is asked for an operator of the other one, and whole tensors say the same
    assert "--only" not in line
    assert (done.code, done.out.splitlines()[0]) == (1, compared.out.splitlines()[0])


def test_what_is_no_operator_is_shown(place: Workplace) -> None:
    compared = place.run("lockstep", "compare", "sound", "init")

    line, done = pasted(place, compared.out)

    assert line.count("lockstep show ") == 2
    assert done.code == 0
    assert done.out.count("rank0 step 0: 0 / torch.nn.Linear #0, init") == 2


def test_what_one_run_alone_did_is_shown_beside_its_module_in_the_other(place: Workplace) -> None:
    # Given a candidate whose optimizer does not have 3.bias
    compared = place.run("lockstep", "compare", "sound", "kept")
    assert "only the reference updates 3.bias" in compared.out

    # When the next step is pasted
    line, done = pasted(place, compared.out)

    # Then nothing is run again: the update is shown, and what the candidate has of this layer
    site = "3 / torch.optim.SGD #0, optimizer"
    assert line == f"lockstep show sound '{site}' --steps 0 && lockstep show kept 3 --steps 0"
    assert done.code == 0
    assert "optimizer param_after 0  3.bias" in done.out
    assert done.out.count("backward  param_grad  2  3.bias") == 1


@pytest.mark.exhaustive
def test_other_random_numbers_are_made_the_same(place: Workplace) -> None:
    compared = place.run("lockstep", "compare", "sound", "random")
    assert "random stream differs" in compared.out

    line, _ = pasted(place, compared.out)

    assert line.count("--seed 0") == 2
    assert line.endswith(" && lockstep compare sound-seeded random-seeded")


def test_after_agreement_comes_what_a_recording_could_not_see(place: Workplace) -> None:
    compared = place.run("lockstep", "compare", "sound", "again")
    assert compared.code == 0
    assert "equal bit by bit to the last recorded step, and equal at the end" in " ".join(
        compared.out.split()
    )

    line, done = pasted(place, compared.out)

    assert line == "lockstep show again"
    assert done.code == 0


MEAN = """
import sys
import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 2))
mean = [one.detach().clone() for one in model.parameters()]
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(12):
    optimizer.zero_grad()
    model(torch.randn(16, 64)).square().mean().backward()
    optimizer.step()
    share = 0.5 if "fault" in sys.argv and step >= 7 else 0.1
    with torch.no_grad():
        for one, now in zip(mean, model.parameters()):
            one.lerp_(now, share)
"""


def test_a_mean_that_is_far_off_at_the_end_is_in_the_headline_and_the_search_finds_its_step(
    place: Workplace,
) -> None:
    # given a mean of the weights beside the training that is wrong late, and a twin that rounds otherwise alone
    place.script("mean.py", MEAN)
    for name, words in (("averaged", ()), ("far", ("fault",)), ("near", ())):
        device = () if name == "averaged" else ("--emulate", "reorder")
        done = place.record("-o", name, *device, "--", "python", "mean.py", *words)
        assert done.code == 0

    # when they are compared, and what is printed is typed
    near, far = (place.run("lockstep", "compare", "averaged", name) for name in ("near", "far"))
    line, done = pasted(place, far.out)

    # then the search ends at the step, and the twin is told to look at later steps from one state
    assert "further apart at the end than noise explains" in " ".join(far.out.split())
    assert line == "lockstep zoom averaged far"
    assert "The first bad step is 7; step 6 agrees" in done.out
    assert "what mean takes of the new weights was 0.5, and 0.1 in the reference" in " ".join(
        done.out.split()
    )
    assert "further apart" not in near.out
    assert near.out.count(" --windows 6:8,10:12 ") == 1
    assert " --start-from averaged-later " in near.out


def test_after_agreement_without_ends_come_later_steps(place: Workplace) -> None:
    # given recordings of which it is not known how their trainings went on
    both = [lockstep.open(place.path / name) for name in ("sound", "again")]
    found = replace(lockstep.compare_recordings(*both), ends=None)

    following = what_next(found, *both, Manner())

    assert following.command.count("--steps 2,3 ") == 2
    done = place.run("bash", "-c", following.command)
    assert done.code == 0
    assert "AGREE: steps 2-3 of 4 trained" in done.out


def test_nothing_to_compare_is_shown(place: Workplace) -> None:
    done = place.record("-o", "third", "--steps", "2", "--", "python", "my train.py", "sound")
    assert done.code == 0

    compared = place.run("lockstep", "compare", "sound", "third")
    assert compared.code == 2

    line, shown = pasted(place, compared.out)
    assert shlex.split(line) == ["lockstep", "show", "sound", "&&", "lockstep", "show", "third"]
    assert shown.code == 0


@pytest.mark.exhaustive
def test_from_another_folder_the_training_still_runs_in_its_own(
    place: Workplace, tmp_path: Path
) -> None:
    left, right = place.path / "sound", place.path / "forward"
    compared = place.run("lockstep", "compare", left, right, cwd=tmp_path)
    line = compared.out.splitlines()[-1]

    assert line.count(f"(cd {shlex.quote(str(place.path))} && lockstep record") == 2
    assert "-- python 'my train.py' forward) && lockstep replay" in line


def test_of_two_recordings_of_one_command_the_candidate_alone_is_recorded_again(
    place: Workplace,
) -> None:
    # Given two recordings that one command made, with a change to its files in between
    both = [lockstep.open(place.path / name) for name in ("sound", "forward")]
    found = lockstep.compare_recordings(*both)
    both[0].manifest.command = both[1].manifest.command
    # When what leads on is done
    following = what_next(found, *both, Manner())
    done = place.run("bash", "-c", following.command)
    # Then what is there now is recorded once, and run again
    assert following.command.count("lockstep record ") == 1
    assert done.code == 0, done.err
    assert done.out.startswith("2 calls run again on ")


def test_a_test_of_pytest_leads_on_although_it_fails_when_it_is_ended_early(
    place: Workplace,
) -> None:
    # Given what was recorded inside a test, and its twin, a training that ends well
    for command, line, may_fail in (
        (["/somewhere/bin/pytest", "-q"], "-- /somewhere/bin/pytest -q", True),
        ([f"{Path(pytest.__file__).parent}/__main__.py", "-q"], "-- python -m pytest -q", True),
        (["train.py", "-q"], "-- python train.py -q", False),
    ):
        recording = lockstep.open(place.path / "sound")
        recording.manifest.command, recording.manifest.exit_code = command, None
        # When it is recorded again
        again = record_again(recording, steps="0")
        # Then the line can be pasted, and whether its code is to be read is known
        assert again.line.rstrip(")").endswith(line)
        assert again.may_fail is may_fail


def test_variables_that_decide_about_numbers_are_set_as_they_were(place: Workplace) -> None:
    # Given a recording of two threads, of a script that reads a variable of its own, and its twin of this shell's
    script = place.script("reads.py", f"import os\nos.environ.get('MODE')\n{TRAIN}")
    for name, threads in (("of-two", "2"), ("of-one", "1")):
        done = place.record(
            *("-o", name, "--save", "sketch", "--", "python", script, "forward"),
            environment={"OMP_NUM_THREADS": threads},
        )
        assert done.code == 0, done.err

    told = [place.run("lockstep", "compare", "sound", name) for name in ("of-two", "of-one")]
    line, done = pasted(place, told[0].out)

    # Then the line sets what a recording keeps, where this shell has another value, and names what it does not keep
    assert " && OMP_NUM_THREADS=2 lockstep record " in line
    assert "OMP_NUM_THREADS" not in told[1].out.splitlines()[-1]
    said = "(set MODE as it was: the script reads it, and a recording does not keep it)"
    assert said in told[0].out.splitlines()[-2]
    assert done.code == 0, done.err
    shown = place.run("lockstep", "show", "of-two-whole")
    assert re.search("environment: .*OMP_NUM_THREADS=2", shown.out)
