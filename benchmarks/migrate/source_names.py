"""Write the lists of names of packages that are not installed here, read from clones of their repositories.

    python benchmarks/migrate/source_names.py --torch-npu CLONE --op-plugin CLONE \
        --gaudi CLONE --tensorflow-adapter CLONE

writes `npu.txt`, `hpu.txt` and `npu_bridge.txt`. Sources are parsed, never run. The clones, in order:
Ascend/pytorch, Ascend/op-plugin, HabanaAI/gaudi-pytorch-bridge and Ascend/tensorflow (its branch `master`).
"""

from __future__ import annotations

import argparse
import ast
import datetime
import io
import re
import subprocess
import tarfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

import yaml

LISTS = Path(__file__).resolve().parents[2] / "packages/migrate/src/lockstep_migrate/names"

# What `generate_methods_for_privateuse1_backend` (torch_npu/_init/registry/backend.py) and
# torch_npu/utils/_module.py put on torch's own classes.
NPU_ON_TORCH = (
    "torch.Tensor.is_npu",
    "torch.Tensor.npu",
    "torch.UntypedStorage.is_npu",
    "torch.UntypedStorage.npu",
    "torch.nn.Module.npu",
    "torch.nn.utils.rnn.PackedSequence.is_npu",
    "torch.nn.utils.rnn.PackedSequence.npu",
    "torch.profiler.ProfilerActivity.NPU",
    "torch_npu.profiler.ProfilerActivity.CPU",
    "torch_npu.profiler.ProfilerActivity.NPU",
)


@dataclass(frozen=True)
class Clone:
    """A git repository at one revision."""

    directory: Path
    revision: str = "HEAD"

    def run(self, *command: str) -> bytes:
        """What git prints."""
        return subprocess.run(
            ["git", "-C", str(self.directory), *command], check=True, stdout=subprocess.PIPE
        ).stdout

    def stand(self) -> str:
        """Commit and its date, for the head of a list."""
        return self.run("log", "-1", "--format=%H of %cs", self.revision).decode().strip()

    def files(self, *paths: str) -> Iterator[tuple[str, bytes]]:
        """Path and content of every file below some paths."""
        archive = io.BytesIO(self.run("archive", "--format=tar", self.revision, *paths))
        with tarfile.open(fileobj=archive) as files:
            for member in files:
                content = files.extractfile(member)
                if content is not None:
                    yield member.name, content.read()


