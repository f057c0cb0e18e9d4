"""The options of `lockstep record`, on a real training."""

from __future__ import annotations

import pytest
from workplace import Workplace

import lockstep

UNSEEDED = """
    import random
    from tiny import train
    import torch
    draws = [random.random(), torch.rand(1).item(), random.random()]
    train(steps=2, seed=None)
    print(*draws, torch.rand(1).item(), torch.are_deterministic_algorithms_enabled())
"""

DRAWS = """
import random
draws = [random.random()]
import numpy
print(*draws, numpy.random.random(), random.random(), hash("a string"), numpy.random.random())
"""


def test_a_seed_makes_two_runs_of_an_unseeded_script_equal(workplace: Workplace) -> None:
    # Given a script that draws numbers and trains, unseeded
    workplace.script("train.py", UNSEEDED)

    # When it is recorded twice with a seed, and once without
    first, second, other = workplace.run_together(
        *(("lockstep", "record", "-o", name, *seed, "--", "python", "train.py")
          for name, *seed in (("first", "--seed", "7"), ("second", "--seed", "7"), ("other",)))
    )  # fmt: skip

    # Then the seeded runs are equal bit for bit, and the one without has nothing of it
    assert first.out == second.out
    assert first.out.endswith(" True\n")
    assert other.out.endswith(" False\n")
    assert all_differ(first.out, other.out)
    digests = [
        [record.content.digest for record in lockstep.open(workplace.path / name).records()]
        for name in ("first", "second", "other")
    ]
    assert digests[0] == digests[1] != digests[2]
    manifest = lockstep.open(workplace.path / "first").ranks["rank0"].manifest
    assert manifest.seeds["lockstep"] == "--seed 7"
    assert manifest.numerics["deterministic_algorithms"] == "True"


@pytest.mark.cold
def test_a_seed_holds_from_the_start_of_python_on(workplace: Workplace) -> None:
    # Given code that draws from the first line on, before and after it imports NumPy, and hashes a text
    # When Pythons run it with a seed, and without
    first, second, other = workplace.run_together(
        *(("lockstep", "record", "-o", name, *seed, "--", "python", "-c", DRAWS)
          for name, *seed in (("first", "--seed", "7"), ("second", "--seed", "7"), ("other",)))
    )  # fmt: skip

    # Then those with it draw and hash the same, and the one without nothing of it
    assert first.out == second.out
    assert all_differ(first.out, other.out)


def all_differ(one: str, other: str) -> bool:
    """Whether two lines of numbers, of the same length, have no number in common at any place."""
    pairs = list(zip(one.split(), other.split(), strict=True))
    return len(pairs) >= 5 and all(first != second for first, second in pairs)


def test_levels_and_weights(workplace: Workplace) -> None:
    # When the same training is recorded at the least and at the most
    least, most = workplace.run_together(
        ("lockstep", "record", "-o", "least", "--level", "module", "--save", "stats",
         "--steps", "1", "--exit-after", "--", "python", "tiny.py"),
        ("lockstep", "record", "-o", "most", "--level", "aten", "--save", "tensors",
         "--", "python", "tiny.py"),
    )  # fmt: skip

    # Then its numbers are the same, and with --exit-after it ends after the chosen step
    assert (least.code, most.code, least.theirs) == (0, 0, "")
    assert len(least.out.splitlines()) == 1
    assert most.out.startswith(least.out)
    # And the recordings hold what was asked for
    small, large = lockstep.open(workplace.path / "least"), lockstep.open(workplace.path / "most")
    assert small.ranks["rank0"].complete_steps == (1,)
    operators = {call.site.op for call in small.ranks["rank0"].calls(1) if call.kind == "operator"}
    assert operators == set()
    assert all(record.content.loader is None for record in small.records())
    assert all(record.content.sketch is None for record in small.records())
    assert "aten.addmm.default" in {call.site.op for call in large.ranks["rank0"].calls(0)}
    assert any(record.content.loader is not None for record in large.records())


COMPILED = """
    import torch
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.GELU(), torch.nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    compiled = torch.compile(model)
    for _ in range(2):
        optimizer.zero_grad()
        compiled(torch.ones(2, 4)).sum().backward()
        optimizer.step()
"""


def test_compile_eager_shows_the_inside_of_compiled_code(workplace: Workplace) -> None:
    # given a script that compiles its model with the default backend
    script = workplace.script("compiled.py", COMPILED)
    # when it is recorded so that its graphs run node by node
    ended = workplace.record("-o", "eager", "--compile-eager", "--", "python", script)
    # then the operators inside are there
    assert (ended.code, ended.theirs) == (0, "")
    rank = lockstep.open(workplace.path / "eager").ranks["rank0"]
    seen = {call.site.op for call in rank.calls(0) if call.kind == "operator"}
    assert {"torch.nn.functional.linear", "torch.nn.functional.gelu"} <= seen


def test_an_unknown_pattern_names_the_nearest(workplace: Workplace) -> None:
    # Given patterns that match a module or an operator, recorded or left out, and one that does not
    known = ("--only", "0", "--only", "3", "--skip", "*dropout*")
    command = ("--", "python", "-c")
    train = "import tiny; tiny.train(steps=2)"

    # When a command that ends well and one that fails are recorded with them
    good, typo, failing = workplace.run_together(
        ("lockstep", "record", "-o", "good", *known, *command, train),
        ("lockstep", "record", "-o", "typo", *known, "--skip", "linaer", *command, train),
        ("lockstep", "record", "-o", "failing", "--only", "linaer", *command, train + "; exit(3)"),
    )

    # Then the unknown one is named with what is nearest, and costs exit code 2, not the recording
    assert (good.code, len(good.ours)) == (0, 1)
    assert typo.code == 2
    assert "pattern 'linaer' matches no module and no operator" in typo.ours[-1]
    assert "nearest: torch.nn.Linear" in typo.ours[-1]
    modules = {
        call.site.module for call in lockstep.open(workplace.path / "typo").ranks["rank0"].calls(1)
    }
    assert {"0", "3"} <= modules
    assert "1" not in modules
    # But the exit code of a command that failed stays
    assert failing.code == 3
    assert "pattern 'linaer' matches no module" in failing.ours[-1]


