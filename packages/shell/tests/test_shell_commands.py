"""The commands of `lockstep shell`, from `-c` and from a pipe, over one recording, two, or a folder of them."""

from __future__ import annotations

import io
import os
import shlex
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import lockstep
from lockstep.cli.main import main
from lockstep.core.site import Role
from lockstep.core.text import printable
from lockstep.testing import MadeTraining, damage, write_recording
from lockstep.testing.fixtures import FaultyPair
from lockstep_shell import session
from lockstep_shell.places import Place, place_of
from lockstep_shell.session import Session

Ask = Callable[..., str]


@pytest.fixture
def ask(capsys: pytest.CaptureFixture[str]) -> Ask:
    """Runs commands over recordings, and gives what they print; the last argument is what they end with."""

    def asked(*paths: Path, commands: list[str], code: int = 0) -> str:
        options = [word for command in commands for word in ("-c", command)]
        ended = main(["shell", *map(str, paths), *options])
        printed = capsys.readouterr()
        assert ended == code, printed
        return printed.err if code == 2 else printed.out

    return asked


@pytest.fixture
def pair(lockstep_faulty_pair: FaultyPair) -> tuple[Path, Path]:
    return lockstep_faulty_pair.reference, lockstep_faulty_pair.candidate


def test_the_tree_of_modules_and_operators_is_walked(lockstep_recording: Path, ask: Ask) -> None:
    # given one recording, when its root and a module are listed
    root, layer = (ask(lockstep_recording, commands=[line]) for line in ("ls", "ls fc1"))
    # then the modules stand with their classes, and the operators with their calls
    assert ["fc1", "torch.nn.Linear", "11"] in [line.split() for line in root.splitlines()]
    assert ["torch.nn.functional.linear", "operator", "2"] in [
        line.split() for line in layer.splitlines()
    ]
    # and of one step alone there are half as many
    once = ask(lockstep_recording, commands=["use step 0", "ls fc1"])
    assert ["torch.nn.functional.linear", "operator", "1"] in [
        line.split() for line in once.splitlines()
    ]


def test_a_site_is_shown_as_the_verb_shows_it(
    lockstep_recording: Path, ask: Ask, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["show", str(lockstep_recording), "relu"]) == 0
    shown = capsys.readouterr().out
    # a site is pasted as it is printed, with quotes or without, as a call or as its backward
    for line in (
        "show relu",
        "show net / torch.nn.functional.relu #0, forward",
        "show 'net / torch.nn.functional.relu #0, backward'",
        "ni -n relu",
    ):
        assert ask(lockstep_recording, commands=[line]) == shown


def test_a_pair_is_compared_once_and_its_pairs_are_listed(
    pair: tuple[Path, Path], ask: Ask, monkeypatch: pytest.MonkeyPatch
) -> None:
    # given a prompt that counts how often two recordings are compared
    made = []
    compared = session.compared
    monkeypatch.setattr(
        session, "compared", lambda *args, **manner: made.append(1) or compared(*args, **manner)
    )
    # when it is asked again and again, and behind another recording
    commands = ["compare", "ac -c", "vc", "list --by MaxAbsErr --limit 3"]
    commands += [f"open {pair[1]}", f"open {pair[0]} {pair[1]}", "compare"]
    printed = ask(*pair, commands=commands, code=1)
    # then that is once, and the verdict is that of `compare`
    assert made == [1]
    assert printed.count("DIVERGED at step 0, forward of net (torch.nn.functional.relu)") == 4
    # and the pairs are those of the comparison, worst first
    comparison = lockstep.compare_recordings(*pair)
    worst = sorted((one.metrics.max_abs for one in comparison.findings), reverse=True)
    rows = [line.split() for line in printed.splitlines() if "  rank0: " in line]
    assert [float(row[2]) for row in rows] == pytest.approx(worst[:3], rel=1e-3)


def test_pairs_are_listed_under_a_cosine_by_the_old_words_too(ask: Ask, tmp_path: Path) -> None:
    # given a relu whose results point elsewhere
    reference = write_recording(tmp_path / "ref", MadeTraining(whole=True))
    wrong = MadeTraining(whole=True, alter={"relu": lambda value: -value[::-1]})
    candidate = write_recording(tmp_path / "cand", wrong)
    findings = lockstep.compare_recordings(reference, candidate).findings
    under = sum(one.metrics.cosine < 0.98 for one in findings)
    assert under > 4
    # then what the source document types lists the worst of them, as today's words do
    listed = [
        ask(reference, candidate, commands=[line])
        for line in ("vcs -c 0.98 -l 4", "list --cosine 0.98 --limit 4")
    ]
    assert listed[0] == listed[1]
    assert listed[0].startswith(f"{under} pairs, by Cosine, under 0.98\n")
    cosines = [float(row.split()[1]) for row in listed[0].splitlines() if "rank0: " in row]
    assert len(cosines) == 4
    assert cosines == sorted(cosines)
    # and of one site, in one text, or above a number only those are listed
    for words in (
        "net",
        "--where Outcome=differ",
        "--by Margin --over 1 net / torch.nn.functional.relu #0, forward",
    ):
        some = ask(reference, candidate, commands=[f"list {words} --limit 1000"])
        assert 0 < some.count("rank0: ") < len(findings)
    assert "net" in ask(reference, candidate, commands=["list net --limit 1"])


