"""From a trained network to C, with the numbers held at each step: export, run, quantise, generate.

Exit status: 0 where every step gave what it should, 1 where one did not.
"""

from __future__ import annotations

import argparse
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
MARK = ".made-by-the-demo"


def lockstep(folder: Path, *arguments: str, codes: tuple[int, ...] = (0,)) -> bool:
    """Run ``lockstep`` in the folder, echoed as a user would type it; whether it ended as it should."""
    print(f"\n$ {shlex.join(['lockstep', *arguments])}", flush=True)
    return (
        subprocess.run([sys.executable, "-m", "lockstep", *arguments], cwd=folder).returncode
        in codes
    )


def walk(folder: Path, name: str) -> bool:
    """Take one network through all of it."""
    model, int8 = f"{name}.onnx", f"{name}-int8.onnx"
    data = ("--calibrate", "calibrate.npz", "--inputs", "test.npz")
    factory = ("--factory", f"digits.py:{name}")
    return all(
        (
            lockstep(
                folder,
                "export",
                f"{name}.pth",
                *factory,
                "--inputs",
                "two.npz",
                "--dynamic",
                "batch",
                "-o",
                model,
            ),
            lockstep(folder, "run", model, "--inputs", "two.npz", "--limit", "3"),
            # 1 where this processor's integer kernels saturate: the answer names the layer, and what helps.
            lockstep(
                folder, "quantize", model, *data, "-o", f"{name}-saturates.onnx", codes=(0, 1)
            ),
            lockstep(folder, "quantize", model, *data, "--reduce-range", "-o", int8),
            lockstep(
                folder,
                "quantize",
                model,
                *data,
                "--bits",
                "4",
                "--mixed",
                "30dB",
                "-o",
                f"{name}-mixed.onnx",
            ),
            lockstep(
                folder, "codegen", int8, "--inputs", "test.npz", "--name", name, "-o", f"{name}-c"
            ),
        )
    )


def main() -> int:
    """Train, and walk."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--output", type=Path, default=Path("demo-deploy"), metavar="DIR")
    parser.add_argument("--only", choices=("lenet", "resnet"), help="This network only.")
    given = parser.parse_args()
    folder = given.output.resolve()
    if folder.exists() and not (folder / MARK).is_file():
        sys.exit(f"{folder} is there already and is not the demo's; name another with --output")
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    (folder / MARK).touch()
    shutil.copy(HERE / "digits.py", folder)
    print(f"$ python digits.py {given.output}", flush=True)
    subprocess.run([sys.executable, "digits.py", "."], cwd=folder, check=True)
    names = [given.only] if given.only else ["lenet", "resnet"]
    ended = [walk(folder, name) for name in names]
    return 0 if all(ended) else 1


if __name__ == "__main__":
    sys.exit(main())
