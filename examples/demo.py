"""Record a sound and a faulty training run of ``digits_lstm.py``, and let Lockstep find the fault.

The faulty run's LSTM has a wrong backward: its forward, and so the first loss, is the same to the
last bit. Exit status: 0 where the comparison told the two runs apart, 1 where it did not.
"""

from __future__ import annotations

import argparse
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TRAIN = ["examples/digits_lstm.py", "--steps", "2"]
MARK = ".made-by-the-demo"
DIFFERS = 1


def lockstep(*arguments: str) -> int:
    """Run ``lockstep`` in the repository's root, echoed as a user would type it."""
    print(f"\n$ {shlex.join(['lockstep', *arguments])}", flush=True)
    command = [sys.executable if word == "python" else word for word in arguments]
    return subprocess.run([sys.executable, "-m", "lockstep", *command], cwd=ROOT).returncode


def empty_folder(output: Path) -> None:
    """Create ``output``, in place of what an earlier demo left there, and of nothing else."""
    if output.exists() and not (output / MARK).is_file():
        sys.exit(f"{output} is there already and is not the demo's; name another with --output")
    shutil.rmtree(output, ignore_errors=True)
    output.mkdir(parents=True)
    (output / MARK).touch()


def as_typed(path: Path) -> str:
    """Return ``path`` as seen from the repository's root."""
    return str(path.relative_to(ROOT) if path.is_relative_to(ROOT) else path)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--output", type=Path, default=ROOT / "demo-output", metavar="DIR")
    output = parser.parse_args().output.resolve()
    empty_folder(output)
    reference, candidate = as_typed(output / "reference"), as_typed(output / "candidate")
    tables = [as_typed(output / f"comparison.{suffix}") for suffix in ("csv", "xlsx")]

    if lockstep("record", "--save", "tensors", "-o", reference, "--", "python", *TRAIN) or lockstep(
        "record",
        "--save",
        "tensors",
        "-o",
        candidate,
        "--",
        "python",
        *TRAIN,
        "--fault",
        "backward",
    ):
        print("\nThe demo failed: a run could not be recorded.", file=sys.stderr)
        return 1
    status = lockstep("compare", reference, candidate, "-o", as_typed(output))
    if status != DIFFERS:
        print(f"\nThe demo failed: compare exited with {status}, not 1.", file=sys.stderr)
        return 1
    print("\nEvery compared pair, as a table:", *tables, sep="\n  ")
    print("\nLook at it, in a browser:", as_typed(output / "comparison.html"), sep="\n  ")
    return 0


if __name__ == "__main__":
    sys.exit(main())