def test_sound_pairs_have_none_under_a_cosine(
    ask: Ask, lockstep_recording: Path, tmp_path: Path
) -> None:
    copy = shutil.copytree(lockstep_recording, tmp_path / "copy")
    printed = ask(lockstep_recording, copy, commands=["compare", "vcs -c 0.98 -l 10"])
    assert printed.startswith("AGREE")
    assert printed.endswith("0 pairs, by Cosine, under 0.98\n")


def test_a_histogram_counts_every_element_of_both_on_the_same_edges(
    pair: tuple[Path, Path], ask: Ask
) -> None:
    # when the first output of the site at fault is drawn
    place = "net / torch.nn.functional.relu #0, forward"
    printed = ask(*pair, commands=[f"hist {place} --bins 5"])
    # then each side's elements are counted between the ends of both
    tensors = []
    for path in pair:
        calls = lockstep.open(path).ranks["rank0"].calls(0)
        call = next(one for one in calls if one.site.op.endswith("relu"))
        tensors.append(call.with_role(Role.OUTPUT)[0].load().astype(np.float64))
    edges = np.linspace(0, max(tensor.max() for tensor in tensors), 6)
    counts = [np.histogram(tensor, edges)[0].tolist() for tensor in tensors]
    rows = [line.split() for line in printed.splitlines() if line.rstrip().endswith("#")]
    assert [[int(row[2]) for row in rows], [int(row[4]) for row in rows]] == counts
    # and another tensor of the site is drawn where it is named
    assert "backward, grad_input.0" in printed
    other = ask(*pair, commands=["hist net / torch.nn.functional.relu #0, backward, grad_input.0"])
    assert "relu #0, backward, grad_input.0, float32[64, 32]" in other


def test_a_histogram_of_a_pair_tells_how_far_it_is_apart(ask: Ask, tmp_path: Path) -> None:
    # given a relu that gives its rows the other way round, which no histogram shows
    reference = write_recording(tmp_path / "ref", MadeTraining(whole=True))
    turned = MadeTraining(whole=True, alter={"relu": lambda value: value[::-1].copy()})
    candidate = write_recording(tmp_path / "cand", turned)
    # when it is drawn
    alone, compared = (
        ask(reference, candidate, commands=[*before, "hist relu"], code=len(before))
        for before in ([], ["compare"])
    )
    # then it is not taken for agreement
    assert "need not be the same; `list SITE` compares" in alone
    assert "\ndiffer: cosine 0." in compared


def test_a_histogram_draws_a_partner_of_another_name(ask: Ask, tmp_path: Path) -> None:
    # given an operator that the candidate calls otherwise
    reference = write_recording(tmp_path / "ref", MadeTraining(whole=True))
    other = MadeTraining(whole=True, spelling="torch.relu")
    candidate = write_recording(tmp_path / "cand", other)
    site = "net / torch.nn.functional.relu #0, forward, output.0"
    # then it is drawn alone, and beside its partner once both are compared
    alone = ask(reference, candidate, commands=[f"hist {site}"])
    assert "once both are compared, a partner of another name is found" in alone
    printed = ask(reference, candidate, commands=["list", f"hist {site}"])
    assert "candidate: rank0 step 0: net / torch.relu #0, forward, output.0" in printed


def test_without_whole_tensors_a_histogram_says_what_was_kept(
    lockstep_recording: Path, ask: Ask
) -> None:
    printed = ask(lockstep_recording, commands=["pt relu"])
    assert "min 0, max 18.84" in printed
    assert "no histogram: of this tensor statistics and a sketch were kept" in printed
    assert "--save tensors" in printed


def test_tensors_of_a_site_are_exported_as_by_the_verb(
    pair: tuple[Path, Path], ask: Ask, tmp_path: Path
) -> None:
    file = tmp_path / "relu.npz"
    # of two recordings the candidate's, unless the other side was chosen
    for use, path in (("use side all", pair[1]), ("use side reference", pair[0])):
        ask(*pair, commands=[use, "use step 1", f"export relu -o {file} --force"])
        assert (
            main(
                [
                    "extract",
                    str(path),
                    "relu",
                    "--steps",
                    "1",
                    "-o",
                    str(tmp_path / "t.npz"),
                    "--force",
                ]
            )
            == 0
        )
        with np.load(file) as exported, np.load(tmp_path / "t.npz") as extracted:
            assert exported.files == extracted.files
            for name in exported.files:
                np.testing.assert_array_equal(exported[name], extracted[name])


