"""Imports of names that move: rewritten, split or removed; nothing is imported that is gone or not used."""

from __future__ import annotations

import pytest
from migrating import TARGETS, listed, migrated, new_warnings, rewritten


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (
            "from torch.cuda.amp import autocast, GradScaler\nautocast(); GradScaler()\n",
            (
                "from torch.amp import autocast, GradScaler\n"
                "autocast(ACCELERATOR); GradScaler(ACCELERATOR)\n"
            ),
        ),
        (
            "from torch.cuda.amp import (\n    autocast as ac,  # why\n)\nac()\n",
            "from torch.amp import (\n    autocast as ac,  # why\n)\nac(ACCELERATOR)\n",
        ),
        (
            "from torch.cuda import amp\namp.GradScaler()\n",
            "from torch import amp\namp.GradScaler(ACCELERATOR)\n",
        ),
        (
            "import torch.cuda.amp as amp\namp.GradScaler()\n",
            "import torch.amp as amp\namp.GradScaler(ACCELERATOR)\n",
        ),
        ("import torch\nimport torch.cuda\n", "import torch\n"),
        ("import torch.cuda\nx = torch.zeros(1)\n", "import torch\nx = torch.zeros(1)\n"),
        (
            "from torch import cuda, nn\nnn.Linear(1, 1)\ncuda.is_available()\n",
            "from torch import nn\nnn.Linear(1, 1)\ntorch.accelerator.is_available()\n",
        ),
        (
            "def f():\n    from torch import cuda\n    return cuda.is_available()\n",
            "def f():\n    return torch.accelerator.is_available()\n",
        ),
        (
            "try:\n    from torch.cuda.amp import autocast\nexcept ImportError:\n    autocast = None\n",
            "try:\n    from torch.amp import autocast\nexcept ImportError:\n    autocast = None\n",
        ),
        (
            "import torch; import torch.cuda; torch.cuda.is_available()\n",
            "import torch; pass; torch.accelerator.is_available()\n",
        ),
    ],
)
def test_neutral(before: str, after: str) -> None:
    assert rewritten(before) == after


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("from torch import cuda\ncuda.synchronize()\n", "from torch_npu import npu as cuda\ncuda.synchronize()\n"),
        ("import torch.cuda as c\nc.synchronize()\n", "import torch_npu.npu as c\nc.synchronize()\n"),
        ("from torch.cuda.amp import autocast\nautocast()\n", "from torch_npu.npu.amp import autocast\nautocast()\n"),
    ],
)  # fmt: skip
def test_npu(before: str, after: str) -> None:
    assert rewritten(before, "npu") == after


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize(
    "code",
    [
        "import torch\n",
        "from torch import nn, optim\n",
        "import torch.nn as nn\nimport numpy as np\n",
        "from mylib import cuda\ncuda.go()\n",
        "from .cuda import kernel\nkernel()\n",
        "import apexcharts\n",
    ],
)
def test_other_imports_stay(code: str, target: str) -> None:
    assert migrated(code, target) == code


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize(
    "code",
    [
        "from torch.cuda.amp import autocast, GradScaler\nautocast()\nGradScaler()\n",
        "from torch import cuda\ncuda.is_available()\ncuda.synchronize()\n",
        "import torch.cuda as tc\ntc.is_available()\ntc.nvtx.range_push('x')\n",
        "from torch.cuda import is_available as ok, synchronize\nok()\nsynchronize()\n",
        "import os\nfrom torch import cuda\n\n\ndef f(x):\n    return x.cuda() if cuda.is_available() else x\n",
        "def f():\n    import torch\n    return torch.zeros(1).cuda()\n",
        "def f():\n    import torch as th\n    return th.cuda.is_available(), th.zeros(1).cuda()\n",
        "import torch; x = [\n1]\ny = torch.zeros(1).cuda()\n",
        "import os; import torch; x = [\n os,\n torch.cuda.is_available()]\n",
    ],
)
def test_nothing_is_left_over_or_missing(code: str, target: str) -> None:
    assert new_warnings(code, migrated(code, target)) == []


def test_an_import_that_some_uses_still_need_stays_and_is_listed() -> None:
    code = "from torch import cuda\ncuda.is_available()\ncuda.cudart()\n"
    assert rewritten(code).startswith("from torch import cuda\n")
    assert listed(code) == ["from torch import cuda", "cuda.cudart"]


def test_what_other_modules_import_from_here_stays_importable() -> None:
    code = '__all__ = ["cuda"]\nfrom torch import cuda\ncuda.is_available()\n'
    assert "from torch import cuda\n" in rewritten(code)
