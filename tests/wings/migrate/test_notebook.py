"""Notebooks: code changes inside their JSON strings, everything else keeps its bytes."""

import ast
import json
import re
from pathlib import PurePosixPath

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lockstep.wings.migrate.engine.text import read_plain
from lockstep.wings.migrate.files import magics
from lockstep.wings.migrate.files.notebook import notebook_mentions
from lockstep.wings.migrate.files.notebook_json import NotebookError
from lockstep.wings.migrate.plan import Edit, FilePlan, Mention, Outcome, Span


def rename(code):
    """A small analysis: `cuda` becomes `npu`, and an import goes to the head."""
    ast.parse(code)
    mentions = tuple(
        Mention(
            "test/rename",
            Outcome.REWRITTEN,
            Span(*match.span()),
            "renamed",
            edits=(Edit(Span(*match.span()), "npu"),),
        )
        for match in re.finditer("cuda", code)
    )
    return mentions, (Edit(Span(0, 0), "import vendor\n"),) if mentions else ()


def rename_quietly(code):
    """The same without parsing."""
    edits = [Edit(Span(*match.span()), "npu") for match in re.finditer("cuda", code)]
    return (Mention("t", Outcome.REWRITTEN, Span(0, 1), "r", edits=tuple(edits)),), ()


def rename_only(code):
    return rename(code)[0], ()


def list_shell(text):
    return tuple(
        Mention("test/shell", Outcome.LISTED, Span(*match.span()), "in a shell")
        for match in re.finditer(r"CUDA\w+|nvidia-smi", text)
    )


def migrated(data, analyse=rename, shell=list_shell):
    source = read_plain(data)
    mentions, additions = notebook_mentions(source.text, analyse, shell)
    return FilePlan(PurePosixPath("a.ipynb"), source, mentions, additions)


def notebook(*sources, indent=1, ascii_only=False, **extra):
    cells = [{"cell_type": "code", "metadata": {}, "source": source} for source in sources]
    content = {"cells": cells, "metadata": {}, "nbformat": 4, "nbformat_minor": 5, **extra}
    return json.dumps(content, indent=indent, ensure_ascii=ascii_only).encode()


def codes(data):
    return ["".join(cell["source"]) for cell in json.loads(data)["cells"]]


def test_a_change_touches_only_its_own_characters():
    data = notebook("x = 'é \"q\" \\\\ \\t'\ny.cuda()\n", indent=3)
    after = migrated(data, rename_only).migrated()
    assert after == data.replace(b"y.cuda()", b"y.npu()")


def test_an_import_at_the_head_becomes_a_line_of_its_own_in_a_list_of_lines():
    data = notebook(["import torch\n", "x.cuda()"])
    after = migrated(data).migrated()
    assert json.loads(after)["cells"][0]["source"] == [
        "import vendor\n",
        "import torch\n",
        "x.npu()",
    ]
    # Indented as the other lines are.
    assert b'    "import vendor\\n",\n    "import torch\\n"' in after


def test_an_import_at_the_head_stays_in_the_string_where_the_cell_is_one():
    after = migrated(notebook("import torch\nx.cuda()")).migrated()
    assert json.loads(after)["cells"][0]["source"] == "import vendor\nimport torch\nx.npu()"


def test_cells_are_one_module():
    seen = []

    def analyse(code):
        seen.append(code)
        return rename(code)

    migrated(notebook("import torch", ["from x import y\n", "y()\n"], "", "torch.cuda"), analyse)
    assert seen == ["import torch\nfrom x import y\ny()\ntorch.cuda\n"]


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        (["x = 1\n", "y"], ["x = 1\n", "y\n", "a\n", "b\n"]),
        (["y"], ["y\n", "a\n", "b\n"]),
        ("x = 1\ny", "x = 1\ny\na\nb\n"),
    ],
)
def test_lines_at_the_end_keep_the_form_of_the_cell(source, expected):
    def append(code):
        end = len(code) - 1
        return (), (Edit(Span(end, end), "\na\nb\n"),)

    after = migrated(notebook(source), append).migrated()
    assert json.loads(after)["cells"][0]["source"] == expected


def test_an_edit_over_several_lines_keeps_the_list():
    def join(code):
        start, end = code.index("f("), code.index(")") + 1
        edit = Edit(Span(start, end), "g(1,\n  2)")
        return (Mention("t", Outcome.REWRITTEN, Span(start, end), "r", edits=(edit,)),), ()

    data = notebook(["a = f(\n", "   1,\n", "   2)\n", "b"])
    after = migrated(data, join).migrated()
    assert "".join(json.loads(after)["cells"][0]["source"]) == "a = g(1,\n  2)\nb"
    assert isinstance(json.loads(after)["cells"][0]["source"], list)


