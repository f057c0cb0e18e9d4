"""Options that several verbs of this wing take, each with one meaning."""

from __future__ import annotations

from collections.abc import Sequence

from lockstep import options
from lockstep.errors import UsageError


def entries_of(given: Sequence[str]) -> tuple[tuple[str, str], ...]:
    """Entries of the runtime's configuration, of texts such as `session.set_denormal_as_zero=1`.

    Raises UsageError if one is no such text.
    """
    for one in given:
        if "=" not in one:
            raise UsageError(
                f"--session {one}: give KEY=VALUE, as in session.set_denormal_as_zero=1"
            )
    parted = (one.partition("=") for one in given)
    return tuple((key, value) for key, _, value in parted)


inputs = options.option("--inputs", multiple=True)
seed = options.option("--seed", default=0, words="For inputs that are drawn at random.")
entries = options.option(
    "--session", "entries", multiple=True, old=["--set"],
    callback=lambda context, parameter, given: entries_of(given),
)  # fmt: skip
threads = options.option("--threads", default=1)
