"""The peer's own environment: mindstudio-probe from PyPI, beside the packages of ours."""

from __future__ import annotations

import subprocess
import sys
import sysconfig
from importlib.metadata import distributions
from pathlib import Path

PACKAGE, VERSION = "mindstudio-probe", "26.2.0"


def installed(environment: Path) -> Path:
    """The environment's Python; it is made where it is not there.

    It sees the packages of ours, so that both sides run the same torch and transformers.

    Parameters
    ----------
    environment
        Directory of the environment.
    """
    python = environment.absolute() / "bin" / "python"
    ready = environment / ".installed"
    wanted = f"{PACKAGE}=={VERSION}"
    if ready.exists() and ready.read_text() == wanted:
        return python
    print(f"installing {wanted} into {environment}", file=sys.stderr)
    subprocess.run([sys.executable, "-m", "venv", str(environment)], check=True)
    ours = sysconfig.get_path("purelib")
    (_own_packages(environment) / "borrowed.pth").write_text(
        f"import site; site.addsitedir({ours!r})\n"
    )
    pip = [str(python), "-m", "pip", "--disable-pip-version-check", "install", "--quiet", wanted]
    subprocess.run(pip, check=True)
    ready.write_text(wanted)
    return python


def packages_in(environment: Path) -> dict[str, str]:
    """What was installed there, by name, with its version; borrowed packages are not counted."""
    found = distributions(path=[str(_own_packages(environment))])
    return dict(sorted((item.metadata["Name"], item.version) for item in found))


def _own_packages(environment: Path) -> Path:
    return next(environment.glob("lib/python*/site-packages"))
