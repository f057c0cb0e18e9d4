"""A Slurm of one node at the loopback address: munged, slurmctld and slurmd with their files in a folder."""

from __future__ import annotations

import getpass
import os
import secrets
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

CONFIGURATION = """\
ClusterName=lockstep
SlurmctldHost={host}(127.0.0.1)
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/munge
CredType=cred/munge
AuthInfo=socket={folder}/munge.socket
SlurmctldPort={ports[0]}
SlurmdPort={ports[1]}
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
MailProg=/bin/true
ReturnToService=2
NodeName={host} NodeAddr=127.0.0.1 CPUs={processors} State=UNKNOWN
PartitionName=main Nodes=ALL Default=YES MaxTime=60 State=UP
"""
READY_S = 60.0


@contextmanager
def slurm_node(folder: Path) -> Iterator[Path]:
    """Start it; gives the file that SLURM_CONF has to name."""
    folder.chmod(0o755)
    for name in ("state", "spool"):
        (folder / name).mkdir()
    key, configuration = folder / "munge.key", folder / "slurm.conf"
    key.write_bytes(secrets.token_bytes(128))
    key.chmod(0o600)
    with socket.create_server(("127.0.0.1", 0)) as one, socket.create_server(("", 0)) as other:
        ports = one.getsockname()[1], other.getsockname()[1]
    configuration.write_text(
        CONFIGURATION.format(
            host=socket.gethostname(), user=getpass.getuser(), folder=folder, ports=ports,
            processors=os.cpu_count(),
        )
    )  # fmt: skip
    names = {
        "key-file": "key",
        "socket": "socket",
        "pid-file": "pid",
        "log-file": "log",
        "seed-file": "seed",
    }
    munge = [f"--{option}={folder}/munge.{name}" for option, name in names.items()]
    environment = {**os.environ, "SLURM_CONF": str(configuration)}
    with ExitStack() as started:
        for words in (
            ["munged", "--foreground", "--force", *munge],
            ["slurmctld", "-D"],
            ["slurmd", "-D"],
        ):
            log = started.enter_context((folder / f"{words[0]}.told").open("wb"))
            process = subprocess.Popen(words, env=environment, stdout=log, stderr=log)
            started.callback(process.wait)
            started.callback(process.terminate)
        _wait(environment, folder)
        yield configuration


def _wait(environment: dict[str, str], folder: Path) -> None:
    """Return once the node is idle."""
    until = time.monotonic() + READY_S
    while True:
        done = subprocess.run(
            ["sinfo", "--noheader", "--format=%T"],
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
        if done.stdout.strip() == "idle":
            return
        if time.monotonic() > until:
            told = "\n".join(path.read_text(errors="replace") for path in folder.glob("*.told"))
            raise TimeoutError(f"Slurm does not start: {done.stdout}{done.stderr}\n{told}")
        time.sleep(0.2)
