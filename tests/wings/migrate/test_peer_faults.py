"""Each fault measured on the vendor's own converter, as a test that this one does not have it."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
from migrating import TARGETS, kept, listed, migrated, new_warnings, plan_of_code, rewritten

from lockstep.wings.migrate.files.collection import collect
from lockstep.wings.migrate.names import has_name
from lockstep.wings.migrate.options import MigrationOptions
from lockstep.wings.migrate.project import plan_collection


@pytest.mark.parametrize("target", TARGETS)
def test_to_keeps_its_star(target: str) -> None:
    code = "import torch\nx.cuda()\ny.to(*args)\ny.to(**options)\n"
    assert "y.to(*args)\ny.to(**options)\n" in migrated(code, target)


@pytest.mark.parametrize("target", TARGETS)
def test_to_with_copy_is_no_device(target: str) -> None:
    code = "import torch\nx.cuda()\ny.to(copy=True)\ny.to(torch.float16, copy=True)\n"
    assert "y.to(copy=True)\ny.to(torch.float16, copy=True)\n" in migrated(code, target)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("call", ["y.to(next(ids))", "y.cuda(next(ids))", "f'cuda:{next(ids)}'"])
def test_an_index_is_evaluated_once(call: str, target: str) -> None:
    code = f"import torch\nx = {call}\n"
    assert migrated(code, target).count("next(ids)") == 1


@pytest.mark.parametrize("target", TARGETS)
def test_the_look_up_of_a_flag_stays_with_the_flag(target: str) -> None:
    code = (
        "import argparse\n"
        "parser = argparse.ArgumentParser()\n"
        "parser.add_argument('--cuda', action='store_true')\n"
        "args = parser.parse_args()\n"
        "if vars(args)['cuda'] and args.cuda and getattr(args, 'cuda'):\n"
        "    model.cuda()\n"
    )
    after = rewritten(code, target)
    assert after.splitlines()[:5] == code.splitlines()[:5]
    assert after.splitlines()[5] != code.splitlines()[5]


OWN = """def cuda(x):
    return x


class Batch:
    def cuda(self):
        return cuda(self)


Batch().cuda()
"""


def test_an_own_cuda_keeps_its_meaning_everywhere() -> None:
    assert rewritten(OWN) == OWN
    assert len(kept(OWN)) == 4


def test_an_own_cuda_method_is_renamed_everywhere_or_nowhere() -> None:
    # given a function and a method of the project's own, both called cuda
    after = rewritten(OWN, "npu")
    # then the method and its call have one name, and so have the function and its call
    assert after == OWN.replace("def cuda(self)", "def npu(self)").replace(".cuda()", ".npu()")


def test_a_list_of_backends_is_translated_whole() -> None:
    code = "init('cpu:gloo,cuda:nccl')"
    assert rewritten(code, "npu") == "init('cpu:gloo,npu:hccl')"
    assert "cuda" not in rewritten(code)
    assert "nccl" not in rewritten(code)


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


@pytest.mark.parametrize("target", TARGETS)
def test_the_path_for_the_cpu_is_kept(target: str) -> None:
    code = (
        "import torch\n"
        "if torch.cuda.is_available():\n"
        "    device = torch.device('cuda')\n"
        "else:\n"
        "    device = torch.device('cpu')\n"
        "d = 'cuda' if torch.cuda.is_available() else 'cpu'\n"
    )
    after = migrated(code, target)
    assert "else:\n    device = torch.device('cpu')\n" in after
    assert after.endswith(" else 'cpu'\n")


SCRIPT = """import argparse
import torch
from torch.cuda.amp import autocast, GradScaler
import torch.backends.cudnn as cudnn

parser = argparse.ArgumentParser()
parser.add_argument("--device", default="cuda:0", choices=["cuda:0", "cpu"])
args = parser.parse_args()
cudnn.benchmark = True


def main(rank):
    torch.cuda.set_device(rank)
    torch.distributed.init_process_group("nccl")
    model = torch.nn.Linear(2, 2).cuda(rank)
    scaler = GradScaler()
    with autocast():
        loss = model(torch.ones(2, 2, device=f"cuda:{rank}")).sum()
    if loss.is_cuda:
        torch.cuda.synchronize()
    torch.cuda.empty_cache()
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        scaler.scale(loss).backward()
"""


@pytest.mark.parametrize("target", TARGETS)
def test_a_second_run_changes_nothing(target: str) -> None:
    once = migrated(SCRIPT, target)
    assert once != SCRIPT
    assert migrated(once, target) == once


def test_a_file_that_does_not_parse_is_reported_and_the_others_are_done(tmp_path: Path) -> None:
    # given one file that is no Python of this version, and one that is
    (tmp_path / "bad.py").write_text("import torch\nprint 'cuda'\n")
    (tmp_path / "good.py").write_text("import torch\nx.cuda()\n")
    # when both are migrated
    plan = plan_collection(collect([tmp_path]), MigrationOptions())
    # then the one is told with its line, and the other is done
    assert [(str(failure.path), failure.line) for failure in plan.failures] == [("bad.py", 2)]
    assert [str(file.path) for file in plan.files if file.changed] == ["good.py"]


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize(
    "code",
    [
        "import torch\n",
        "import torch\nx = torch.zeros(int(n)).to(device)\n",
        "import torch\nx = model.to(args.gpu)\ny = torch.device(args.device)\n",
        "import torch\nwith torch.autocast(device_type=device.type): pass\n",
        "import torch\n# x.cuda()\n'''torch.cuda'''\n",
    ],
)
def test_no_needless_import_or_edit(code: str, target: str) -> None:
    assert migrated(code, target) == code


@pytest.mark.parametrize("target", TARGETS)
def test_no_new_warning_of_pyflakes(target: str) -> None:
    assert new_warnings(SCRIPT, migrated(SCRIPT, target)) == []


@pytest.mark.parametrize("target", TARGETS)
def test_every_name_that_is_written_exists_on_the_target(target: str) -> None:
    before = _dotted_names(SCRIPT)
    for name in _dotted_names(migrated(SCRIPT, target)) - before:
        assert has_name(target, name), name


def _dotted_names(code: str) -> set[str]:
    """Every chain in a script that starts with a module of torch or of a device."""
    chains = [
        ast.unparse(node) for node in ast.walk(ast.parse(code)) if isinstance(node, ast.Attribute)
    ]
    return {
        chain for chain in chains if chain.startswith(("torch.", "torch_npu.")) and "(" not in chain
    }


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize(
    "code",
    [
        "import torch\ntorch.backends.cudnn.benchmark = True\n",
        "import torch\ntorch.backends.cuda.matmul.allow_tf32 = True\n",
        "import torch\nnew = torch.version.cuda > '11'\n",
        "import os\nos.environ['NCCL_P2P_DISABLE'] = '1'\n",
        "import apex\napex.contrib.sparsity.ASP()\n",
        "import torch\ntorch.cuda.nvtx.range_push('x')\n",
        "import torch\ntorch.cuda.cudart()\n",
        "import torch.cuda.nccl as nccl\nnccl.version()\n",
    ],
)
def test_no_site_is_left_without_a_word(code: str, target: str) -> None:
    assert listed(code, target)
    assert rewritten(code, target) == code
