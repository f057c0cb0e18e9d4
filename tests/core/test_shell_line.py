"""Words on one line, which a shell reads back as exactly these."""

from __future__ import annotations

import subprocess

from hypothesis import given, settings
from hypothesis import strategies as st

from lockstep.core.text import shell_line

LETTERS = st.characters(exclude_characters="\0", exclude_categories=["Cs"])


@settings(max_examples=30, deadline=None)
@given(st.lists(st.text(LETTERS, max_size=20), min_size=1, max_size=6))
def test_a_shell_reads_the_same_words(words: list[str]) -> None:
    line = shell_line(words)

    assert line.isprintable()
    command = ["bash", "-c", f"printf '%s\\0' {line}"]
    done = subprocess.run(command, capture_output=True, check=True, env={"LC_ALL": "C.UTF-8"})
    assert done.stdout.decode().split("\0")[:-1] == words
