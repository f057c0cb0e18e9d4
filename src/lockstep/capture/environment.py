"""How `lockstep record` tells the processes of a command to record: environment variables. No torch here."""

from __future__ import annotations

import dataclasses
import json
import os
from pathlib import Path

from lockstep.core.manifest import Options, manifest_from_json

VARIABLE = "LOCKSTEP_RECORD"
SOURCE_VARIABLE = "LOCKSTEP_SOURCE"
STARTUP = Path(__file__).parent / "startup"


def environment_for(directory: Path, options: Options) -> dict[str, str]:
    """Environment of a command to be recorded into `directory`."""
    environment = dict(os.environ)
    path = environment.get("PYTHONPATH")
    environment["PYTHONPATH"] = os.pathsep.join([str(STARTUP), *([path] if path else [])])
    environment[VARIABLE] = json.dumps({"directory": str(directory), "options": dataclasses.asdict(options)})
    environment[SOURCE_VARIABLE] = str(Path(__file__).parents[2])
    if options.seed is not None:
        environment.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        environment["PYTHONHASHSEED"] = str(options.seed)
    return environment


def request_from(text: str) -> tuple[Path, Options]:
    """Read back what `environment_for` wrote."""
    value = json.loads(text)
    return Path(value["directory"]), manifest_from_json(Options, value["options"], VARIABLE)
