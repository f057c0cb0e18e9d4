"""What is taken out of texts and names of files, and what a comparison still goes by."""

from __future__ import annotations

import pytest

from lockstep.core.redaction import Redaction

HOME = "/home/alice"
PROJECT = f"{HOME}/secret project"
REDACTION = Redaction(
    PROJECT, HOME, (f"{PROJECT}/src", "/opt/python/lib/site-packages", "/opt"), ("alice", "node17")
)


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        (f"cannot read {PROJECT}/data/x.pt: no space", "cannot read [redacted] no space"),
        (f"{HOME}/runs", "[redacted]"),
        ("~/runs and ~bob/runs", "[redacted] and [redacted]"),
        ("/data/corp/llama", "[redacted]"),
        ("--xla_dump_to=/tmp/x --fast", "--xla_dump_to=[redacted] --fast"),
        ("file:///data/x", "[redacted]"),
        ('open("/data/x")', 'open("[redacted]")'),
        ("torchinductor_alice on NODE17.cluster", "torchinductor_[redacted] on [redacted].cluster"),
        ("token=abc", "token=***"),
    ],
)
def test_paths_names_and_secrets_go(text: str, kept: str) -> None:
    assert REDACTION.text(text) == kept


@pytest.mark.parametrize(
    "text",
    [
        "mean", "reflect", "b h w -> b (h w)", "a / b", "1/2", "</s>", "N/A", "https://host/path", "runs/last.ckpt",
        "cuda:0 NVIDIA H200", "Linux-6.1.0-x86_64-with-glibc2.36", "alices and malice", "inf", "", "s3://bucket/a",
    ],
)  # fmt: skip
def test_other_texts_stay(text: str) -> None:
    assert REDACTION.text(text) == text


@pytest.mark.parametrize(
    ("file", "kept"),
    [
        (f"{PROJECT}/train.py", "train.py"),
        (f"{PROJECT}/src/models/attention.py", "src/models/attention.py"),
        ("/opt/python/lib/site-packages/peft/tuner.py", "peft/tuner.py"),
        ("/tmp/torchinductor_alice/ab/cab.py", "[redacted]/cab.py"),
        (f"{PROJECT}/users/alice/net.py", "net.py"),
        (f"{PROJECT}/alice.py", "[redacted].py"),
    ],
)
def test_files_keep_their_place_below_project_and_package(file: str, kept: str) -> None:
    assert REDACTION.file(file) == kept


@pytest.mark.parametrize("working_directory", ["/", "/home", HOME])
def test_below_a_home_files_are_named_from_where_they_are_imported(working_directory: str) -> None:
    redaction = Redaction(working_directory, HOME, (PROJECT,), ("alice",))
    assert redaction.file(f"{PROJECT}/models/net.py") == "models/net.py"
    assert redaction.file(f"{HOME}/other/net.py") == "[redacted]/net.py"


def test_accounts_of_everybody_are_no_names() -> None:
    redaction = Redaction("/projects", "/root", (), ("root", "localhost", ""))
    assert redaction.text("the root of localhost") == "the root of localhost"
    assert redaction.file("/projects/root/net.py") == "root/net.py"
