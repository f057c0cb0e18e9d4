"""What a project defines itself: methods, flags, keys, and names that its modules only pass on."""

from __future__ import annotations

import ast
from pathlib import PurePosixPath

import pytest

from lockstep_migrate.engine.own_names import OwnNames, merged_own, own_names


def own(code: str, path: str = "module.py") -> OwnNames:
    return own_names(ast.parse(code), PurePosixPath(path))


@pytest.mark.parametrize(
    "code",
    [
        "p.add_argument('--cuda')",
        "p.add_argument('-cuda')",
        "args.cuda = True",
        "class A:\n    cuda: bool = True",
        "class A:\n    cuda = True",
        "config = {'cuda': True}",
        "A(cuda=True)",
    ],
)
def test_flags_fields_keys_and_keywords_are_attributes_of_the_projects_own(code: str) -> None:
    assert own(code).attributes == {"cuda"}


@pytest.mark.parametrize(
    "code",
    [
        "x.cuda()",
        "x = args.cuda",
        "p.add_argument('cuda is used')",
        "p.add_argument('--no-cuda')",
        "cuda = 1",
    ],
)
def test_uses_define_nothing(code: str) -> None:
    found = own(code)
    assert not found.attributes | found.keys | found.carriers | found.device_modules
    assert not found.methods


@pytest.mark.parametrize(
    ("code", "field", "names"),
    [
        ("cuda_on = 1", "given", {"cuda_on"}),
        ("def f(use_cuda): pass", "given", {"use_cuda"}),
        ("p.add_argument('--no-cuda')", "given", {"no_cuda"}),
        ("x['cuda'] = 1", "keys", {"cuda"}),
        ("x = {'cuda': 1}", "keys", {"cuda"}),
        ("x.update(cuda=1)", "keys", {"cuda"}),
        ("print(x['cuda'], x.is_cuda)", "asked", {"cuda", "is_cuda"}),
        ("p.add_argument('--mover', default='cuda')", "carriers", {"mover"}),
        ("self.place = 'cuda:0' if on else 'cpu'", "carriers", {"place"}),
        ("self.lib = torch.cuda", "device_modules", {"lib"}),
        ("import torch as th\nlib = th.cuda if on else None", "device_modules", {"lib"}),
        ("from torch import cuda as lib", "device_modules", {"lib"}),
        ("import torch.cuda as lib", "device_modules", {"lib"}),
        ("lib = import_module('torch.cuda')", "device_modules", {"lib"}),
        ("lib = vars(torch)['cuda']", "device_modules", {"lib"}),
        ("lib = torch.GradScaler('cuda')", "device_modules", set()),
    ],
)
def test_what_the_project_gives_and_asks_for(code: str, field: str, names: set[str]) -> None:
    assert getattr(own(code), field) == names


def test_methods_are_known_with_their_classes() -> None:
    code = "class A:\n  def cuda(self): pass\n  def other(self): pass\nclass B:\n  def is_cuda(self): pass\n"
    assert own(code).methods == {"cuda": frozenset({"A"}), "is_cuda": frozenset({"B"})}
    assert own("def cuda(): pass").methods == {}


def test_what_a_module_passes_on_is_known_under_every_name_of_it() -> None:
    exports = own("from torch.cuda.amp import autocast as ac\n", "src/lib/utils.py").exports
    assert exports == {
        "src.lib.utils.ac": "torch.cuda.amp.autocast",
        "lib.utils.ac": "torch.cuda.amp.autocast",
        "utils.ac": "torch.cuda.amp.autocast",
    }


def test_a_package_passes_on_under_its_folder() -> None:
    exports = own("from torch.cuda.amp import autocast\n", "lib/__init__.py").exports
    assert exports == {"lib.autocast": "torch.cuda.amp.autocast"}


def test_what_several_modules_define_is_merged() -> None:
    first = own("class A:\n    def cuda(self): pass\n")
    second = own("class B:\n    def cuda(self): pass\nargs.cuda = 1\n")
    passed = own("from torch import nn\n", "a/main.py"), own("from torch import nn\n", "b/main.py")
    merged = merged_own([first, second, *passed])
    assert merged.exports.keys() >= {"main.nn", "a.main.nn", "b.main.nn"}
    assert merged.methods == {"cuda": frozenset({"A", "B"})}
    assert merged.attributes == {"cuda"}
