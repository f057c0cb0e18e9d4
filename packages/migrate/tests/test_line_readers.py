"""Readers of scripts, settings and native sources: any text is read, no name is passed over, no time is lost.

What they say of which text stands in `pairs/shell`, `pairs/settings` and `pairs/native`.
"""

import re
import subprocess
from pathlib import PurePosixPath

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lockstep_migrate.engine.text import read_plain
from lockstep_migrate.files.config import ConfigKind, config_kind, config_mentions
from lockstep_migrate.files.native import native_mentions
from lockstep_migrate.files.shell import shell_mentions
from lockstep_migrate.files.surroundings import surroundings
from lockstep_migrate.hookspecs import MigrationTarget
from lockstep_migrate.plan import FilePlan, Outcome, apply, merged
from lockstep_migrate.targets import migration_targets

TARGETS = migration_targets()
NPU = TARGETS["npu"]
SILENT = MigrationTarget("silent", "", "torch.silent", has_name=lambda name: True)
"""A target that says nothing of its surroundings."""


def migrated(text):
    return apply(text, merged(edit for one in shell_mentions(text, NPU) for edit in one.edits))


def check(found, text, word):
    """Each mention lies in the text, changes it where it says so, and each of the words lies in a mention."""
    for mention in found:
        assert 0 <= mention.span.start <= mention.span.end <= len(text)
        assert bool(mention.edits) == mention.outcome.is_change
    covered = {place for one in found for place in range(one.span.start, one.span.end)}
    assert all(match.start() in covered for match in re.finditer(word, text, re.IGNORECASE))


SHELL = [
    "cuda", " ", "\n", '"', "'", "$(", ")", "`", "${", "}", "<<A\n", "A\n", "#", "\\",
    "CUDA_VISIBLE_DEVICES=0", "--device ",
]  # fmt: skip
NATIVE = ["__global__ ", "void f(", "{", "/*", "*/", '"', "\\", "<<<", "cuda", "\n", "'"]


@given(st.lists(st.sampled_from(SHELL), max_size=25), st.sampled_from(list(TARGETS)))
def test_any_script_is_read(pieces, target):
    text = "".join(pieces)
    found = shell_mentions(text, TARGETS[target])
    check(found, text, "cuda")
    FilePlan(PurePosixPath("a.sh"), read_plain(text.encode()), found).migrated()


@given(st.text(alphabet="cuda:-#'\"[]{}|\n \t,", max_size=60), st.sampled_from(list(ConfigKind)))
def test_any_settings_are_read_and_none_is_rewritten(text, kind):
    found = config_mentions(text, kind, NPU)
    check(found, text, "cuda")
    assert not any(mention.edits for mention in found)


@given(st.lists(st.sampled_from(NATIVE), max_size=30))
def test_any_source_is_read(pieces):
    for name in ("a.cu", "a.cpp", "CMakeLists.txt"):
        check(native_mentions("".join(pieces), name, NPU), "".join(pieces), "(?!)")


