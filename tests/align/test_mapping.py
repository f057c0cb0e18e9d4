"""The mapping file: what it means, and one sentence for whatever is wrong with it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from lockstep.align.mapping import NameMapping, Names
from lockstep.core.errors import UsageError

REFERENCE = Names(
    modules=frozenset({"encoder.layer", "encoder.layer.0", "encoder.layer.1", "pooler"}),
    parameters=frozenset({"pooler.gain"}),
    operators=frozenset({"vendor.fused_norm", "torch.Tensor.add"}),
)
CANDIDATE = Names(
    modules=frozenset({"blocks", "blocks.0", "blocks.1", "head.pool"}),
    parameters=frozenset({"head.pool.weight"}),
    operators=frozenset({"torch.nn.functional.layer_norm", "torch.Tensor.add", "torch.add"}),
)


def written(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "names.yaml"
    path.write_text(text)
    return path


def test_names_and_patterns_are_read_reference_first(tmp_path: Path) -> None:
    # given a file as its documentation has it
    path = written(
        tmp_path,
        "modules:\n  encoder.layer.*: blocks.*   # all of them\n  pooler: head.pool\n"
        "parameters: {pooler.gain: head.pool.weight}\n"
        "operators:\n  fused_norm: layer_norm\n",
    )
    mapping = NameMapping.read(path)
    mapping.check(REFERENCE, CANDIDATE)
    # when it is laid over two recordings
    names = mapping.names_between(REFERENCE, CANDIDATE)
    # then every name of the candidate has its reference name
    assert names.modules == {
        "blocks.0": "encoder.layer.0",
        "blocks.1": "encoder.layer.1",
        "head.pool": "pooler",
    }
    assert names.tensor("head.pool.weight|step") == "pooler.gain|step"
    assert names.operator("torch.nn.functional.layer_norm") == "vendor.fused_norm"
    assert set(names.found_by.values()) == {"mapping file"}
    assert names.notes() == []


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("modules: [a", "is not valid YAML (line 1"),
        ("modules: *a", "is not valid YAML"),
        (
            "just words",
            "holds none of modules, parameters, operators, states, layouts, activations and guesses",
        ),
        ("", "holds none of modules"),
        ("module: {a: b}", "unknown key 'module'; there are modules, parameters, operators"),
        ("modules: [a, b]", "not a list of `reference: candidate`"),
        ("modules: {0: b}", "put what YAML takes for a number in quotes"),
        ("modules: {'a.*': b}", "different numbers of *"),
        ("layouts: {a: OI to IO}", "'OI to IO' is not a layout"),
        ("activations: {a: b}", "write for example [NCHW -> NHWC]"),
        ("guesses: {module: {a: b}}", "unknown key 'module'"),
        ("modules: !!python/object/apply:os.getcwd []", "is not valid YAML"),
    ],
)
def test_what_is_wrong_with_a_file_is_said_in_a_sentence(
    tmp_path: Path, text: str, sentence: str
) -> None:
    path = written(tmp_path, text)
    with pytest.raises(UsageError) as caught:
        NameMapping.read(path)
    assert str(caught.value).startswith(str(path))
    assert sentence in str(caught.value)


def test_missing_and_binary_files_are_said(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"none\.yaml: cannot be read \(No such file"):
        NameMapping.read(tmp_path / "none.yaml")
    (tmp_path / "binary.yaml").write_bytes(b"\xff\xfe\x00\x81")
    with pytest.raises(UsageError, match=r"binary\.yaml: is not valid YAML"):
        NameMapping.read(tmp_path / "binary.yaml")


def test_what_is_no_regular_file_is_not_read(tmp_path: Path) -> None:
    # given links to a device without an end, a pipe that nobody writes to, a folder, and a file too large for names
    link, pipe, large = tmp_path / "link.yaml", tmp_path / "pipe.yaml", tmp_path / "large.yaml"
    link.symlink_to("/dev/zero")
    os.mkfifo(pipe)
    large.write_bytes(b"#" * (1 << 20) + b"\n")
    # when they are read as mappings, then each is refused at once
    for path, sentence in (
        (link, "not a regular file"),
        (pipe, "not a regular file"),
        (tmp_path, "not a regular file|Is a directory"),
        (large, "larger than"),
    ):
        with pytest.raises(UsageError, match=sentence):
            NameMapping.read(path)
    # and a link to a file is
    (tmp_path / "good.yaml").symlink_to(written(tmp_path, "modules: {a: b}"))
    assert NameMapping.read(tmp_path / "good.yaml").modules == {"a": "b"}


@pytest.mark.parametrize(
    ("mapping", "sentence"),
    [
        (
            NameMapping(modules={"encoder.layers.*": "blocks.*"}),
            "(a line reads `reference: candidate`); nearest: encoder.layer",
        ),
        (NameMapping(modules={"pooler": "pool"}), "'pool' matches nothing in the candidate"),
        (
            NameMapping(modules={"*.layer": "*.pool"}),
            "no name that '*.layer' matches in the reference has its counterpart '*.pool'",
        ),
        (
            NameMapping(operators={"fused_norm": "add"}),
            "'add' may be torch.Tensor.add or torch.add in the candidate; give the full name",
        ),
        (NameMapping(parameters={"a": "b"}), "'a' matches nothing in the reference"),
    ],
)
def test_a_name_that_means_nothing_is_said_with_the_nearest(
    mapping: NameMapping, sentence: str
) -> None:
    with pytest.raises(UsageError) as caught:
        mapping.check(REFERENCE, CANDIDATE)
    assert sentence in str(caught.value)


def test_layouts_states_and_the_model_itself_are_read_and_guesses_are_not_used(
    tmp_path: Path,
) -> None:
    # given a mapping between two frameworks, with a guess
    path = written(
        tmp_path,
        "modules: {'': net}\nstates: {exp_avg: momentum}\nlayouts: {'*.weight': OIHW -> HWIO}\n"
        "activations: NCHW -> NHWC\nguesses: {modules: {act: net.relu}}\n",
    )
    mapping = NameMapping.read(path)
    # when it is laid over two recordings
    sides = (
        Names(frozenset({"", "c", "act"}), frozenset({"c.weight"}), states=frozenset({"exp_avg"})),
        Names(frozenset({"", "net.c", "net"}), frozenset({"net.c.kernel"}), states=frozenset({"momentum"})),
    )  # fmt: skip
    mapping.check(*sides)
    names = mapping.names_between(*sides)
    # then all below the model has the reference's path, and what optimizers keep its name
    assert (names.module("net.c"), names.module("net")) == ("c", "")
    assert names.tensor("net.c.kernel|momentum") == "net.c.kernel|exp_avg"
    assert names.declared["c.weight"].axes == (2, 3, 1, 0)
    assert [str(one) for one in names.activations] == ["NCHW -> NHWC"]
    # and the guess is told, and does nothing
    assert names.module("net.relu") == "relu"
    assert mapping.unconfirmed().startswith("not used: 1 guess of")
    # and a layout of what is not there is refused
    with pytest.raises(UsageError, match=r"layouts: 'd\.weight' matches nothing in the reference"):
        NameMapping(layouts={"d.weight": "OI -> IO"}).check(*sides)
