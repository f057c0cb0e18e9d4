"""The command that records again what a recording lacks."""

from __future__ import annotations

import shlex

from lockstep.core.manifest import RunManifest
from lockstep.core.records import Call


def command_for_tensors(manifest: RunManifest, call: Call) -> str:
    """The command that records just the site of a call, with whole tensors."""
    only = call.site.module or call.site.op
    command = [
        "lockstep", "record", "--only", only, "--save", "tensors", "--steps", str(call.step), "-o", "whole",
        "--", *(manifest.command or ["..."]),
    ]  # fmt: skip
    return shlex.join(command)
