"""What is masked of a command, a setting or a message, and what stays although it looks alike."""

from __future__ import annotations

import shlex

import pytest

from lockstep.core.secrets import MASK, masked, masked_command, masked_setting
from lockstep.core.variables import VARIABLES, known_variables

HEX = "0123456789abcdef0123456789abcdef01234567"
LETTERS = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJ"


@pytest.mark.parametrize(
    ("typed", "kept"),
    [
        ("--api-key=abc", "--api-key=***"),
        ("--api-key abc", "--api-key ***"),
        ("--api_key abc --lr 0.1", "--api_key *** --lr 0.1"),
        ("--apiKey abc", "--apiKey ***"),
        ("--token abc", "--token ***"),
        ("-token abc", "-token ***"),
        ("--hub-token hf_x", "--hub-token ***"),
        ("--hf_token=abc", "--hf_token=***"),
        ("--access-token abc", "--access-token ***"),
        ("--password hunter2", "--password ***"),
        ("--password 123456", "--password ***"),
        ("--password=-hunter2", "--password=***"),
        ("--password -hunter2!", "--password ***"),
        ("--db-pass hunter2", "--db-pass ***"),
        ("--dbpassword hunter2", "--dbpassword ***"),
        ("--client-secret abc", "--client-secret ***"),
        ("--aws_secret_access_key abc", "--aws_secret_access_key ***"),
        ("--credentials abc", "--credentials ***"),
        ("--auth user:abc", "--auth ***"),
        (f"--key {HEX}", "--key ***"),
        (f"--wandb-key {HEX}", "--wandb-key ***"),
        (f"--use-auth-token {HEX}", "--use-auth-token ***"),
        ("wandb.api_key=abc", "wandb.api_key=***"),
        ("+logger.wandb.api_key=abc", "+logger.wandb.api_key=***"),
        ("env HF_TOKEN=abc python train.py", "env HF_TOKEN=*** python train.py"),
        ("LOCAL_API_TOKEN=abc", "LOCAL_API_TOKEN=***"),
        ("MASTER_PASSWORD=abc", "MASTER_PASSWORD=***"),
        ("bash -c 'HF_TOKEN=abc python t.py --password abc'", "bash -c 'HF_TOKEN=*** python t.py --password ***'"),
        ("""-c 'login(token="abc", add=True)'""", """-c 'login(token="***", add=True)'"""),
        ("""--json '{"api_key": "abc", "lr": 1}'""", """--json '{"api_key": "***", "lr": 1}'"""),
        ("-H 'Authorization: Bearer abcdefghijkl'", "-H 'Authorization: *** ***'"),
        ("-H 'Authorization: Basic abcdefghijkl=='", "-H 'Authorization: *** ***'"),
        ("-H 'X-Api-Key: abc'", "-H 'X-Api-Key: ***'"),
        ("--db postgresql://me:hunter2@host:5432/runs", "--db postgresql://me:***@host:5432/runs"),
        ("--db postgresql://me:p@ss/word@host/runs", "--db postgresql://me:***@host/runs"),
        ("redis://:hunter2@host:6379/0", "redis://:***@host:6379/0"),
        ("https://abc@sentry.io/1", "https://***@sentry.io/1"),
        ("https://host/data?token=abc&page=2", "https://host/data?token=***&page=2"),
        ("https://x.blob/data?sv=2&sig=abc%3D", "https://x.blob/data?sv=2&sig=***"),
        ("https://hooks.slack.com/services/T0/B0/abc", "https://hooks.slack.com/services/***"),
    ],
)  # fmt: skip
def test_a_secret_is_masked_by_its_name(typed: str, kept: str) -> None:
    assert masked_command(shlex.split(typed)) == shlex.split(kept)


@pytest.mark.parametrize(
    "secret",
    [
        f"hf_{LETTERS}",
        f"sk-{HEX}",
        f"sk-proj-{LETTERS}_0-1",
        f"ghp_{LETTERS}",
        f"github_pat_11ABCDEFG0_{LETTERS}",
        "glpat-abcdefghij0123456789",
        "AKIAIOSFODNN7EXAMPLE",
        f"AIza{LETTERS[:35]}",
        "xoxb-0123456789-abcdefghij",
        "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0In0.abc-def",
        f"nvapi-{LETTERS}",
    ],
)
def test_a_secret_is_masked_by_its_shape_wherever_it_stands(secret: str) -> None:
    assert masked_command(["train.py", secret, f"--run={secret}"]) == ["train.py", MASK, f"--run={MASK}"]  # fmt: skip
    assert masked(f"401 for {secret}, give another") == f"401 for {MASK}, give another"