@dataclass
class Sources:
    """The modules of Python packages, by dotted name, and the public names that each of them has.

    Parameters
    ----------
    facades
        Modules whose imports from other packages count as theirs, because scripts take them from there.
    outside
        Packages whose names are listed as far as these sources import them.
    """

    facades: frozenset[str] = frozenset()
    outside: frozenset[str] = frozenset()
    modules: dict[str, ast.Module] = field(default_factory=dict)
    packages: set[str] = field(default_factory=set)
    _names: dict[str, set[str]] = field(default_factory=dict)

    def add(self, clone: Clone, folder: str, below: str) -> None:
        """Take in every module below `folder`, whose dotted names start at the folder `below`."""
        for path, content in clone.files(folder):
            if not path.endswith(".py"):
                continue
            parts = PurePosixPath(path).relative_to(below).with_suffix("").parts
            package = parts[-1] == "__init__"
            dotted = ".".join(parts[:-1] if package else parts)
            self.modules[dotted] = ast.parse(content)
            self.packages.update(".".join(parts[:end]) for end in range(1, len(parts)))

    def public(self) -> Iterator[str]:
        """Every public dotted name."""
        for dotted in {*self.modules, *self.packages}:
            if not any(part.startswith("_") for part in dotted.split(".")):
                yield dotted
                yield from (f"{dotted}.{name}" for name in self.names(dotted) if name[0] != "_")
        for tree in self.modules.values():
            for node in ast.walk(tree):
                if isinstance(node, ast.ImportFrom) and _root(node.module) in self.outside:
                    yield from (f"{node.module}.{alias.name}" for alias in node.names)

    def names(self, dotted: str) -> set[str]:
        """Names that a module has: what it defines, takes from these packages, and its submodules."""
        if dotted not in self._names:
            self._names[dotted] = found = set[str]()  # also ends a circle of imports
            found.update(
                name.removeprefix(f"{dotted}.")
                for name in {*self.modules, *self.packages}
                if name.startswith(f"{dotted}.") and name.count(".") == dotted.count(".") + 1
            )
            for statement in _statements(self.modules.get(dotted, ast.Module([], [])).body):
                found.update(self._bound(dotted, statement))
        return self._names[dotted]

    def _bound(self, dotted: str, statement: ast.stmt) -> Iterator[str]:
        match statement:
            case (
                ast.FunctionDef(name=name)
                | ast.AsyncFunctionDef(name=name)
                | ast.ClassDef(name=name)
            ):
                yield name
            case ast.Assign(targets=[ast.Name(id="__all__")], value=value):
                yield from _literals(value)
            case ast.Assign(targets=targets):
                yield from (target.id for target in targets if isinstance(target, ast.Name))
            case ast.AnnAssign(target=ast.Name(id=name)):
                yield name
            case ast.ImportFrom():
                yield from self._imported(dotted, statement)

    def _imported(self, dotted: str, statement: ast.ImportFrom) -> Iterator[str]:
        source = self._source(dotted, statement)
        own = source in self.modules or source in self.packages
        for alias in statement.names:
            if alias.name == "*" and own:
                yield from self._starred(source)
            elif alias.name != "*" and (own or dotted in self.facades):
                yield alias.asname or alias.name

    def _starred(self, source: str) -> Iterator[str]:
        for statement in _statements(self.modules[source].body):
            if isinstance(statement, ast.Assign) and _assigns(statement, "__all__"):
                names = list(_literals(statement.value))
                if names:
                    yield from names
                    return
        yield from (name for name in self.names(source) if name[0] != "_")

    def _source(self, dotted: str, statement: ast.ImportFrom) -> str:
        if not statement.level:
            return statement.module or ""
        parts = dotted.split(".")
        up = statement.level - (dotted in self.packages)
        base = parts[: len(parts) - up] if up else parts
        return ".".join([*base, *([statement.module] if statement.module else [])])


def main() -> None:
    """Write the three lists."""
    parser = argparse.ArgumentParser(description=__doc__)
    for option in ("--torch-npu", "--op-plugin", "--gaudi", "--tensorflow-adapter"):
        parser.add_argument(option, type=Path, required=True, metavar="CLONE")
    options = parser.parse_args()
    _write_npu(Clone(options.torch_npu), Clone(options.op_plugin))
    _write_hpu(Clone(options.gaudi))
    _write_npu_bridge(Clone(options.tensorflow_adapter, "master"))


def _write_npu(adapter: Clone, operators: Clone) -> None:
    sources = Sources()
    sources.add(adapter, "torch_npu", below=".")
    names = {name for name in sources.public() if not name.startswith("torch_npu.testing")}
    names.update(NPU_ON_TORCH)
    native = "torch_npu/csrc/aten/npu_native_functions.yaml"
    names.update(f"torch_npu.{name}" for name in _operators(adapter, native))
    plugin = "op_plugin/config/op_plugin_functions.yaml"
    names.update(f"torch_npu.{name}" for name in _operators(operators, plugin))
    names.update(_renamed(names, "torch_npu.npu", "torch.npu"))
    _write(
        "npu",
        f"Ascend/pytorch {adapter.stand()}, Ascend/op-plugin {operators.stand()}",
        "torch_npu for torch 2.13 to 2.15",
        names,
    )


def _write_hpu(bridge: Clone) -> None:
    sources = Sources()
    root = "python_packages"
    for package in ("__init__.py", "core", "distributed", "hpex", "hpu", "utils"):
        sources.add(bridge, f"{root}/habana_frameworks/torch/{package}", below=root)
    names = set(sources.public())
    # habana_frameworks/torch/core registers the module as torch.hpu; its graphs are there in lazy mode only.
    names.update(_renamed(names, "habana_frameworks.torch.hpu", "torch.hpu"))
    names.add("torch.profiler.ProfilerActivity.HPU")
    _write("hpu", f"HabanaAI/gaudi-pytorch-bridge {bridge.stand()}", "Intel Gaudi 1.19.0", names)