def test_what_is_not_python_is_masked_with_text_of_the_same_length():
    seen = []

    def analyse(code):
        seen.append(code)
        return rename(code)

    lines = [
        "%matplotlib inline\n",
        "!pip install \\\n",
        "   torch\n",
        "torch.cuda?\n",
        "if x:\n",
        "    !ls\n",
        "files = !ls *.py\n",
        'text = """\n',
        "%no magic\n",
        '"""\n',
        "y = (a\n",
        "  % b)\n",
        "%time model.cuda()\n",
    ]
    plan = migrated(notebook(lines), analyse)
    assert len(seen[0]) == len("".join(lines))
    assert 'text = """\n%no magic\n"""\ny = (a\n  % b)\n' in seen[0]
    assert codes(plan.migrated())[0] == "import vendor\n" + "".join(lines).replace(
        "model.cuda", "model.npu"
    )


@pytest.mark.parametrize("magic", ["%%time", "%%timeit -n 3", "%%capture out"])
def test_an_import_goes_behind_a_magic_that_has_to_be_first(magic):
    after = migrated(notebook(f"{magic}\nx.cuda()")).migrated()
    assert codes(after) == [f"{magic}\nimport vendor\nx.npu()"]


def test_an_import_never_lands_in_a_cell_of_another_language():
    data = notebook("%%bash\nexport CUDA_VISIBLE_DEVICES=0", "%%html\n<b>cuda</b>", "x.cuda()")
    plan = migrated(data)
    assert codes(plan.migrated())[:2] == codes(data)[:2]
    assert codes(plan.migrated())[2] == "import vendor\nx.npu()"
    assert [mention.rule for mention in plan.mentions] == [
        "test/shell",
        "notebook/language",
        "test/rename",
    ]


def test_commands_without_their_mark_are_commands_only_where_they_are_no_python():
    plan = migrated(
        notebook("pip install torch; nvidia-smi\nx.cuda()", "ls = 3\ncat - ls\nrun (ls)")
    )
    assert codes(plan.migrated())[0] == "pip install torch; nvidia-smi\nx.npu()".replace(
        "pip", "import vendor\npip"
    )
    assert "notebook/syntax" not in {mention.rule for mention in plan.mentions}
    assert "test/shell" in {mention.rule for mention in plan.mentions}


def test_a_cell_of_cuda_code_is_listed_whatever_words_it_has():
    plan = migrated(notebook("%%cu\n__global__ void f() {}"))
    assert [(m.rule, m.outcome) for m in plan.mentions] == [("notebook/language", Outcome.LISTED)]


def test_shell_lines_go_to_the_shell_reader_with_their_place():
    source = [
        "x = 1\n",
        "!CUDA_VISIBLE_DEVICES=0 python \\\n",
        "  train.py; nvidia-smi\n",
        "%env CUDA_HOME=/x",
    ]
    plan = migrated(notebook(source))
    shown = [plan.source.text[mention.span.start : mention.span.end] for mention in plan.mentions]
    assert shown == ["CUDA_VISIBLE_DEVICES", "nvidia-smi", "CUDA_HOME"]


def test_a_cell_that_writes_a_python_file_is_a_module_of_its_own():
    plan = migrated(notebook("%%writefile train.py\nmodel.cuda()\n", "other = 1"))
    assert codes(plan.migrated()) == [
        "%%writefile train.py\nimport vendor\nmodel.npu()\n",
        "other = 1",
    ]


def test_a_broken_cell_is_listed_and_the_others_are_done():
    plan = migrated(notebook("a.cuda()", "def broken(:\n  cuda", "b.cuda()"))
    assert codes(plan.migrated()) == ["import vendor\na.npu()", "def broken(:\n  cuda", "b.npu()"]
    broken = [mention for mention in plan.mentions if mention.rule == "notebook/syntax"]
    assert len(broken) == 1
    assert broken[0].outcome is Outcome.LISTED
    assert "cell 2" in broken[0].reason
    assert "line 1" in broken[0].reason
    shown = plan.source.text[broken[0].span.start : broken[0].span.end]
    assert shown == "def broken(:\\n"


def test_odd_escapes_are_no_error_and_no_warning():
    after = migrated(notebook("s = '\\d'; x.cuda()", "!ls\n1 is 1"), rename_quietly).migrated()
    assert codes(after) == ["s = '\\d'; x.npu()", "!ls\n1 is 1"]


