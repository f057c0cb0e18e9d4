"""The script that starts one process a device."""

from __future__ import annotations

import itertools
import shlex
from collections.abc import Collection, Iterator
from pathlib import PurePosixPath

from lockstep_migrate.hookspecs import MigrationTarget
from lockstep_migrate.plan import NewFile

NAME = "run_distributed.sh"

_TEXT = """\
#!/bin/sh
# Start the training with one process a device of this machine; arguments go to the script.
#   NPROC_PER_NODE=2 sh THIS_FILE ...                                  two processes
#   NNODES=2 NODE_RANK=0 MASTER_ADDR=HOST sh THIS_FILE ...           one of two machines
set -eu
here=$(cd "$(dirname "$0")" && pwd)
processes=${{NPROC_PER_NODE:-$({python} -c {count})}}
if [ "${{NNODES:-1}}" -eq 1 ]; then
    exec torchrun --standalone --nproc_per_node="$processes" "$here"/{main} "$@"
fi
exec torchrun --nnodes="$NNODES" --node_rank="$NODE_RANK" --nproc_per_node="$processes" \\
    --master_addr="$MASTER_ADDR" --master_port="${{MASTER_PORT:-29500}}" "$here"/{main} "$@"
"""


def launch_script(
    main: PurePosixPath, target: MigrationTarget, taken: Collection[PurePosixPath] = ()
) -> NewFile:
    """A shell script that starts `main` through torchrun, on this machine or as one of several.

    `target`: the device that is counted; without one there is one process.
    """
    name = next(name for name in _names() if PurePosixPath(name) not in taken)
    text = _TEXT.format(
        python="python3", count=shlex.quote(_count(target)), main=shlex.quote(str(main))
    )
    reason = "starts one process a device, or NPROC_PER_NODE of them"
    return NewFile(PurePosixPath(name), text.encode(), reason, executable=True)


def _names() -> Iterator[str]:
    yield NAME
    for number in itertools.count(2):
        yield f"run_distributed_{number}.sh"


def _count(target: MigrationTarget) -> str:
    module = target.module or "torch.accelerator"
    imports = f"import torch, {target.imports}" if target.imports else "import torch"
    return f"{imports}; print(max(1, {module}.device_count()))"