def test_what_is_not_finite_is_listed_where_it_begins(ask: Ask, tmp_path: Path) -> None:
    # given a relu that overflows
    def overflowing(value: np.ndarray) -> np.ndarray:
        return np.where(value > 18, np.inf, value).astype(value.dtype)

    with np.errstate(all="ignore"):
        broken = write_recording(tmp_path / "broken", MadeTraining(alter={"relu": overflowing}))
    # when it is asked as the source document does
    printed = ask(broken, commands=["ac -l 2"])
    # then the first one is the operator that was given finite numbers
    rows = [line.split() for line in printed.splitlines() if "output.0" in line]
    assert rows[0][:3] == ["net", "/", "torch.nn.functional.relu"]
    assert rows[0][-3] == "finite"
    assert "not finite" in printed
    # and a gradient that an update reads is none of its results
    every = ask(broken, commands=["overflow --limit 1000"])
    assert "param_grad" in every
    assert "optimizer, param_grad" not in every
    # and a sound one has none
    sound = write_recording(tmp_path / "sound", MadeTraining())
    assert ask(sound, commands=["ac"]).startswith("0 results of")


def test_a_folder_lists_its_recordings_also_where_one_cannot_be_read(
    ask: Ask, tmp_path: Path, lockstep_recording: Path
) -> None:
    # given a folder with two recordings, one that is cut off, and a manifest of something else
    for name in ("ref", "runs/cand", "broken"):
        shutil.copytree(lockstep_recording, tmp_path / name)
    (tmp_path / "broken" / "manifest.json").write_text("{")
    (tmp_path / "page").mkdir()
    (tmp_path / "page" / "manifest.json").write_text('{"name": "an app"}')
    # when it is listed
    printed = ask(tmp_path, commands=["ls"])
    # then each stands with what it is, and the others with why not
    names = [line.split()[0] for line in printed.splitlines()]
    assert names[:4] == ["Recording", "ref", "runs/cand", "broken"]
    assert "broken cannot be read: is not valid JSON" in printed
    # and two of them are opened by their names
    assert "reference: " in (opened := ask(tmp_path, commands=["open ref runs/cand", "compare"]))
    assert "AGREE" in opened
    assert "cannot" not in ask(tmp_path, commands=["open ref", "ls"])
    assert "not valid JSON" in ask(tmp_path, commands=["open broken"], code=2)
    assert "no recording is open" in ask(tmp_path, commands=["show relu"], code=2)
    assert "it takes two recordings" in ask(tmp_path, commands=["open ref", "compare"], code=2)
    assert "same recording" in ask(tmp_path, commands=["open ref ref"], code=2)


def test_steps_ranks_and_sides_are_chosen(ask: Ask, lockstep_two_ranks: Path) -> None:
    assert ask(lockstep_two_ranks, commands=["ranks"]).count("rank") == 2
    assert ask(lockstep_two_ranks, commands=["steps"]).count("complete") == 4
    # given a rank and a step, then no other is shown, and all are again
    one = ask(lockstep_two_ranks, commands=["use rank rank1", "use step 1", "show relu"])
    assert one.count("rank1 step 1: ") == one.count(": net / ") == 1
    every = ask(lockstep_two_ranks, commands=["use step 1", "use step all", "show relu"])
    assert every.count(": net / ") == 4
    # and what there is none of is refused
    for line in ("use step 9", "use rank rank7", "use side candidate", "use step", "use moon 1"):
        ask(lockstep_two_ranks, commands=[line], code=2)


@pytest.mark.parametrize(
    ("line", "answer"),
    [
        ("lss", "did you mean ls?"),
        ("xyzzy", "help lists the commands"),
        ("show reluu", "nearest: torch.nn.functional.relu"),
        ("ls fc3", "no module 'fc3'; nearest: fc"),
        ("find xyzzy", "matches no module and no operator"),
        ("hist relu, forward, output.7", "has no forward, output.7; it has"),
        ("show 'relu", "close the quotes"),
        ("list --cosine 2", "Invalid value for '--cosine'"),
        ("list", "it takes two recordings"),
        ("export relu -o x.npz", "was saved whole"),
        ("show", "Missing argument"),
        ("run ls", "starts no programs"),
        ("cp a.npy b.npy", "`list SITE` tells how far apart"),
        ("vc -lt here", "give both"),
        ("lockstep shwo", "did you mean show?"),
    ],
)
def test_what_cannot_be_done_is_said_in_a_sentence(
    lockstep_recording: Path, ask: Ask, line: str, answer: str
) -> None:
    assert answer in ask(lockstep_recording, commands=[line], code=2)


