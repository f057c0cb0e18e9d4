"""Notebooks: code changes inside their JSON strings, everything else keeps its bytes."""

import ast
import json
import re
from pathlib import PurePosixPath

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lockstep_migrate.engine.text import read_plain
from lockstep_migrate.files import magics
from lockstep_migrate.files.notebook import notebook_mentions
from lockstep_migrate.files.notebook_json import NotebookError
from lockstep_migrate.plan import Edit, FilePlan, Mention, Outcome, Span


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


@pytest.mark.parametrize("code", ["(" * 5000 + ")" * 5000, "x = '\0'" + "\0", "-" * 200_000 + "1"])
def test_a_cell_that_python_cannot_take_is_listed(code):
    plan = migrated(notebook(code, "x.cuda()"), rename_only)
    assert [m.rule for m in plan.mentions] == ["notebook/syntax", "test/rename"]


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