def a_recording(workplace: Workplace) -> None:
    """Leave a recording at `ref`, as far as one can tell from outside."""
    assert workplace.record("-o", "ref", "--", "true").code == 2
    (workplace.path / "ref" / "rank0").mkdir()
    (workplace.path / "ref" / "rank0" / "records-00000.parquet").touch()


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("--", "no-such-command", "x"), "no-such-command: command not found"),
        (("--", "./tiny.py"), "./tiny.py: command not found"),
        (("--", "./broken"), "./broken: the command cannot be started (No such file or directory)"),
        (("--",), "Missing argument 'COMMAND...'"),
        (("--steps", "2:1", "--", "true"), "steps '2:1': '2:1' is not a step or a range"),
        (("--steps", "first", "--", "true"), "steps 'first': 'first' is not a step or a range"),
        (("--ranks", "a", "--", "true"), "ranks 'a': not a list of numbers"),
        (("--level", "deep", "--", "true"), "'deep' is not one of"),
        (("--max-bytes", "0", "--", "true"), "the size is 0; give a whole number of at least 1"),
        (("--seed", "-1", "--", "true"), "-1 is not in the range"),
    ],
)
def test_bad_arguments_end_in_one_sentence(
    workplace: Workplace, arguments: tuple[str, ...], sentence: str
) -> None:
    # Given a place for the recording that holds one already
    a_recording(workplace)
    before = (workplace.path / "ref" / "manifest.json").read_bytes()
    broken = workplace.path / "broken"
    broken.write_text("#!/no/such/interpreter\n")
    broken.chmod(0o755)

    # When the command line is wrong, even with --force
    ended = workplace.record("-o", "ref", "--force", *arguments)

    # Then one sentence says so, with exit code 2, and the recording is still there
    assert (ended.code, ended.out) == (2, "")
    assert sentence in ended.err
    assert "Traceback" not in ended.err
    assert (workplace.path / "ref" / "manifest.json").read_bytes() == before
    assert sorted(entry.name for entry in workplace.path.iterdir()) == ["broken", "ref", "tiny.py"]


def test_what_is_there_is_never_overwritten(workplace: Workplace) -> None:
    # Given a recording, other files and directories, and places where nothing can be written
    a_recording(workplace)
    (workplace.path / "file").write_text("mine")
    (workplace.path / "mine").mkdir()
    (workplace.path / "mine" / "manifest.json").write_text('{"name": "my own"}')
    (workplace.path / "empty").mkdir()
    taken = {"ref": "exists already", "file": "exists already", "mine": "exists already"}
    closed = {"/proc/ref": "cannot be written", "file/ref": "cannot be written"}

    # When a command is to be recorded there, then it does not run, and one sentence says why
    for path, sentence in (taken | closed).items():
        ended = workplace.record("-o", path, "--", "touch", "ran")
        assert (ended.code, ended.out, len(ended.err.splitlines())) == (2, "", 1)
        assert sentence in ended.err
    # Nor with --force, where it is not a recording
    for path in ("file", "mine"):
        ended = workplace.record("-o", path, "--force", "--", "touch", "ran")
        assert (ended.code, len(ended.err.splitlines())) == (2, 1)
        assert "is not a recording, so --force does not replace it" in ended.err
    assert not (workplace.path / "ran").exists()
    assert (workplace.path / "file").read_text() == "mine"
    assert (workplace.path / "mine" / "manifest.json").read_text() == '{"name": "my own"}'

    # But an empty directory is taken, and a recording is replaced by --force, through a link too
    (workplace.path / "link").symlink_to("ref")
    (workplace.path / "ref" / "rubbish").touch()
    for arguments in (("empty",), ("link", "--force")):
        assert (
            workplace.record("-o", *arguments, "--", "touch", "ran").code == 2
        )  # nothing to record
    assert (workplace.path / "ran").exists()
    assert [entry.name for entry in (workplace.path / "ref").iterdir()] == ["manifest.json"]
    assert sorted(entry.name for entry in workplace.path.iterdir()) == [
        "empty", "file", "link", "mine", "ran", "ref", "tiny.py",
    ]  # fmt: skip


def test_an_unknown_pattern_is_told_of_while_the_training_runs(workplace: Workplace) -> None:
    # Given a training that goes on until somebody has been told
    workplace.script(
        "train.py",
        """
        import sys
        from tiny import build, train_step
        model, optimizer = build()
        train_step(model, optimizer)
        print("a step has ended", flush=True)
        sys.stdin.readline()
        train_step(model, optimizer)
        """,
    )
    # When it is recorded with a pattern that something matches, and one that nothing does
    process = workplace.start(
        "lockstep", "record", "-o", "ref", "--only", "0", "--only", "linaer", "--", "python", "train.py"
    )  # fmt: skip
    with process:
        assert process.stderr is not None
        told = process.stderr.readline()
        _, rest = process.communicate("\n", timeout=300)
    # Then that is said of the first recorded step, and once more at the end, with exit code 2
    expected = "lockstep: pattern 'linaer' matches no module and no operator of step 0; nearest: "
    assert told.startswith(expected)
    assert process.returncode == 2
    assert rest.count("pattern '") == 1
    assert "of the recorded steps; nearest: " in rest
