"""Migrates the scripts of this folder and starts them as a user would."""

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import torch

from lockstep_migrate.delivery.output import write_tree
from lockstep_migrate.files.collection import collect
from lockstep_migrate.options import Distribution, MigrationOptions
from lockstep_migrate.project import plan_collection

SCRIPTS = Path(__file__).parent / "scripts"


@dataclass(frozen=True)
class Run:
    """What a run printed, what each process noted, and where its files are."""

    printed: str
    notes: list
    parameters: list
    folder: Path

    @property
    def checkpoint(self):
        return torch.load(self.folder / "net.pt", map_location="cpu")


def migrate(script, out, target="neutral"):
    """Migrate one script for many processes; return the plan."""
    collection = collect([script], exclude=[out])
    distribution = Distribution(script)
    plan = plan_collection(collection, MigrationOptions(target, distribution=distribution))
    write_tree(plan, collection, out, force=False)
    return plan


def alone(programs, script, folder):
    """`python script.py`"""
    return _run(programs, ["python", str(script)], folder)


def together(programs, launcher, folder, processes=2):
    """`sh run_distributed.sh`, with as many processes as are asked for."""
    return _run(programs, ["sh", str(launcher)], folder, NPROC_PER_NODE=str(processes))


def _run(programs, command, folder, **variables):
    folder.mkdir(parents=True, exist_ok=True)
    environment = {
        **{key: value for key, value in os.environ.items() if key not in ("RANK", "WORLD_SIZE")},
        "PATH": os.pathsep.join(
            [str(programs), str(Path(sys.executable).parent), os.environ["PATH"]]
        ),
        "PYTHONPATH": str(SCRIPTS),
        "WITNESS": str(folder),
        "OMP_NUM_THREADS": "1",
        "GLOO_SOCKET_IFNAME": "lo",
        **variables,
    }
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr[-3000:]
    notes = [json.loads(path.read_text()) for path in sorted(folder.glob("notes-*.json"))]
    parameters = [torch.load(path) for path in sorted(folder.glob("parameters-*.pt"))]
    return Run(done.stdout, notes, parameters, folder)