@pytest.mark.parametrize(
    "typed",
    [
        "python -m torch.distributed.run --nproc_per_node 2 train.py",
        "--tokenizer gpt2",
        "--tokenizer_name=gpt2",
        "--max-tokens 512",
        "--max_new_tokens=64",
        "--num-tokens 4096 --tokens-per-batch 1024 --tokens 300000000000",
        "--key-dim 64 --num-key-value-heads 8 --query-key-norm rms",
        "--token-type-ids --pad-token-id 0 --eos_token_id=2",
        "--pad-token '<pad>' --eos-token '</s>' --image_token '<image>'",
        "--token-dropout 0.1 --token-embedding-dim 64 --token_budget=100",
        "--text-key caption --sort-key length --key 42 --label-key=label",
        "--password-file /run/x --token-file=/run/x --secret-name prod --api-key-env NAME",
        "--use-auth-token true --use_auth_token=False --push_to_hub_token=None",
        "--use-auth-token train.py",
        "--forward-pass 2 --pass 2 --num-passes 3 --author me --authors a,b",
        "--token --lr 0.1",
        f"--commit {HEX} --run-id {HEX[:8]} --resume runs/{HEX}/last.ckpt",
        "--lr 3e-4 --betas 0.9,0.999 --optimizer.lr=1e-3 -p 1 -k 3",
        "--data s3://bucket/a@b --url http://host:8080/path@v1 --git ssh://git@host/x",
        "--from https://host:443/x?page=2 --attention sdpa --keys q,k,v",
        "-c 'token = os.environ[1]; key = cache.key(1); d = {1: 2}'",
        "task-distillation-with-a-long-name-0 sk-learn-random-forest-model hf_hub_download",
        "'basic training-0123456789 and token classification-0123456789'",
    ],
)
def test_what_only_looks_alike_stays(typed: str) -> None:
    words = shlex.split(typed)
    assert masked_command(words) == words


def test_a_setting_is_masked_by_its_name_or_by_itself() -> None:
    assert masked_setting("hub_token", "abc") == MASK
    assert masked_setting("url", "redis://:hunter2@host") == "redis://:***@host"
    for name, value in (("pad_token", "<pad>"), ("reduction", "mean"), ("hub_token", "")):
        assert masked_setting(name, value) == value


def test_what_is_masked_once_stays_as_it_is() -> None:
    kept = masked_command(["--api-key", "abc", "A_TOKEN=abc", "redis://:hunter2@host", "--key=x"])
    assert masked_command(kept) == kept


def test_variables_are_kept_by_their_exact_names() -> None:
    # given variables of which some only begin like a known one
    environment = {
        "RANK": "1", "OMP_NUM_THREADS": "4", "NCCL_ALGO": "Ring",
        "RANK_SECRET": "a", "LOCAL_API_TOKEN": "b", "MASTER_PASSWORD": "c", "NCCL_ALGORITHM": "d", "PYTORCH_TOKEN": "e",
        "MASTER_ADDR": "host", "TORCHELASTIC_RUN_ID": "f", "HOME": "/home/me", "USER": "me",
    }  # fmt: skip
    assert known_variables(environment) == {
        "NCCL_ALGO": "Ring",
        "OMP_NUM_THREADS": "4",
        "RANK": "1",
    }


def test_a_known_variable_with_a_secret_in_it_is_masked() -> None:
    assert known_variables({"HCCL_ALGO": "http://me:hunter2@host"}) == {
        "HCCL_ALGO": "http://me:***@host"
    }


def test_no_variable_stands_in_the_table_twice() -> None:
    names = [name for names in VARIABLES.values() for name in names]
    assert len(names) == len(set(names))
    assert all(list(names) == sorted(names) for names in VARIABLES.values())
