"""`make release-check`: build wheel and sdist of the core and the wheels of its members, and try them in a fresh
environment on each Python from 3.10 to 3.13.

Each environment records two small trainings, compares them, writes a report and asks each verb for its help. Exit code
1 if one of them fails, or if none of the Pythons is on this machine. A Python that is missing is listed.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
MEMBERS = sorted(path.parent for path in ROOT.glob("packages/*/pyproject.toml"))
PYTHONS = ("3.10", "3.11", "3.12", "3.13")
TRAINING = """
import sys
import torch

torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))
optimizer = torch.optim.AdamW(model.parameters())
for _ in range(3):
    hidden = model[1](model[0](torch.randn(16, 8)))
    loss = model[2](hidden * float(sys.argv[1])).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""


def main() -> int:
    """Build both files, try them on every Python, and print a line for each."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--torch", default="2.13.0", metavar="VERSION")
    parser.add_argument("--python", nargs="*", default=PYTHONS, metavar="VERSION")
    asked = parser.parse_args()
    verdicts = []
    with tempfile.TemporaryDirectory(prefix="lockstep-release-") as folder:
        wheel, sdist = built(Path(folder) / "dist")
        members = [wheel_of(member, Path(folder) / "members") for member in MEMBERS]
        for version in asked.python:
            program = program_of(version)
            if program is None:
                print(f"Python {version}: not on this machine, not tried")
                continue
            verdicts.append(
                tried(program, version, (wheel, sdist), members, asked.torch, Path(folder))
            )
    return 0 if verdicts and all(verdicts) else 1


def built(folder: Path) -> tuple[Path, Path]:
    """Return the wheel and the sdist of this tree, in `folder`."""
    for kind in ("wheel", "sdist"):
        run(sys.executable, "-m", "hatchling", "build", "-t", kind, "-d", folder, cwd=ROOT)
    return next(folder.glob("*.whl")), next(folder.glob("*.tar.gz"))


def wheel_of(member: Path, folder: Path) -> Path:
    """Return the wheel of a member, in a folder below `folder`."""
    into = folder / member.name
    run(sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", into, cwd=member)
    return next(into.glob("*.whl"))


def program_of(version: str) -> Path | None:
    """Return a Python of that version that runs: one on the path, or one that pyenv has installed."""
    installed = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    on_path = shutil.which(f"python{version}")
    candidates = [Path(on_path)] if on_path else []
    for program in [*candidates, *sorted(installed.glob(f"{version}.*/bin/python"))]:
        asked = [program, "-c", "import sys; print('%d.%d' % sys.version_info[:2])"]
        answer = subprocess.run(asked, capture_output=True, text=True, check=False)
        if answer.stdout.strip() == version:
            return program
    return None


def tried(
    program: Path,
    version: str,
    files: tuple[Path, ...],
    members: list[Path],
    torch: str,
    folder: Path,
) -> bool:
    """Return whether each file installs with the members and works; print a line for each, and the output of a command
    that fails."""
    environment = folder / f"python-{version}"
    python = environment / "bin" / "python"
    pip = (python, "-m", "pip", "--disable-pip-version-check", "install", "-q")
    try:
        run(program, "-m", "venv", environment)
        run(*pip, f"torch=={torch}")
        for file in files:
            run(*pip, "-c", ROOT / "constraints.txt", "--upgrade", file, *members)
            shown = check_commands(environment, folder / "runs")
            print(f"Python {version}: {file.name} works ({shown})", flush=True)
            installed = ["lockstep-numerics", *(f"lockstep-{member.name}" for member in MEMBERS)]
            run(python, "-m", "pip", "uninstall", "-q", "-y", *installed)
    except subprocess.CalledProcessError as failed:
        print(f"Python {version}: FAILED at {failed.cmd}\n{failed.stdout}", flush=True)
        return False
    finally:
        shutil.rmtree(environment, ignore_errors=True)
    return True


def check_commands(environment: Path, folder: Path) -> str:
    """Return the verdict's first line, once record, compare and report have done in `folder` what they should."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    (folder / "train.py").write_text(TRAINING)
    lockstep, python = environment / "bin" / "lockstep", environment / "bin" / "python"
    for name, factor in (("reference", 1.0), ("again", 1.0), ("candidate", 1.01)):
        run(lockstep, "record", "-o", name, "--", python, "train.py", str(factor), cwd=folder)
    run(lockstep, "compare", "reference", "again", cwd=folder)
    shown = run(lockstep, "--help", cwd=folder)
    if "Not installed" in shown or "is not loaded" in shown or "cannot be loaded" in shown:
        raise subprocess.CalledProcessError(1, "lockstep --help", shown)
    for verb in re.findall(r"^  ([a-z][a-z-]*)  +\S", shown, re.MULTILINE):
        run(lockstep, verb, "--help", cwd=folder)
    verdict = run(lockstep, "compare", "reference", "candidate", cwd=folder, exit_code=1)
    report = ("report", "reference", "candidate", "-o", "report.html")
    run(lockstep, *report, cwd=folder, exit_code=1)
    if "mul" not in verdict or not (folder / "report.html").is_file():
        raise subprocess.CalledProcessError(1, "compare and report", verdict)
    return verdict.splitlines()[0]


def run(*command: object, cwd: Path | None = None, exit_code: int = 0) -> str:
    """Return the output of a command that must end with `exit_code`; a CalledProcessError has the output of others."""
    words = [str(word) for word in command]
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        words, cwd=cwd, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    if done.returncode != exit_code:
        raise subprocess.CalledProcessError(done.returncode, " ".join(words), done.stdout)
    return done.stdout


if __name__ == "__main__":
    sys.exit(main())