def test_a_failed_command_ends_nothing_and_the_highest_code_is_kept(
    pair: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    # given a pipe, not a terminal, with a comment, an empty line and a wrong command in it
    lines = "# a comment\n\nlss\nuse step 1\nquit\nls nowhere\n"
    monkeypatch.setattr("sys.stdin", io.StringIO(lines))
    # when it is read to where it leaves
    assert main(["shell", *map(str, pair)]) == 2
    # then each command was run, without a prompt
    printed = capsys.readouterr()
    assert printed.out == "step 1, rank all, side all\n"
    assert printed.err == "lockstep: no command 'lss'; did you mean ls?\n"


def test_help_tells_every_command_and_old_word(lockstep_recording: Path, ask: Ask) -> None:
    printed = ask(lockstep_recording, commands=["help"])
    for name in (
        "open",
        "ls",
        "find",
        "show",
        "hist",
        "export",
        "compare",
        "list",
        "use",
        "quit",
        "vcs",
    ):
        assert name in printed
    shown = ask(lockstep_recording, commands=["help list"])
    assert shown == ask(lockstep_recording, commands=["list --help"])
    assert "--cosine" in shown


@pytest.mark.parametrize(
    ("typed", "place"),
    [
        ("bert.layer.0.output.dense", Place("bert.layer.0.output.dense")),
        ("h.0 / torch.relu #0, forward", Place("h.0 / torch.relu #0", "forward")),
        ("rank1: h / f #0, backward, grad_input.0", Place("h / f #0", "backward", "grad_input.0", "rank1")),
        ("h / f #0, optimizer, state_after w|m (candidate only)", Place("h / f #0", "optimizer", "state_after w|m")),
        ("relu, output.1", Place("relu", None, "output.1")),
    ],
)  # fmt: skip
def test_a_place_is_read_as_it_is_printed(typed: str, place: Place) -> None:
    assert place_of(tuple(typed.split()), Session()) == place


def test_other_verbs_are_run_as_they_are_printed(
    pair: tuple[Path, Path], ask: Ask, capsys: pytest.CaptureFixture[str]
) -> None:
    line = f"lockstep compare {pair[0]} {pair[1]}"
    assert ask(*pair, commands=[line], code=1).startswith("DIVERGED")


@pytest.mark.parametrize("name", ["a\x1b[31mred\x1b]0;title\x07", "a\nb", "\u202egnihton", "it's"])
def test_an_odd_name_is_escaped_and_can_be_typed_so(ask: Ask, tmp_path: Path, name: str) -> None:
    # given a recording whose operator and folder have an odd name
    recording = write_recording(tmp_path / "odd" / name, MadeTraining(spelling=name))
    typed = shlex.quote(printable(name))
    # when all of it is looked at, that operator by the name that is printed
    for line in ("ls net", f"show {typed}", f"hist {typed}", f"find {typed}", "overflow", "open"):
        printed = ask(recording.parent, commands=[f"open {shlex.quote(name)}", line])
        # then nothing of it reaches the terminal as it is
        assert all(part.isprintable() for part in printed.split("\n"))
    assert printable(name) in ask(recording, commands=["ls net"])


def test_bad_folders_are_refused(tmp_path: Path, ask: Ask, lockstep_recording: Path) -> None:
    assert "no such directory" in ask(tmp_path / "nowhere", commands=["ls"], code=2)
    assert "is empty" in ask(tmp_path, commands=["ls"], code=2)
    cut = damage(shutil.copytree(lockstep_recording, tmp_path / "cut"))
    assert "cut" in ask(cut, commands=["ls"], code=2)
    # one whose training never came to a step
    bare = shutil.copytree(lockstep_recording, tmp_path / "bare")
    shutil.rmtree(bare / "rank0")
    for line in ("ls", "find relu"):
        assert "nothing was recorded" in ask(bare, commands=[line], code=2)


def test_a_reader_that_is_gone_ends_it_and_odd_bytes_do_not(
    lockstep_recording: Path, programs: Path
) -> None:
    command = [programs / "lockstep", "shell", lockstep_recording]
    # given a pipe that nobody reads, then it ends without a word
    read, nobody = os.pipe()
    os.close(read)
    done = subprocess.run(
        [*command, "-c", "ls", "-c", "nonsense"], stdout=nobody, stderr=subprocess.PIPE, check=False
    )
    os.close(nobody)
    assert (done.returncode, done.stderr) == (2, b"")
    # given what is no text, then that line alone is refused
    lines = b"\xff\xfe\x00\x1b[31m\nsteps\n"
    done = subprocess.run(command, input=lines, capture_output=True, check=False)
    assert done.returncode == 2
    assert done.stderr.startswith(b"lockstep: no command '")
    assert b"\x1b" not in done.stderr
    assert b"complete" in done.stdout