@pytest.mark.parametrize("code", ["(" * 5000 + ")" * 5000, "x = '\0'" + "\0", "-" * 200_000 + "1"])
def test_a_cell_that_python_cannot_take_is_listed(code):
    plan = migrated(notebook(code, "x.cuda()"), rename_only)
    assert [m.rule for m in plan.mentions] == ["notebook/syntax", "test/rename"]


def test_results_markdown_and_metadata_are_left_alone():
    cells = [
        {"cell_type": "markdown", "source": ["use cuda"]},
        {
            "cell_type": "code",
            "metadata": {"source": "cuda"},
            "outputs": [{"text": ["cuda"], "source": "cuda"}],
            "source": ["x = 1"],
        },
    ]
    data = json.dumps({"cells": cells, "metadata": {"cells": [{"source": "cuda"}]}}).encode()
    plan = migrated(data)
    assert plan.mentions == ()
    assert not plan.changed


def test_a_notebook_of_another_language_is_left_alone():
    plan = migrated(notebook("x.cuda()", metadata={"kernelspec": {"language": "R", "name": "ir"}}))
    assert plan.mentions == ()


def test_format_3_is_read():
    cell = {"cell_type": "code", "language": "python", "input": ["x.cuda()\n", "y"]}
    data = json.dumps({"worksheets": [{"cells": [cell]}], "metadata": {}}).encode()
    after = migrated(data, rename_only).migrated()
    assert after == data.replace(b"cuda", b"npu")


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"[]",
        b"{}",
        b'{"cells": [1]}',
        b'{"cells": [{"cell_type": "code", "source": [1]}]}',
        b'{"cells": {}}',
        b"{",
        b"[" * 200_000,
        b'{"cells": [], "cells": [{"cell_type": "code", "source": "a"}], "x": '
        + b"9" * 5000
        + b"}",
    ],
)
def test_what_is_no_notebook_is_refused_in_words(data):
    with pytest.raises(NotebookError, match=r"is no|twice"):
        migrated(data)


def test_a_bad_notebook_names_its_line():
    with pytest.raises(NotebookError) as caught:
        migrated(b'{\n"cells": [\n,]}')
    assert caught.value.line == 3


def test_half_a_surrogate_pair_does_not_stop_the_rest():
    data = b'{"cells": [{"cell_type": "code", "source": "s = \'\\ud83d\'; e = \'\\ud83d\\ude00\'; x.cuda()"}]}'
    after = migrated(data, rename_only).migrated()
    assert after == data.replace(b"cuda", b"npu")


def test_new_text_is_escaped_as_the_file_is():
    def greet(code):
        return (), (Edit(Span(0, 0), '# "é"\n'),)

    assert rb"# \"\u00e9\"\n" in migrated(notebook("x", ascii_only=True), greet).migrated()
    assert '# \\"é\\"\\n'.encode() in migrated(notebook("ö"), greet).migrated()


_LINES = st.lists(
    st.sampled_from(
        [
            "x.cuda()",
            "",
            "# é cuda 😀",
            "s = 'cuda\\t\\\\'",
            "if a:\n    cuda",
            "!nvidia-smi",
            '"""\n%cuda\n"""',
        ]
    ),
    max_size=4,
)


@given(
    cells=st.lists(st.tuples(_LINES, st.booleans(), st.booleans()), max_size=5),
    indent=st.sampled_from([None, 1, "\t"]),
    ascii_only=st.booleans(),
    head=st.booleans(),
)
def test_every_notebook_comes_back_with_only_its_code_changed(cells, indent, ascii_only, head):
    sources = []
    for lines, ends, as_list in cells:
        code = "\n".join(lines) + ("\n" if ends and lines else "")
        sources.append(code.splitlines(keepends=True) if as_list else code)
    data = notebook(*sources, indent=indent, ascii_only=ascii_only)
    after = migrated(data, rename if head else rename_only).migrated()
    expected = [code.replace("cuda", "npu") for code in codes(data)]
    got = codes(after)
    assert "".join(got).replace("import vendor\n", "") == "".join(expected)
    assert sum(code.count("import vendor") for code in got) == (head and "npu" in "".join(expected))
    blank = json.loads(after)
    for cell, before in zip(blank["cells"], json.loads(data)["cells"], strict=True):
        cell["source"] = before["source"]
    assert json.dumps(blank) == json.dumps(json.loads(data))


@given(st.text(alphabet="%!?'\"\\\n ()[]{}#=a1;", max_size=30))
def test_masking_keeps_every_length(code):
    cell = magics.take_apart(code)
    if not (cell.shell or cell.language or cell.file) or cell.masked:
        assert len(cell.masked) == len(code) - cell.start
        assert cell.masked.count("\n") == code[cell.start :].count("\n")
