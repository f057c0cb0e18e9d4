"""Runs migrated TensorFlow scripts against stand-ins, and tells what they called.

TensorFlow and the NPU's packages are not installed. The stand-in for an NPU package has the listed names and no other,
so that a script which calls a name that does not exist fails as on the device. Horovod is not there at all.
"""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from pathlib import Path, PurePosixPath

from lockstep_migrate.engine.scopes import ModuleScopes
from lockstep_migrate.engine.text import read_python
from lockstep_migrate.plan import FilePlan, Outcome
from lockstep_migrate.tensorflow import Generation, Start, tensorflow_mentions

_RUNNER = '''
import importlib.abc, importlib.machinery, json, sys, types
from lockstep_migrate.names import names_of

LISTED = names_of("npu_bridge")
ROOTS = ("tensorflow", "npu_bridge", "npu_device", "hccl")
RESULTS = {
    "get_npu_rank_id": 0, "get_npu_rank_size": 8, "get_npu_local_rank_id": 0,
    "get_npu_local_rank_size": 8, "worker_id": 0, "workers_num": 8,
}
calls = []


def exists(name):
    root = name.split(".")[0]
    return root in ("tensorflow",) or name in LISTED or "()" in name


class Thing:
    """Anything: has every attribute, can be called, entered and counted."""

    def __init__(self, name):
        self.__dict__["name"] = name

    def __getattr__(self, attribute):
        if attribute.startswith("__"):
            raise AttributeError(attribute)
        return make(self.name + "." + attribute)

    def __call__(self, *arguments, **keywords):
        calls.append([self.name, [show(a) for a in arguments], {k: show(v) for k, v in keywords.items()}])
        result = RESULTS.get(self.name.rpartition(".")[2])
        return Thing(self.name + "()") if result is None else result

    def __iter__(self):
        return iter([Thing(self.name + "[0]"), Thing(self.name + "[1]")])

    def __enter__(self):
        return self

    def __exit__(self, *error):
        return False

    def __getitem__(self, key):
        return Thing(self.name + "[]")

    def __mro_entries__(self, bases):
        return (object,)


def make(name):
    root = name.split(".")[0]
    if not exists(name):
        raise AttributeError(name + " is not listed")
    result = RESULTS.get(name.rpartition(".")[2])
    return result if isinstance(result, int) and "()" in name else Thing(name)


def show(value):
    if isinstance(value, Thing):
        return value.name
    return value if isinstance(value, (int, float, str, bool, type(None))) else type(value).__name__


class Module(types.ModuleType):
    __path__ = []

    def __getattr__(self, attribute):
        if attribute.startswith("__"):
            raise AttributeError(attribute)
        return make(self.__name__ + "." + attribute)


class Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] not in ROOTS or not exists(name):
            return None
        return importlib.machinery.ModuleSpec(name, self, is_package=True)

    def create_module(self, spec):
        return Module(spec.name)

    def exec_module(self, module):
        pass


sys.meta_path.insert(0, Finder())
sys.modules["horovod"] = None
import atexit
source = sys.stdin.read()
namespace = {"__name__": "__main__"}
atexit.register(lambda: print(json.dumps(calls)))
exec(compile(source, "script.py", "exec"), namespace)
'''


def plan_of(
    code: str, generation: Generation | None = None, start: Start | None = None
) -> FilePlan:
    """The plan for a script."""
    source = read_python(code.encode())
    scopes = ModuleScopes(source, ast.parse(source.text))
    mentions, additions = tensorflow_mentions(scopes, generation, start)
    return FilePlan(PurePosixPath("script.py"), source, mentions, additions)


def migrated(code: str, generation: Generation | None = None) -> str:
    """The script for the NPU; it parses, and a second run finds nothing to change in it."""
    text = plan_of(code, generation).migrated().decode()
    ast.parse(text)
    assert plan_of(text, generation).migrated().decode() == text
    return text


def outcomes(code: str, generation: Generation | None = None) -> dict[str, Outcome]:
    """The rules that recorded something, each with its last outcome."""
    return {
        mention.rule.removeprefix("tensorflow/"): mention.outcome
        for mention in plan_of(code, generation).mentions
    }


def calls_of(
    code: str, generation: Generation | None = None
) -> list[tuple[str, list[object], dict[str, object]]]:
    """What the migrated script calls when it runs: names, arguments and keywords in order."""
    result = subprocess.run(
        [sys.executable, "-c", _RUNNER],
        input=migrated(code, generation),
        capture_output=True,
        text=True,
        cwd=Path(__file__).parent,
    )
    assert result.returncode == 0, result.stderr
    return [tuple(call) for call in json.loads(result.stdout.splitlines()[-1])]
