"""A Python that has imported torch, its compiler and Lockstep, and forks for every command line that comes.

The fork goes through what a Python goes through at its start: environment, folder, streams, `sys.path`, the
`sitecustomize` on PYTHONPATH, and `__main__`. Its `import torch` imports nothing, but every finder is asked as if it
did, so that `lockstep record` finds its moment. What a start alone decides stays as it was here: flags of the
interpreter, the seed of hashes, and what libraries read from the environment while they load.
"""

# Paths are taken as Python's own start takes them.
# ruff: noqa: PTH100, PTH109, PTH112, PTH120

from __future__ import annotations

import array
import atexit
import gc
import importlib
import importlib.abc
import io
import json
import multiprocessing.process
import os
import runpy
import select
import signal
import socket
import struct
import sys
import threading
from importlib.machinery import ModuleSpec, PathFinder
from importlib.metadata import entry_points
from importlib.util import module_from_spec
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any, NoReturn

NUMBER = struct.Struct("q")
LENGTH = struct.Struct("Q")
NOT_MISSED = ("jemalloc_bg_thd", "polars-ooc-clea")
"""Threads that a fork may leave behind: of polars, they tidy up."""
LOADED = (
    "torch._dynamo",
    "torch.distributed.fsdp",
    "lockstep.capture.command.bootstrap",
    "lockstep.replay",
    "lockstep.cli.main",
    "lockstep.cli.compare",
    "lockstep.cli.record",
    "lockstep.cli.show",
    "lockstep.replay.process.answered_here",
    "lockstep.replay.process.worker",
    "lockstep.wings.replay.command",
    "lockstep.wings.report.command",
    "lockstep.wings.follow.follow_command",
    "polars._utils.parquet",
    "rich.console",
    "transformers.models.gpt2.modeling_gpt2",
)
"""As optimizers, recordings, comparisons, command lines and most of the trainings from libraries do."""
ADDRESS, PYTHON = sys.argv[1:]
OWN_PATH = sys.path[1:]
exit_now = os._exit


def warm_up() -> None:
    """Load what trainings load; nothing may start a thread, which would not come along with a fork."""
    for name in LOADED:
        importlib.import_module(name)
    for entry in entry_points(group="lockstep"):
        entry.load()
    from lockstep.devices.tensor_numbers import prepare_kernels
    from lockstep.devices.vector_math import prepare_vector_math

    prepare_kernels()
    prepare_vector_math()
    torch = sys.modules["torch"]
    torch.optim.SGD([torch.zeros(1, requires_grad=True)])
    gc.collect()
    gc.freeze()
    threads = {path.read_text().strip() for path in Path("/proc/self/task").glob("*/comm")}
    assert threads <= {Path("/proc/self/comm").read_text().strip(), *NOT_MISSED}, threads


class Loaded(importlib.abc.Loader):
    """Loads a module that is loaded already."""

    def __init__(self, module: ModuleType) -> None:
        self.module = module
        self.spec, self.loader = module.__spec__, module.__loader__

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return self.module

    def exec_module(self, module: ModuleType) -> None:
        module.__spec__, module.__loader__ = self.spec, self.loader


class Finder(importlib.abc.MetaPathFinder):
    """Has a module that is loaded already be found, as if it had to be loaded."""

    def __init__(self, name: str) -> None:
        self.module = sys.modules.pop(name)

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        if name != self.module.__name__:
            return None
        return ModuleSpec(name, Loaded(self.module), origin=self.module.__file__, is_package=True)


def become(arguments: list[str], environment: dict[str, str], folder: str) -> None:
    """Be as a Python that was started so."""
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(folder)
    multiprocessing.process.ORIGINAL_DIR = folder  # type: ignore[attr-defined]
    unbuffered = bool(environment.get("PYTHONUNBUFFERED"))
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        raw = io.FileIO(number, "w" if number else "r", closefd=False)
        buffer = (
            raw
            if number and unbuffered
            else io.BufferedWriter(raw)
            if number
            else io.BufferedReader(raw)
        )
        stream = io.TextIOWrapper(
            buffer,
            encoding="utf-8",
            errors="backslashreplace" if name == "stderr" else "strict",
            line_buffering=name == "stderr" or os.isatty(number),
            write_through=unbuffered,
        )
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)
    if environment.get("PYTHONDONTWRITEBYTECODE"):
        sys.dont_write_bytecode = True
    places = [place for place in environment.get("PYTHONPATH", "").split(os.pathsep) if place]
    sys.path[:] = [*map(os.path.abspath, places), *OWN_PATH]
    importlib.invalidate_caches()
    threads = environment.get("OMP_NUM_THREADS")
    if threads:
        sys.modules["torch"].set_num_threads(int(threads))
    sys.argv = arguments
    sys.orig_argv = [sys.executable, *arguments]
    sys.executable = PYTHON
    sys.meta_path.insert(0, Finder("torch"))
    for name in ("sitecustomize", __name__):
        sys.modules.pop(name, None)
    spec = PathFinder.find_spec("sitecustomize", sys.path)
    if spec is not None and spec.loader is not None:
        sys.modules["sitecustomize"] = module = module_from_spec(spec)
        spec.loader.exec_module(module)