HOSTILE = {
    "script": ['"', '"$(', "'", "`", "(", "${", "<<A\n", "$'", "\\", "a=", "x ", "a/"],
    "settings": ['"', '\\"', "'''", "[", "- ", "a: ", "a=", "/*", "{"],
    "source": ["/*", '"', '\\"', "__global__ ", "__global__ void f(", "LANGUAGES ", "a", "cuda"],
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_hostile_text_takes_no_square_of_its_length(kind):
    for piece in HOSTILE[kind]:
        text = "cuda\n" + piece * 20_000 + "\ncuda --device cuda"
        if kind == "script":
            assert len(shell_mentions(text, NPU)) >= 2
        elif kind == "settings":
            assert all(config_mentions(text, one, NPU) for one in ConfigKind)
        else:
            assert native_mentions(text, "a.cu", NPU)
            native_mentions(text, "CMakeLists.txt", NPU)


def test_line_ends_blanks_and_characters_outside_the_edits_stay():
    text = "#!/bin/sh\r\n\tCUDA_VISIBLE_DEVICES=0  python\t'é ü.py' --device   cuda\r\n\r\n"
    renamed = text.replace("CUDA_VISIBLE_DEVICES", "ASCEND_RT_VISIBLE_DEVICES")
    assert migrated(text) == renamed.replace("cuda", "npu")


@pytest.mark.parametrize("kind", [ConfigKind.SETTINGS, ConfigKind.INI])
def test_line_ends_of_settings_change_nothing(kind):
    text = "# cuda\n[cuda]\ndevice = cuda:0\nl:\n  cpu\n  cuda\nb=nccl\n"
    other = text.replace("\n", "\r\n")
    said, found = (
        [(one.rule, whole[one.span.start : one.span.end], one.replacement) for one in mentions]
        for whole, mentions in ((t, config_mentions(t, kind, NPU)) for t in (text, other))
    )
    assert said == found
    assert {rule for rule, _, _ in said} >= {"config/device", "config/backend", "config/prose"}


@pytest.mark.parametrize(
    "text",
    [
        "{{ template }}\ndevice: cuda\n{% if x %}\n\tb: nccl\n",
        "a: [1, 2\ndevice: cuda\nb: nccl",
        "- &x : @\n  device: 'cuda'\n  b: \"nccl\"\n",
        "device: cuda\n\x07\nb: nccl\n",
        "x: " + "[" * 5000 + "\ndevice: cuda\nb: nccl",
        "x: " + "y" * 300_000 + "\ndevice: cuda\nb: nccl",
    ],
)
def test_what_is_no_yaml_is_read_line_by_line(text):
    found = config_mentions(text, ConfigKind.SETTINGS, NPU)
    listed = [one for one in found if one.outcome is Outcome.LISTED]
    assert [one.rule for one in listed] == ["config/device", "config/backend"]
    assert [text[one.span.start : one.span.end] for one in listed] == ["cuda", "nccl"]


@pytest.mark.parametrize(
    ("kind", "names"),
    [
        (ConfigKind.SETTINGS, "a.yaml envelope.yaml a.json a.jsonnet Pipfile pyproject.toml"),
        (ConfigKind.ENVIRONMENT, "conf/environment.yml env-gpu.yaml my_environment.yaml"),
        (ConfigKind.INI, "a.gin setup.cfg"),
        (ConfigKind.REQUIREMENTS, "requirements-gpu.txt"),
    ],
)
def test_the_name_tells_how_settings_are_written(kind, names):
    for name in names.split():
        assert config_kind(PurePosixPath(name)) is kind


def test_targets_speak_of_what_the_tables_know():
    tables = surroundings()
    known = {thing.name for thing in tables.programs.values()}
    known |= {thing.name for _, thing in tables.packages} | set(tables.variables)
    for variable in tables.variables.values():
        re.compile(variable.values)
    for target in TARGETS.values():
        assert {*target.environment, *target.instead} <= known
        assert not set(target.environment) & set(target.instead)


def test_of_a_target_that_says_nothing_nothing_is_made_up():
    script = "CUDA_VISIBLE_DEVICES=0 python a.py --device cuda:1 --dist-backend nccl"
    settings = "device: cuda:0\nimage: nvidia/cuda:12.4.0-base\nruntime: nvidia\n"
    found = shell_mentions(script, SILENT)
    found += config_mentions(settings, ConfigKind.SETTINGS, SILENT)
    assert {(one.outcome, one.replacement, one.edits) for one in found} == {
        (Outcome.LISTED, "", ())
    }


def test_a_renamed_variable_still_reaches_the_program():
    """The shell itself is asked: before and after, the program sees the same value under the two names."""
    script = 'export CUDA_VISIBLE_DEVICES=${CUDA_VISIBLE_DEVICES:-"2,3"}\nsh -c \'echo "<$CUDA_VISIBLE_DEVICES>"\'\n'
    for text in (script, migrated(script)):
        result = subprocess.run(
            ["sh", "-c", text], env={}, capture_output=True, text=True, check=True
        )
        assert result.stdout == "<2,3>\n"
