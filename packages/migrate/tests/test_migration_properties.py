"""Whatever a script is made of: it parses after, a second run changes nothing, and the rest of its text stays."""

from __future__ import annotations

import ast
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from migrating import TARGETS, new_warnings, plan_of_code

IMPORTS = [
    "import torch",
    "import torch as th",
    "import torch.cuda",
    "import torch.cuda as tc",
    "from torch import cuda",
    "from torch import cuda as c, nn",
    "import torch, os",
    "from torch.cuda.amp import autocast, GradScaler",
    "from torch.cuda.amp import (\n    autocast,  # é\n)",
    "from torch.cuda import amp",
    "from apex import amp as apex_amp",
    "import os; import sys",
    "try:\n    import torch\nexcept ImportError:\n    pass",
    "if x:\n    import torch.cuda",
    "import torch.distributed as dist",
    "from . import cuda_ops",
    "from lib import *",
    "from torch.cuda import synchronize as wait, is_available",
]
LINES = [
    "s = f\"{d == 'cuda:0'} {init('cpu:gloo,cuda:nccl')}\"",
    "d = ('cpu', 'cuda')[x]",
    "x = y.cuda()",
    "x = y.cuda( 0 , non_blocking = True )",
    "x = (y\n     .cuda()  # why\n     .z)",
    "s = f'{x.cuda():>{w}} é {y!r} {\"a\"}'",
    "s = f'''{x\n.cuda()} {{}}'''",
    "s = f'{torch.cuda.device_count()=}'",
    "d = 'é' + 'cuda'",
    "d = f'cuda:{rank}'",
    "d = 'cuda:%d' % rank",
    "if x.is_cuda and y: pass",
    "torch.cuda.synchronize(); x = 1",
    "with autocast():\n\tpass",
    "with autocast(x), GradScaler() as s: pass",
    "@torch.cuda.amp.custom_fwd\ndef f(x): return x",
    "@decorated\nclass A(B):\n  cuda = 1\n  def f(self): return self.cuda",
    "async def g(cuda=torch.cuda.is_available()):\n    await x.cuda()",
    "f = lambda x=torch.cuda.is_available(): x.cuda()",
    "z = [t.cuda() for t in u if (n := t.is_cuda)]",
    "z = {k: v.cuda() for k, v in w.items()}",
    "def h():\n    import torch\n    return torch.zeros(1).cuda()",
    "def k(torch): return torch.cuda",
    "def m():\n    global q\n    q = torch.cuda",
    "q.empty_cache()",
    "x = 1 if torch.cuda.is_available() else \\\n  2",
    "dist.init_process_group(backend='nccl')",
    "b = 'cpu:gloo,cuda:nccl'",
    "t = torch.cuda.FloatTensor(3)",
    "torch.backends.cudnn.benchmark = True",
    "os.environ['CUDA_VISIBLE_DEVICES'] = '0'",
    "del x, y",
    "match d:\n    case 'cuda': pass\n    case torch.cuda.X: pass",
    "x = torch.load(p, map_location='cuda')",
    "print('cuda', x)",
    "while not x.is_cuda: break",
    "return_ = 'cuda:' 'x'",
    "x = -y.is_cuda",
    "assert x.is_cuda, 'é'",
    "x = y if 'cuda'in z else'cuda'",
    "tc.synchronize(device=tc.current_device())",
    "wait(); c.empty_cache()",
    "ACCELERATOR = 1",
    "accelerator = None",
    "raise ValueError('cuda')",
    "x = y.cuda(*a)",
    "x = y.cuda(\n  # é\n  i,\n)",
    "p(default='cuda', choices=['cuda', 'cpu'])",
    "th.cuda.Stream()",
]
PLAIN = [
    "x = 1",
    "def f(a, b=2, *c, **d):\n    return a",
    "s = f'{x!r:>{w}} é'",
    "class A:\n\ty = 1  # é",
    "x = y.to(device)",
    "import torch",
    "from torch import nn",
    "x = [i for i in y if i]",
    "if x:\n  pass\nelse:\n  y = 'ü'",
    "z = x \\\n  + 1",
]
ENDS = st.sampled_from(["\n", "\r\n", "\n\n", "  # é\n", " ;\n", "\n\t\n"])


def scripts(pieces: list[str], heads: list[str]) -> st.SearchStrategy[str]:
    """Scripts of a few pieces, each with its own line end; all line ends alike."""
    statement = st.tuples(st.sampled_from(pieces), ENDS)
    head = st.tuples(st.sampled_from(heads), ENDS)
    parts = st.tuples(st.lists(head, max_size=3), st.lists(statement, max_size=5), st.booleans())
    return parts.map(_joined).filter(_parses)


def _joined(parts: tuple[list[tuple[str, str]], list[tuple[str, str]], bool]) -> str:
    heads, body, windows = parts
    text = "".join(piece + end for piece, end in [*heads, *body]).replace("\r\n", "\n")
    return text.replace("\n", "\r\n") if windows else text


def _parses(code: str) -> bool:
    try:
        compile(code, "script", "exec", ast.PyCF_ONLY_AST)
    except SyntaxError:
        return False
    return True


SCRIPTS = scripts(LINES, IMPORTS)


@given(SCRIPTS, st.sampled_from(TARGETS))
def test_a_script_parses_after_and_a_second_run_changes_nothing(code: str, target: str) -> None:
    once = plan_of_code(code, target).migrated()
    ast.parse(once)
    assert plan_of_code(once, target).migrated() == once


