"""The counter that the migration is held against: what it counts, where, and what it must not count."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from types import ModuleType

import pytest

_FOLDER = Path(__file__).parents[3] / "benchmarks" / "migrate"


def _load(name: str) -> ModuleType:
    """A module of the benchmark, which is no package: its folder is put on the path when it runs."""
    spec = importlib.util.spec_from_file_location(f"bench_migrate_{name}", _FOLDER / f"{name}.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


counter = _load("counter")
emitted = _load("emitted")


def _found(code: str) -> list[tuple[int, int, str]]:
    return [(site.line, site.column, site.text) for site in counter.python_sites(code)]


@pytest.mark.parametrize(
    ("code", "text"),
    [
        ("torch.cuda.synchronize()\n", "cuda"),
        ("x = x.cuda()\n", "cuda"),
        ("if x.is_cuda: pass\n", "is_cuda"),
        ("x.to('cuda:0')\n", "cuda"),
        ("f(args.use_cuda)\n", "use_cuda"),
        ("torch.load(p, map_location=m)\n", "map_location"),
        ("DataLoader(d, pin_memory=True)\n", "pin_memory"),
        ("x = x.pin_memory()\n", "pin_memory"),
        ("with amp.scale_loss(l, o) as s: pass\n", "amp"),
        ("import pynvml\n", "pynvml"),
        ("init(backend='nccl')\n", "nccl"),
        ("os.environ['NCCL_P2P_DISABLE'] = '1'\n", "NCCL_P2P_DISABLE"),
        ("load(sources=['a/b_kernel.cu'])\n", "a/b_kernel.cu"),
        ("x = lambda: 'cuda'\n", "cuda"),
        ("@triton.jit\ndef f(): pass\n", "triton"),
        ("set_float32_matmul_precision('high')\n", "set_float32_matmul_precision"),
    ],
)
def test_a_place_that_names_the_device_is_counted_where_it_stands(code: str, text: str) -> None:
    # Given one line of code that names CUDA, when it is counted, then its text stands at the place that is given.
    line, column, first = _found(code)[0]
    assert first == text
    assert code.splitlines()[line - 1][column - 1 :].startswith(text)


@pytest.mark.parametrize(
    "code",
    [
        "x = 1  # torch.cuda\n",
        '"""Runs on cuda."""\n',
        'def f():\n    """Runs on cuda."""\n',
        "x.to(device)\n",
        "model.amp.x\n",
        "map_location\n",
        "device_ids = [0]\n",
        "def load(path, map_location=None, pin_memory=True): pass\n",
        "pynvml = 1\n",
        "capex = 'capex'\n",
    ],
)
def test_comments_prose_and_neutral_code_are_not_counted(code: str) -> None:
    assert _found(code) == []


def test_the_second_line_of_a_long_string_is_placed_on_its_own_line() -> None:
    # Given a string over two lines, when it names CUDA on the second, then line and column are those of the second.
    assert _found("x = '''one\n two cuda'''\n") == [(2, 6, "cuda")]


def test_words_within_f_strings_are_counted_whatever_python_makes_of_them() -> None:
    assert _found("x = f'{{}} cuda:{n}'\n") == [(1, 12, "cuda")]
    assert _found("x = f'{torch.cuda.x} {y}'\n") == [(1, 14, "cuda")]


def test_a_shell_line_is_counted_without_its_comment() -> None:
    sites = counter.plain_sites("# cuda\nCUDA_VISIBLE_DEVICES=0 python a.py  # nccl\n")
    assert [(site.line, site.column, site.text) for site in sites] == [
        (2, 1, "CUDA_VISIBLE_DEVICES")
    ]


@pytest.mark.parametrize("indent", [None, 1])
@pytest.mark.parametrize("source", ["x = 'ä\"'\nm.cuda()\n", ["x = 'ä\"'\n", "m.cuda()\n"]])
@pytest.mark.parametrize("ascii_only", [True, False])
def test_a_notebooks_sites_are_placed_in_its_json_text(
    indent: int | None, source: object, ascii_only: bool
) -> None:
    # Given a notebook that names CUDA in a heading, in code and in an output
    cells = [
        {"cell_type": "markdown", "source": ["cuda"]},
        {"cell_type": "code", "source": source, "outputs": [{"text": "cuda"}]},
    ]
    text = json.dumps({"cells": cells}, indent=indent, ensure_ascii=ascii_only)
    # when it is counted, then the code alone counts, and it is found in the text
    (site,) = counter.notebook_sites(text)
    assert text.split("\n")[site.line - 1][site.column - 1 :].startswith("cuda()")


def test_a_name_that_the_target_lacks_is_found_and_one_that_it_has_is_not() -> None:
    before = "import torch\nx.cuda()\n"
    good = "import torch\nimport torch_npu\ntorch.npu.synchronize()\n"
    assert emitted.missing(before, good, "npu") == []
    assert emitted.missing(before, good, "xpu") == ["torch.npu.synchronize"]
    wrong = "from torch import accelerator as a\na.flush_everything()\n"
    assert emitted.missing(before, wrong, "neutral") == ["torch.accelerator.flush_everything"]


def test_a_name_that_was_there_before_is_not_held_against_the_migration() -> None:
    old = "import torch\ntorch.cuda.flush_everything()\n"
    assert emitted.missing(old, old + "torch.zeros(1)\n", "neutral") == []