def run(arguments: list[str]) -> None:
    """What the command line asks for, as `__main__`."""
    kind, *rest = arguments
    if kind == "-m":
        sys.path.insert(0, os.getcwd())
        sys.argv = ["-m", *rest[1:]]
        runpy._run_module_as_main(rest[0])  # type: ignore[attr-defined]
        return
    if os.path.isdir(kind):
        sys.path.insert(0, kind)
        runpy._run_module_as_main("__main__", alter_argv=False)  # type: ignore[attr-defined]
        return
    main = ModuleType("__main__")
    main.__dict__["__builtins__"] = sys.modules["builtins"]
    sys.modules["__main__"] = main
    if kind == "-c":
        sys.path.insert(0, "")
        sys.argv = ["-c", *rest[1:]]
        code = compile(rest[0], "<string>", "exec", dont_inherit=True)
    else:
        sys.path.insert(0, os.path.dirname(os.path.realpath(kind)))
        main.__file__ = file = os.path.abspath(kind)
        code = compile(Path(file).read_bytes(), file, "exec", dont_inherit=True)
    exec(code, main.__dict__)


def hidden(code: CodeType) -> CodeType:
    """The same code as a part of Python's own start, whose frames nobody lists."""
    return code.replace(co_filename="<frozen warm>")


def end(arguments: list[str]) -> int:
    """Run to the end, and end as a Python does; returns the exit code."""
    code = 0
    try:
        run(arguments)
    except SystemExit as error:
        code = 0 if error.code is None else error.code if isinstance(error.code, int) else 1
        if not isinstance(error.code, (int, type(None))):
            sys.stderr.write(f"{error.code}\n")
    except BaseException as error:
        shown = error.__traceback__
        while shown is not None and shown.tb_frame.f_code.co_filename.startswith("<frozen"):
            shown = shown.tb_next
        sys.last_type, sys.last_value, sys.last_traceback = type(error), error, shown
        sys.excepthook(type(error), error.with_traceback(shown), shown)
        code = -signal.SIGINT if isinstance(error, KeyboardInterrupt) else 1
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError):
            code = code or 120
    return code


def serve_one(connection: socket.socket) -> NoReturn:
    """Run one command line in a child of this process, and tell its number and how it ended."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    header, ancillary, *_ = connection.recvmsg(LENGTH.size, socket.CMSG_SPACE(12))
    files = array.array("i")
    files.frombytes(ancillary[0][2])
    text = connection.recv(LENGTH.unpack(header)[0], socket.MSG_WAITALL)
    child = os.fork()
    if not child:
        connection.close()
        for number, file in enumerate(files):
            os.dup2(file, number)
            os.close(file)
        wanted = json.loads(text)
        become(**wanted)
        code = end(wanted["arguments"])
        if code < 0:
            signal.signal(-code, signal.SIG_DFL)
            os.kill(os.getpid(), -code)
        exit_now(code & 0xFF)
    for file in files:
        os.close(file)
    connection.sendall(NUMBER.pack(child))
    connection.sendall(NUMBER.pack(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])))
    exit_now(0)


def serve() -> None:
    """Serve until the standard input of this process ends, which is when the tests do."""
    warm_up()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(ADDRESS)
        listening.listen(64)
        sys.stdout.write("ready\n")
        sys.stdout.flush()
        while True:
            readable, _, _ = select.select([0, listening.fileno()], [], [])
            if 0 in readable:
                return
            connection, _ = listening.accept()
            if not os.fork():
                listening.close()
                serve_one(connection)
            connection.close()


_FINDING = (Finder.find_spec, Loaded.create_module, Loaded.exec_module)
for function in (run, end, serve_one, serve, *_FINDING):
    function.__code__ = hidden(function.__code__)