def _write_npu_bridge(adapter: Clone) -> None:
    sources = Sources(facades=frozenset({"npu_bridge.npu_init"}), outside=frozenset({"hccl"}))
    sources.add(adapter, "tf_adapter/python/npu_bridge", below="tf_adapter/python")
    sources.add(adapter, "tf_adapter_2.x/python/npu_device", below="tf_adapter_2.x/python")
    names = set(sources.public())
    # `npu_device/__init__.py` takes the names of its private `_api` packages as its own.
    for package in ("compat", "configs", "distribute", "ops", "train"):
        names.add(f"npu_device.{package}")
        names.update(
            f"npu_device.{package}.{name}" for name in sources.names(f"npu_device._api.{package}")
        )
    names.update(
        f"npu_device.compat.v1.{name}" for name in sources.names("npu_device._api.compat.v1")
    )
    names.update(
        f"npu_device.train.optimizer.{name}"
        for name in sources.names("npu_device._api.train.optimizer")
    )
    # Building npu_device makes npu_device.compat.v1 out of npu_bridge (compat_v1/upgrade_tf1_compat_tf2.py), without
    # the two modules of loss scaling.
    names.update(
        name
        for name in _renamed(names, "npu_bridge", "npu_device.compat.v1")
        if "npu_loss_scale" not in name and not name.endswith("LossScaleManager")
    )
    # Operators that the library in C++ registers are functions of the modules made from it.
    for operator in _registered(adapter, "tf_adapter/ops"):
        names.add(f"npu_bridge.estimator.npu_unary_ops.npu_unary_ops.{operator}")
        names.add(f"npu_bridge.npu_init.npu_unary_ops.{operator}")
    names = {name for name in names if not any(part[0] == "_" for part in name.split("."))}
    _write(
        "npu_bridge",
        f"Ascend/tensorflow {adapter.stand()}",
        "npu_bridge for TensorFlow 1.15, npu_device for 2.6",
        names,
    )


def _operators(clone: Clone, path: str) -> Iterator[str]:
    """Names of the operators that torch.ops.npu gains: the custom ones of a function table."""
    ((_, content),) = clone.files(path)
    for entry in yaml.safe_load(content)["custom"]:
        name = entry["func"].split("(")[0].split(".")[0].strip()
        if not name.startswith("_"):
            yield name


def _registered(clone: Clone, folder: str) -> Iterator[str]:
    """Python names of the operators that C++ sources register with TensorFlow."""
    for path, content in clone.files(folder):
        if path.endswith(".cc"):
            for name in re.findall(rb'REGISTER_OP\("(\w+)"\)', content):
                words = re.sub(
                    r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", name.decode()
                )
                yield words.lower()


def _renamed(names: Iterable[str], old: str, new: str) -> list[str]:
    return [new + name[len(old) :] for name in names if name == old or name.startswith(f"{old}.")]


def _statements(body: Iterable[ast.stmt]) -> Iterator[ast.stmt]:
    """Statements that run when a module is imported, those within `if`, `try` and `with` included."""
    for statement in body:
        yield statement
        for part in ("body", "orelse", "finalbody", "handlers"):
            if isinstance(statement, ast.If | ast.Try | ast.With | ast.ExceptHandler):
                yield from _statements(getattr(statement, part, ()))


def _literals(value: ast.expr) -> Iterator[str]:
    for node in ast.walk(value):
        if (
            isinstance(node, ast.Constant)
            and isinstance(node.value, str)
            and node.value.isidentifier()
        ):
            yield node.value


def _assigns(statement: ast.Assign, name: str) -> bool:
    return any(isinstance(target, ast.Name) and target.id == name for target in statement.targets)


def _root(module: str | None) -> str:
    return (module or "").split(".")[0]


def _write(target: str, source: str, version: str, names: Iterable[str]) -> None:
    ordered = sorted(names)
    header = (
        f"# Source: {source}\n"
        f"# Version: {version}\n"
        f"# Date: {datetime.date.today()}\n"
        "# Made by benchmarks/migrate/source_names.py: parsed, not run.\n"
    )
    (LISTS / f"{target}.txt").write_text(header + "\n".join(ordered) + "\n")
    print(f"{target}.txt: {len(ordered)} names")


if __name__ == "__main__":
    main()
