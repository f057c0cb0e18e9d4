"""What a migrated module needs at its head stands behind its imports, before its first use, once."""

from __future__ import annotations

import ast
from collections.abc import Callable
from typing import Any

import pytest
import torch
from migrating import TARGETS, migrated, new_warnings


def names_defined(code: str) -> list[str]:
    """What the helper at the head defines, in order."""
    return [
        part.name
        for node in ast.parse(code).body
        if isinstance(node, ast.ClassDef)
        for part in node.body
        if isinstance(part, ast.FunctionDef | ast.ClassDef)
    ]


def device_function() -> Callable[..., object]:
    namespace: dict[str, Any] = {}
    exec(compile(migrated("import torch\nx = torch.ones(1).cuda()\n"), "script", "exec"), namespace)
    function: Callable[..., object] = namespace["accelerator"].device
    return function


def test_nothing_is_added_that_is_not_used() -> None:
    assert migrated("import torch\ntorch.cuda.is_available()\n") == (
        "import torch\ntorch.accelerator.is_available()\n"
    )
    assert names_defined(migrated("import torch\nif x.is_cuda: pass\n")) == ["device_type"]
    assert names_defined(migrated("import torch\nx.cuda()\n")) == ["device_type", "device"]


def test_the_function_names_the_device_there_is() -> None:
    device = device_function()
    there = torch.accelerator.current_accelerator()
    kind = there.type if there is not None and torch.accelerator.is_available() else "cpu"
    for given in ((), (None,), (0,), ("0",)):
        assert torch.device(device(*given)).type == kind  # type: ignore[call-overload]


def test_the_function_takes_a_device_as_it_is() -> None:
    device = device_function()
    assert device("cpu") == "cpu"
    assert device(torch.device("cpu")) == torch.device("cpu")


@pytest.mark.parametrize("taken", ["def accelerator(): pass", "x = accelerator"])
def test_names_that_are_taken_are_not_taken_again(taken: str) -> None:
    code = f"import torch\naccelerator = 1\n{taken}\nx = torch.ones(1).cuda()\n"
    after = migrated(code)
    assert "class accelerator_helper:" in after
    assert after.endswith(
        code[len("import torch\n") :].replace("cuda()", "to(accelerator_helper.device())")
    )


@pytest.mark.parametrize(
    "code",
    [
        '"""Doc."""\nfrom __future__ import annotations\nimport torch\nx = torch.ones(1).cuda()\n',
        "#!/usr/bin/env python\n# coding: utf-8\nimport torch\nx = torch.ones(1).cuda()\n",
        "import torch\nx = torch.ones(1).cuda()\nimport os\nprint(os)\n",
        "try:\n    import torch\nexcept ImportError:\n    raise\nx = torch.ones(1).cuda()\n",
        "if True:\n    import torch\nx = torch.ones(1).cuda()\n",
        "def f():\n    import torch\n    return torch.ones(1).cuda()\nf()\n",
        "import torch as th\nx = th.ones(1).cuda()\n",
        "from torch import ones\nx = ones(1).cuda()\n",
        "import torch; x = torch.ones(1).cuda()\n",
        "import torch; x = [\n1]\ny = torch.ones(1).cuda()\n",
        "import torch;\nx = torch.ones(1).cuda()\n",
        "import torch  # why\nx = torch.ones(1).cuda()\n",
        "import os; import torch\nx = torch.ones(1).cuda()\n",
        "import typing\nif typing.TYPE_CHECKING:\n    import torch\ndef f(x: 'torch.Tensor'): return x.cuda()\n",
        "@staticmethod\ndef f(x):\n    return x.cuda()\n",
        "import torch\n@torch.cuda.amp.autocast(enabled=False)\ndef f(x):\n    return x.cuda()\n",
        "import torch\nclass A:\n    x = torch.ones(1).cuda()\n",
        "import torch\ndef f(x=torch.ones(1).cuda()): pass\n",
        "import torch\n\n\n\nx = torch.ones(1).cuda()",
        "\n\n# a comment\nimport torch\n# another\n\n\ndef f(x):\n    return x.cuda()\n",
    ],
)
@pytest.mark.parametrize("line_end", ["\n", "\r\n"])
def test_the_head_stands_before_its_first_use_and_the_module_runs(code: str, line_end: str) -> None:
    code = code.replace("\n", line_end)
    after = migrated(code)
    exec(compile(after, "script", "exec", dont_inherit=True), {"__name__": "script"})
    assert migrated(after) == after
    assert ast.get_docstring(ast.parse(after)) == ast.get_docstring(ast.parse(code))
    if line_end == "\r\n":
        assert after.count("\n") == after.count("\r\n")


@pytest.mark.parametrize("target", TARGETS)
def test_a_module_that_has_its_head_gains_what_is_new_only(target: str) -> None:
    # given a migrated module to which a person adds one more line for CUDA
    once = migrated("import torch\nx = torch.ones(1).cuda()\n", target)
    grown = once + "y = x.cuda()\nif y.is_cuda: pass\n"
    # when it is migrated again
    after = migrated(grown, target)
    # then only that line changes, and the helper gains the function that it needs
    kept = [line for line in after.splitlines() if line in once.splitlines()]
    assert kept == once.splitlines()
    assert new_warnings(grown, after) == []


@pytest.mark.parametrize("target", ["npu", "hpu"])
def test_the_devices_own_module_is_imported_once_and_only_where_needed(target: str) -> None:
    module = {"npu": "torch_npu", "hpu": "habana_frameworks.torch.core"}[target]
    assert migrated("import torch\nx.cuda()\n", target).count(f"import {module}  # noqa") == 1
    already = f"import torch\nimport {module}\nx.cuda()\n"
    assert migrated(already, target).count(f"import {module}\n") == 1
    assert module not in migrated("import torch\nx.to(device)\n", target)
