"""Print the notices about a running command, one line each."""

from __future__ import annotations

from lockstep.cli.sentences import say
from lockstep.launch.events import Event, NotArmed, Notice

__all__ = ["say", "tell"]


def tell(event: Event) -> None:
    """Print a notice for the user."""
    if isinstance(event, NotArmed | Notice):
        say(str(event))
