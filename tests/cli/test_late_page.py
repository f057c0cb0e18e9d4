"""The commands of the page on late faults run, and print what it shows."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

from workplace import Workplace

PAGE = (Path(__file__).parents[2] / "docs" / "tasks" / "late.md").read_text()


def blocks(mark: str) -> list[str]:
    """The blocks of the page after such a comment."""
    return re.findall(rf"<!-- {mark} -->\n```\w*\n(.*?)```\n", PAGE, re.DOTALL)


def plain(text: str) -> str:
    """A text on one line, without the distances, which another build of PyTorch has otherwise."""
    return re.sub(r"differed by [0-9.e-]+", "differed by N", " ".join(text.split()))


def test_the_page_takes_a_reader_to_the_operator(workplace: Workplace) -> None:
    # given the page's script
    workplace.script("train.py", blocks("script")[0])
    answers = blocks("answer")
    assert len(answers) == len(blocks("commands")) == 3

    printed = []
    for commands, answer in zip(blocks("commands"), answers, strict=True):
        # when its commands run, one after the other
        lines = [line.removeprefix("$ ") for line in commands.splitlines()]
        ended = [workplace.run(*shlex.split(line)) for line in lines]
        # then the last one prints what it shows
        bad = int("DIVERGED" in answer)
        assert [one.code for one in ended] == [*[0] * (len(lines) - 1), bad], ended
        printed.append(ended[-1].out)
        for part in plain(answer).split(" ... "):
            assert part in plain(printed[-1])

    # and the command that leads on records the reference first, and starts the candidate from that
    last = printed[1].splitlines()[-1]
    assert " --windows 57:59 --exit-after -o ref-later-whole -- python train.py && " in last
    assert (
        " --start-from ref-later-whole --emulate reorder --exit-after -o cand-later-whole -- "
        in last
    )
