"""sbatch, squeue and scancel of one node, after their manual pages: this file under each of the three names.

A job waits until squeue has been asked once about it, so that nothing here depends on time. In partition `full` it
waits for ever; of `time=0` it is ended before its script starts.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

JOBS = Path(os.environ["STAND_IN_SLURM"])
LIMIT = "slurmstepd: error: *** JOB {} ON node CANCELLED DUE TO TIME LIMIT ***\n"


def options(words: list[str]) -> tuple[dict[str, str], list[str]]:
    """Return options by name, and the words that are none."""
    given = dict(word[2:].partition("=")[::2] for word in words if word.startswith("--"))
    return given, [word for word in words if not word.startswith("--")]


def keep(number: str, state: str, reason: str) -> None:
    (JOBS / number / "state").write_text(f"{state}|{reason}")


def sbatch(words: list[str]) -> int:
    given, (script,) = options(words)
    if given.get("partition", "main") not in ("main", "full"):
        print(f"sbatch: error: invalid partition specified: {given['partition']}", file=sys.stderr)
        return 1
    number = str(len(list(JOBS.iterdir())) + 1)
    (JOBS / number).mkdir()
    (JOBS / number / "script").write_text(Path(script).read_text())
    (JOBS / number / "asked").write_text(json.dumps(given))
    keep(number, "PENDING", "(Priority)" if given.get("partition") == "full" else "(Resources)")
    print(number + (";elsewhere" if "comment" in given else ""))
    return 0


def start(number: str) -> None:
    """Run the script, away from whoever asks; its state follows it."""
    given = json.loads((JOBS / number / "asked").read_text())
    files = {name: given[name].replace("%%", "%") for name in ("output", "error")}
    if given.get("time") == "0":
        Path(files["error"]).write_text(LIMIT.format(number))
        keep(number, "TIMEOUT", "")
        return
    with Path(files["output"]).open("ab") as output, Path(files["error"]).open("ab") as errors:
        job = subprocess.Popen(
            ["/bin/sh", str(JOBS / number / "script")],
            cwd=given["chdir"], stdin=subprocess.DEVNULL, stdout=output, stderr=errors, start_new_session=True,
        )  # fmt: skip
    keep(number, "RUNNING", "node")
    (JOBS / number / "process").write_text(str(job.pid))


def squeue(words: list[str]) -> int:
    given, _ = options(words)
    place = JOBS / given["jobs"]
    if not place.is_dir():
        print("slurm_load_jobs error: Invalid job id specified", file=sys.stderr)
        return 1
    if "clusters" in given:
        print(f"CLUSTER: {given['clusters']}")
    print((place / "state").read_text(), flush=True)
    if (place / "state").read_text() == "PENDING|(Resources)":
        start(given["jobs"])
    return 0


def scancel(words: list[str]) -> int:
    _, (number,) = options(words)
    if (JOBS / number / "process").exists():
        os.killpg(int((JOBS / number / "process").read_text()), signal.SIGTERM)
    keep(number, "CANCELLED", "")
    return 0


if __name__ == "__main__":
    commands = {"sbatch": sbatch, "squeue": squeue, "scancel": scancel}
    sys.exit(commands[Path(sys.argv[0]).name](sys.argv[1:]))
