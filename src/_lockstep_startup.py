"""Arms the recorder where PYTHONPATH does not: `lockstep_startup.pth` imports this in processes of a recorded command.

Python runs lines of a `.pth` file in site-packages at its start, also where a script has set PYTHONPATH anew, where
it was unset, and under `python -E` and `python -I`. The file is a part of the installed package, does nothing in any
other process, and goes when the package is uninstalled. The package is found and not imported: a script may have one
of that name.
"""

from importlib.machinery import PathFinder
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path


def _run_hook() -> None:
    package = PathFinder.find_spec("lockstep")
    if package is None or not package.origin:
        return
    file = Path(package.origin).parent / "capture" / "startup" / "sitecustomize.py"
    spec = spec_from_file_location("lockstep_startup_hook", file)
    if file.is_file() and spec is not None and spec.loader is not None:
        spec.loader.exec_module(module_from_spec(spec))


_run_hook()
