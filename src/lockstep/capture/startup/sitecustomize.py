"""Start-up hook that `lockstep record` puts on PYTHONPATH: arms the recorder once torch has been imported.

Runs in every Python process that the command starts, so it uses the standard library only and costs next to nothing where
torch is never imported. The user's own sitecustomize still runs.
"""

import importlib.machinery
import importlib.util
import os
import sys

_HERE = os.path.dirname(os.path.abspath(__file__))


class _TorchWatcher:
    """Meta path finder that lets the real finders find torch, and has the recorder armed after its import."""

    def find_spec(self, name, path=None, target=None):
        if name != "torch":
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        if spec is None or spec.loader is None:
            return spec
        execute = spec.loader.exec_module

        def execute_then_arm(module):
            execute(module)
            _arm()

        spec.loader.exec_module = execute_then_arm
        return spec


def _arm():
    source = os.environ.get("LOCKSTEP_SOURCE")
    try:
        try:
            import lockstep.capture.bootstrap as bootstrap
        except ModuleNotFoundError:
            if not source:
                raise
            sys.path.append(source)
            import lockstep.capture.bootstrap as bootstrap
        bootstrap.arm_from_environment()
    except Exception as error:
        print(
            f"lockstep: cannot record in {sys.executable}: {error}; the command runs on unrecorded."
            " Install lockstep-ml into that Python.",
            file=sys.stderr,
        )


def _run_next_sitecustomize():
    places = [place for place in sys.path if os.path.abspath(place or os.curdir) != _HERE]
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", places)
    if spec is not None and spec.loader is not None:
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)


if os.environ.get("LOCKSTEP_RECORD"):
    sys.meta_path.insert(0, _TorchWatcher())
_run_next_sitecustomize()