@given(SCRIPTS, st.sampled_from(TARGETS))
def test_what_is_outside_the_edits_stays(code: str, target: str) -> None:
    plan = plan_of_code(code, target)
    after, position = plan.migrated().decode(), 0
    start = 0
    for edit in plan.edits:
        untouched = code[start : edit.span.start]
        assert after[position:].startswith(untouched + edit.text)
        position += len(untouched) + len(edit.text)
        start = edit.span.end
    assert after[position:] == code[start:]


@given(SCRIPTS, st.sampled_from(TARGETS))
def test_a_file_that_changes_says_why(code: str, target: str) -> None:
    plan = plan_of_code(code, target)
    rewritten = [m for m in plan.mentions if m.outcome.is_change]
    assert plan.changed == bool(rewritten)
    assert all(mention.reason for mention in plan.mentions)


@given(scripts(PLAIN, PLAIN), st.sampled_from(TARGETS))
def test_without_words_of_the_device_nothing_changes(code: str, target: str) -> None:
    plan = plan_of_code(code, target)
    assert plan.migrated() == code.encode()
    assert plan.mentions == ()


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize(
    "code",
    [
        "import torch\nx = " + "(" * 100 + "y.cuda()" + ")" * 100,
        "import torch\nx = y" + ".f()" * 300 + ".cuda()",
        "import torch\nx = y" + ".cuda" * 600,
        "import torch\nx = " + " + ".join(["torch.cuda.device_count()"] * 300),
        "import torch\n" + "x = y.cuda(); " * 2000,
        "import torch\n" + "".join(" " * depth + "if x.is_cuda:\n" for depth in range(80)) + " " * 80 + "pass",
        "import torch\nx = 'é' + " + " + ".join(["'cuda'"] * 200),
    ],
)  # fmt: skip
def test_deep_and_long_code_is_migrated_too(code: str, target: str) -> None:
    ast.parse(plan_of_code(code, target).migrated())


def test_what_python_finds_too_deep_is_said_so() -> None:
    with pytest.raises(SyntaxError):
        plan_of_code("x = " + "(" * 5000 + "'cuda'" + ")" * 5000)


def test_warnings_stay_as_they_were_in_a_script_of_every_line() -> None:
    code = "\n".join(["import torch", "import torch.distributed as dist", *LINES[:5]]) + "\n"
    assert new_warnings(code, plan_of_code(code).migrated().decode()) == []


_PIECES = st.sampled_from(
    [
        "torch.cuda.synchronize()", "x = 'cuda'", "y.cuda()", "def cuda_f(a, cuda=1): return cuda",
        "from a.cuda import b", "import nvidia.dali as dali", "z = x.cuda_stream", "f(is_cuda=x.is_cuda)",
        "class Cuda(x.Cuda): pass", "os.environ['NCCL_X'] = '1'", "k = {'cuda': cuda}", "print('no cuda')",
        "from torch import cuda as c", "c.empty_cache()", "del x.cuda", "x.cuda = lambda cuda: cuda",
        "torch.backends.cudnn.benchmark = True", "w = f'{cuda} cuda:{x}'", "torch.nccl.x(nccl='nccl')",
    ]
)  # fmt: skip
_WORD = re.compile(r"\w*(?:cuda|nccl|nvidia|cudnn)\w*", re.IGNORECASE)


@given(st.lists(_PIECES, min_size=1, max_size=6), st.sampled_from(TARGETS))
def test_every_word_that_names_the_device_lies_in_a_mention(lines: list[str], target: str) -> None:
    # given a script of lines that name the device in every way
    code = "import torch\n" + "\n".join(lines) + "\n"
    # when it is migrated
    spans = [mention.span for mention in plan_of_code(code, target).mentions]
    # then each word of the device lies in a mention
    for word in _WORD.finditer(code):
        assert any(s.start < word.end() and word.start() < s.end for s in spans), (code, word)


@pytest.mark.parametrize(
    ("head", "encoding", "bom", "line_end"),
    [
        ("", "utf-8", b"", "\n"),
        ("", "utf-8", b"", "\r\n"),
        ("", "utf-8", b"", "\r"),
        ("", "utf-8", b"\xef\xbb\xbf", "\n"),
        ("", "utf-8", b"\xef\xbb\xbf", "\r\n"),
        ("# -*- coding: latin-1 -*-\n", "latin-1", b"", "\n"),
        ("# -*- coding: latin-1 -*-\n", "latin-1", b"", "\r\n"),
        ("# coding: cp1252\n", "cp1252", b"", "\n"),
        ("# coding: gb18030\n", "gb18030", b"", "\r\n"),
    ],
)
@pytest.mark.parametrize("end", ["", "\n", "\n\n  \n"])
@pytest.mark.parametrize("target", ["neutral", "npu"])
def test_bytes_outside_the_edits_stay(
    head: str, encoding: str, bom: bytes, line_end: str, end: str, target: str
) -> None:
    # given a script in that encoding, with tabs, trailing blanks and characters of several bytes
    code = f"{head}import torch \nif x :\n\ty = 'é' ; z=y.cuda( ) # é\t\n\tw  =  1{end}"
    data = bom + code.replace("\n", line_end).encode(encoding)
    # when it is migrated
    plan = plan_of_code(data, target)
    after = plan.migrated()
    # then what lies between the edits comes back byte for byte
    assert after.startswith(bom)
    position = len(bom)
    start = 0
    for edit in plan.edits:
        untouched = plan.source.text[start : edit.span.start].encode(encoding)
        assert after[position:].startswith(untouched)
        position += len(untouched) + len(edit.text.encode(encoding))
        start = edit.span.end
    assert after[position:] == plan.source.text[start:].encode(encoding)
    # and line ends are those of the file
    if line_end == "\r\n":
        assert after.count(b"\n") == after.count(b"\r\n") == after.count(b"\r")
