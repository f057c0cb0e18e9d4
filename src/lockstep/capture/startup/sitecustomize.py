"""Start-up hook that `lockstep record` puts on PYTHONPATH: arms the recorder after a framework is imported.

Runs in every Python process that the command starts, so it uses the standard library only, costs
next to nothing where torch is never imported, and takes itself off the path at once. The user's own
sitecustomize still runs. Where a script has set PYTHONPATH anew, `_lockstep_startup` runs it, if Lockstep is
installed in that Python; it comes first then, and the folder has left the path before it would be looked at.
"""

# It may be an old Python, and pathlib would take several times as long to load as all the rest.
# ruff: noqa: PTH100, PTH110, PTH120, PTH123, UP031

import os
import sys

MYPY = False
if MYPY:
    from typing import Any
else:
    Any = object

_HERE = os.path.dirname(os.path.abspath(__file__))


class _AfterImport:
    """Meta path finder that lets the real finders find a module, and acts right after its import.

    To be asked for the module is not enough: `importlib.util.find_spec("torch")` imports nothing.
    """

    def __init__(self, name: str, act: Any, before: Any = None) -> None:
        self.name = name
        self.act = act
        self.before = before
        self.is_missing = False

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        if name != self.name:
            return None
        for finder in sys.meta_path:
            if finder is not self and hasattr(finder, "find_spec"):
                spec = finder.find_spec(name, path, target)
                if spec is not None:
                    self._watch(spec.loader)
                    return spec
        if not self.is_missing:  # a library may only look whether it is there, again and again
            self.is_missing = True
            _trace("NOT_INSTALLED %s" % name)
        return None

    def _watch(self, loader: Any) -> None:
        execute = getattr(loader, "exec_module", None)
        if execute is None:
            return

        def execute_then_act(module: Any) -> None:
            del loader.exec_module
            if self.before is not None:
                self.before()
            execute(module)
            if self in sys.meta_path:
                sys.meta_path.remove(self)
                self.act()

        loader.exec_module = execute_then_act


_NEEDED_BYTES = 1500000000
"""Address space that recording took beside a training, measured: libraries, and what threads set apart."""


def _arm(name: str = "lockstep.capture.command.bootstrap") -> None:
    left = _address_space_left()
    if left is not None and left < _NEEDED_BYTES:
        _trace("UNLOADABLE")
        sys.stderr.write(
            "lockstep: cannot record: the address space of the process is limited (ulimit -v), %.1f GB are left, and"
            " recording takes %.1f GB; the command runs on unrecorded. Raise the limit.\n"
            % (left / 1e9, _NEEDED_BYTES / 1e9)
        )
        return
    try:
        _bootstrap(name).arm_from_environment()
    except Exception as error:
        _trace("UNLOADABLE")
        sys.stderr.write(
            "lockstep: cannot record in %s: %s; the command runs on unrecorded. %s\n"
            % (sys.executable, error, _advice())
        )


def _address_space_left() -> Any:
    """Bytes of address space that the process may still take, None where there is no limit or none can be read.

    Libraries end a process that gets no more, and no exception tells of it before.
    """
    try:
        import resource

        limit = resource.getrlimit(resource.RLIMIT_AS)[0]
        if limit == resource.RLIM_INFINITY:
            return None
        with open("/proc/self/statm") as file:
            pages = int(file.read().split()[0])
        return limit - pages * resource.getpagesize()
    except (ImportError, AttributeError, OSError, ValueError):
        return None


def _advice() -> str:
    """What to do where Lockstep cannot be loaded: mostly it is not there, or something else goes by its name."""
    package = sys.modules.get("lockstep")
    place = getattr(package, "__file__", None) or getattr(package, "__path__", None)
    if package is None or hasattr(package, "DISTRIBUTION"):
        return "Install lockstep-numerics into that Python."
    return (
        "The package `lockstep` that it loads is another project's (%s):"
        " uninstall or rename that one, then install lockstep-numerics." % (place,)
    )


def _bootstrap(name: str) -> Any:
    """A module of Lockstep as this Python has it, or else the one that runs the command."""
    import importlib

    try:
        return importlib.import_module(name)
    except ModuleNotFoundError:
        sources = os.environ.get("LOCKSTEP_SOURCE", "").split(os.pathsep)
        if not sources[0]:
            raise
    # Not for longer than this: what else lies there must not become importable to the script.
    sys.path += sources
    try:
        return importlib.import_module(name)
    finally:
        # The last ones: they may have been on the path before, as where it is installed to be edited.
        for source in sources:
            del sys.path[len(sys.path) - 1 - sys.path[::-1].index(source)]


def _trace(name: str) -> None:
    """Leave a line for `lockstep record`, which may have to say why nothing was recorded."""
    try:
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT
        file = os.open(os.environ["LOCKSTEP_TRACE"], flags, 0o600)
        try:
            os.write(file, (name + "\n").encode())
        finally:
            os.close(file)
    except (KeyError, OSError):
        pass


def _seed() -> None:
    """Fix what a script may draw before it imports torch; the recorder seeds again after that."""
    text = os.environ.get("LOCKSTEP_SEED")
    if text:
        import random

        random.seed(int(text))
        sys.meta_path.insert(
            0, _AfterImport("numpy", lambda: sys.modules["numpy"].random.seed(int(text)))
        )


def _leave_path() -> None:
    sys.path[:] = [place for place in sys.path if os.path.abspath(place or os.curdir) != _HERE]


def _run_next_sitecustomize() -> None:
    from importlib.machinery import PathFinder
    from importlib.util import module_from_spec

    spec = PathFinder.find_spec("sitecustomize")
    if spec is not None and spec.loader is not None:
        sys.modules["sitecustomize"] = module = module_from_spec(spec)
        spec.loader.exec_module(module)


def _note_number() -> None:
    """Before torch is loaded: `lockstep record` looks which processes have it that left no such note."""
    _trace("ARMED %d" % os.getpid())


def _await_frameworks() -> None:
    """Arm the process for each framework other than PyTorch right after its import, where it imports one."""
    for pair in filter(None, os.environ.get("LOCKSTEP_FRAMEWORKS", "").split(",")):
        root, _, module = pair.partition("=")
        sys.meta_path.insert(0, _AfterImport(root, lambda module=module: _arm(module)))


if os.environ.get("LOCKSTEP_ARMING"):  # a verb that looks at the process, and records nothing
    sys.meta_path.insert(0, _AfterImport("torch", lambda: _arm(os.environ["LOCKSTEP_ARMING"])))
elif os.environ.get("LOCKSTEP_RECORD"):
    if not os.path.exists(os.environ.get("LOCKSTEP_TRACE", _HERE)):
        _trace("HOOK")
    _seed()
    if "torch" in sys.modules:
        _note_number()
        _arm()
    else:
        sys.meta_path.insert(0, _AfterImport("torch", _arm, before=_note_number))
    _await_frameworks()
_leave_path()
if __name__ == "sitecustomize":
    _run_next_sitecustomize()
