"""Shell scripts, Dockerfiles and Makefiles: rewritten where the meaning is plain, listed or kept everywhere else."""

import re
import subprocess
from dataclasses import replace
from pathlib import PurePosixPath

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lockstep.wings.migrate.catalogue import rule_words
from lockstep.wings.migrate.engine.text import read_plain
from lockstep.wings.migrate.files import shell
from lockstep.wings.migrate.files.config import ConfigKind, config_mentions
from lockstep.wings.migrate.files.surroundings import surroundings
from lockstep.wings.migrate.hookspecs import MigrationTarget
from lockstep.wings.migrate.plan import FilePlan, Outcome, apply, merged
from lockstep.wings.migrate.targets import migration_targets

NEUTRAL = "neutral"
DEVICES = ("npu", "xpu", "hpu", "mps")


def shell_mentions(text, target):
    return shell.shell_mentions(text, migration_targets()[target])


def migrated(text, target="npu"):
    edits = [edit for mention in shell_mentions(text, target) for edit in mention.edits]
    return apply(text, merged(edits))


def mentions(text, target="npu"):
    """Rule without its group, outcome and text of each mention."""
    return [
        (
            mention.rule.split("/")[1],
            mention.outcome.value,
            text[mention.span.start : mention.span.end],
        )
        for mention in shell_mentions(text, target)
    ]


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("CUDA_VISIBLE_DEVICES=0,1 python a.py", "ASCEND_RT_VISIBLE_DEVICES=0,1 python a.py"),
        ("export CUDA_VISIBLE_DEVICES", "export ASCEND_RT_VISIBLE_DEVICES"),
        ("unset CUDA_VISIBLE_DEVICES", "unset ASCEND_RT_VISIBLE_DEVICES"),
        ("echo $CUDA_VISIBLE_DEVICES", "echo $ASCEND_RT_VISIBLE_DEVICES"),
        (
            "export CUDA_VISIBLE_DEVICES=${CUDA_VISIBLE_DEVICES:-0}",
            "export ASCEND_RT_VISIBLE_DEVICES=${ASCEND_RT_VISIBLE_DEVICES:-0}",
        ),
        (
            "N=$(echo $CUDA_VISIBLE_DEVICES | tr ',' ' ')",
            "N=$(echo $ASCEND_RT_VISIBLE_DEVICES | tr ',' ' ')",
        ),
        ("ENV CUDA_VISIBLE_DEVICES 0", "ENV ASCEND_RT_VISIBLE_DEVICES 0"),
        (
            "all:\n\t@CUDA_VISIBLE_DEVICES=$(GPU) python a.py",
            "all:\n\t@ASCEND_RT_VISIBLE_DEVICES=$(GPU) python a.py",
        ),
        ("set CUDA_VISIBLE_DEVICES=0\r\n", "set ASCEND_RT_VISIBLE_DEVICES=0\r\n"),
        ("python a.py --device cuda", "python a.py --device npu"),
        ("python a.py --device=cuda:1", "python a.py --device=npu:1"),
        (
            "python a.py --device='cuda:1' \\\n -d \"cuda\"",
            "python a.py --device='npu:1' \\\n -d \"npu\"",
        ),
        ("python a.py --device cuda:$RANK", "python a.py --device npu:$RANK"),
        ("python a.py --dist-backend nccl", "python a.py --dist-backend hccl"),
        ("python a.py --backend=cpu:gloo,cuda:nccl", "python a.py --backend=cpu:gloo,npu:hccl"),
        ('ARGS="--device cuda --backend nccl"', 'ARGS="--device npu --backend hccl"'),
        ("bash -c 'python a.py --device cuda'", "bash -c 'python a.py --device npu'"),
        (
            "cat > run.sh <<EOF\npython a.py --device cuda\nEOF\n",
            "cat > run.sh <<EOF\npython a.py --device npu\nEOF\n",
        ),
        (
            "export PYTORCH_CUDA_ALLOC_CONF=max_split_size_mb:64",
            "export PYTORCH_NPU_ALLOC_CONF=max_split_size_mb:64",
        ),
    ],
)
def test_plain_meanings_are_rewritten_for_a_vendor(before, after):
    assert migrated(before) == after
    assert migrated(after) == after


@pytest.mark.parametrize(
    ("target", "variable", "device", "backend"),
    [
        ("npu", "ASCEND_RT_VISIBLE_DEVICES", "npu:0", "hccl"),
        ("xpu", "ZE_AFFINITY_MASK", "xpu:0", "xccl"),
        ("hpu", "HABANA_VISIBLE_MODULES", "hpu:0", "hccl"),
    ],
)
def test_each_target_has_its_own_names(target, variable, device, backend):
    before = "CUDA_VISIBLE_DEVICES=0 python a.py --device cuda:0 --backend nccl\n"
    after = f"{variable}=0 python a.py --device {device} --backend {backend}\n"
    assert migrated(before, target) == after


def test_what_mps_has_no_word_for_is_listed():
    text = "CUDA_VISIBLE_DEVICES=0 python a.py --device cuda --backend nccl"
    assert migrated(text, "mps") == "CUDA_VISIBLE_DEVICES=0 python a.py --device mps --backend gloo"
    listed = [m for m in shell_mentions(text, "mps") if m.outcome is Outcome.LISTED]
    assert [m.replacement for m in listed] == ["remove: there is one device only"]


def test_the_neutral_script_stays_and_every_place_is_listed_with_what_devices_call_it():
    text = "CUDA_VISIBLE_DEVICES=0 python a.py --device cuda:1 --backend nccl"
    found = shell_mentions(text, NEUTRAL)
    assert [m.outcome for m in found] == [Outcome.LISTED] * 3
    assert "npu: ASCEND_RT_VISIBLE_DEVICES; xpu: ZE_AFFINITY_MASK" in found[0].replacement
    assert found[1].replacement == "npu: npu:1; xpu: xpu:1; hpu: hpu:1; mps: mps"
    assert found[2].replacement == "npu: hccl; xpu: xccl; hpu: hccl; mps: gloo"


@pytest.mark.parametrize(
    "other",
    [
        "DEVICE=${1:-cuda}",
        "DEV=cuda",
        'if [ "$D" = "cuda" ]; then :; fi',
        "case $D in\n cpu|cuda) y;;\nesac",
        "for d in cpu cuda; do x; done",
        "python b.py trainer.device=cuda",
        'CMD ["python", "a.py", "--device", "cuda"]',
        "BACKEND=nccl",
    ],
)
def test_an_option_is_listed_where_the_script_names_the_device_in_another_way(other):
    # before, all of these were rewritten: now a script has both names or none
    text = f"{other}\npython a.py --device cuda --backend nccl\n"
    assert migrated(text) == text
    found = mentions(text)
    assert {outcome for _, outcome, _ in found} == {"listed"}
    assert ("device", "listed", "cuda") in found
    assert ("backend", "listed", "nccl") in found


@pytest.mark.parametrize(
    ("text", "rule", "shown"),
    [
        ("export NCCL_DEBUG=INFO", "variable", "NCCL_DEBUG=INFO"),
        ("TORCH_NCCL_BLOCKING_WAIT=1 python a.py", "variable", "TORCH_NCCL_BLOCKING_WAIT=1"),
        ("PATH=$CUDA_HOME/bin:$PATH", "variable", "CUDA_HOME"),
        (
            "export LD_LIBRARY_PATH=/usr/local/cuda-11.8/lib64:$X",
            "path",
            "/usr/local/cuda-11.8/lib64",
        ),
        ("module load cuda/11.8", "path", "cuda/11.8"),
        ("watch -n 1 nvidia-smi -L", "program", "nvidia-smi"),
        ("N=$(nvidia-smi -L | wc -l)", "program", "nvidia-smi"),
        ("N=`nvidia-smi -L | wc -l`", "program", "nvidia-smi"),
        ("/usr/bin/nvcc -V", "program", "/usr/bin/nvcc"),
        ("FROM nvidia/cuda:11.8.0-base AS x", "image", "nvidia/cuda:11.8.0-base"),
        (
            "FROM --platform=linux/amd64 nvcr.io/nvidia/pytorch:23.01-py3",
            "image",
            "nvcr.io/nvidia/pytorch:23.01-py3",
        ),
        ("docker run --gpus all x", "container", "--gpus"),
        ("docker run --runtime=nvidia x", "container", "--runtime=nvidia"),
        ("singularity exec --nv x.sif y", "container", "--nv"),
        ("#SBATCH --gres=gpu:4", "scheduler", "--gres=gpu:4"),
        ("srun --gpus-per-node=4 x", "scheduler", "--gpus-per-node=4"),
        ("pip install torch==1.13.1+cu117", "package", "torch==1.13.1+cu117"),
        ("pip3 install 'cupy-cuda11x>=1'", "package", "cupy-cuda11x"),
        ("python -m pip install apex", "package", "apex"),
        (
            "pip install -f https://download.pytorch.org/whl/cu117 torch",
            "package",
            "https://download.pytorch.org/whl/cu117",
        ),
        (
            "git clone https://github.com/NVIDIA/apex.git",
            "package",
            "https://github.com/NVIDIA/apex.git",
        ),
        ("conda install cudatoolkit=11.3", "package", "cudatoolkit=11.3"),
        ("RUN apt-get install -y libcudnn8", "package", "libcudnn8"),
        ('python -c "import torch; torch.cuda.init()"', "python", "torch.cuda.init"),
        ("python - <<EOF\nx.cuda()\nEOF", "python", "x.cuda"),
        ("cat > a.py <<'EOF'\nx.cuda()\nEOF", "python", "x.cuda"),
        ("torchrun --nproc_per_node=gpu a.py", "launcher", "gpu"),
        ("torchrun --nproc-per-node gpu a.py", "launcher", "gpu"),
        ("frobnicate cuda", "unknown", "cuda"),
    ],
)
@pytest.mark.parametrize("target", ["neutral", "npu"])
def test_what_needs_a_person_is_listed(text, rule, shown, target):
    assert (rule, "listed", shown) in mentions(text, target)
    assert migrated(text, target) == text


@pytest.mark.parametrize(
    ("text", "rule", "shown"),
    [
        ("# CUDA_VISIBLE_DEVICES=0 is set elsewhere", "prose", "CUDA_VISIBLE_DEVICES"),
        ("python a.py # --device cuda", "prose", "cuda"),
        ("echo 'training on cuda'", "prose", "cuda"),
        ("python a.py --no-cuda", "option", "--no-cuda"),
        ("python a.py --gpu 0", "option", "--gpu"),
        ("USE_CUDA=1", "own-name", "USE_CUDA"),
        ('[ "$USE_CUDA" = 1 ]', "own-name", "USE_CUDA"),
        ("bash scripts/train_cuda.sh", "own-name", "scripts/train_cuda.sh"),
        ("cd my-cuda-project", "own-name", "my-cuda-project"),
    ],
)
@pytest.mark.parametrize("target", ["neutral", "npu"])
def test_the_users_own_names_and_prose_are_kept(text, rule, shown, target):
    assert mentions(text, target) == [(rule, "kept", shown)]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "python a.py --device cpu\n",
        "export OMP_NUM_THREADS=4 # threads",
        "pip install torch numpy",
        "echo $CU",
        "ls *.cuttle",
    ],
)
def test_scripts_without_a_word_of_it_have_no_mentions(text):
    for target in (NEUTRAL, *DEVICES):
        assert shell_mentions(text, target) == ()


def test_quotes_and_here_documents_do_not_hide_what_follows():
    text = "echo it's\ncat <<END\ndon't\nEND\necho \"a 'b\" 'c \"d'\npython a.py --device cuda\n"
    assert migrated(text) == text.replace("cuda", "npu")


@pytest.mark.parametrize("mark", ['"', "(", "`", "$(", "${", "'"])
def test_what_is_never_closed_does_not_hide_what_follows(mark):
    text = f"echo 5{mark} disk\npython a.py --device cuda\n"
    assert migrated(text) == text.replace("cuda", "npu")


def test_everything_outside_the_edits_is_as_it_was():
    text = "#!/bin/sh\r\n\tCUDA_VISIBLE_DEVICES=0  python\t'é ü.py' --device   cuda\r\n\r\n"
    expected = text.replace("CUDA_VISIBLE_DEVICES", "ASCEND_RT_VISIBLE_DEVICES").replace(
        "cuda", "npu"
    )
    assert migrated(text) == expected


def test_every_rule_says_what_it_is_for():
    text = "CUDA_VISIBLE_DEVICES=-1 python a.py --device cuda # cuda\n"
    assert {mention.rule for mention in shell_mentions(text, "npu")} <= rule_words().keys()


def test_targets_speak_of_what_the_tables_know():
    tables = surroundings()
    known = {thing.name for thing in tables.programs.values()}
    known |= {thing.name for _, thing in tables.packages} | set(tables.variables)
    for variable in tables.variables.values():
        re.compile(variable.values)
    for target in migration_targets().values():
        if target.name in (NEUTRAL, *DEVICES):
            assert {*target.environment, *target.instead} <= known
            assert not set(target.environment) & set(target.instead)


def test_a_renamed_variable_still_reaches_the_program():
    """The shell itself is asked: before and after, the program sees the same value under the two names."""
    script = 'export CUDA_VISIBLE_DEVICES=${CUDA_VISIBLE_DEVICES:-"2,3"}\nsh -c \'echo "<$CUDA_VISIBLE_DEVICES>"\'\n'
    for text in (script, migrated(script)):
        result = subprocess.run(
            ["sh", "-c", text], env={}, capture_output=True, text=True, check=True
        )
        assert result.stdout == "<2,3>\n"


PIECES = [
    "cuda",
    " ",
    "\n",
    '"',
    "'",
    "$(",
    ")",
    "`",
    "${",
    "}",
    "<<A\n",
    "A\n",
    "#",
    "\\",
    "CUDA_VISIBLE_DEVICES=0",
    "--device ",
]


@given(
    st.lists(st.sampled_from(PIECES), max_size=25).map("".join),
    st.sampled_from([NEUTRAL, *DEVICES]),
)
def test_any_text_is_read_and_every_name_in_it_accounted_for(text, target):
    found = shell_mentions(text, target)
    for mention in found:
        assert 0 <= mention.span.start <= mention.span.end <= len(text)
        assert bool(mention.edits) == mention.outcome.is_change
    covered = {place for m in found for place in range(m.span.start, m.span.end)}
    for match in re.finditer("cuda", text, re.IGNORECASE):
        assert match.start() in covered
    FilePlan(PurePosixPath("a.sh"), read_plain(text.encode()), found).migrated()


@pytest.mark.parametrize(
    "piece", ['"', '"$(', "'", "`", "(", "${", "<<A\n", "$'", "\\", "a=", "x ", "a/"]
)
def test_hostile_text_takes_no_square_of_its_length(piece):
    text = "cuda\n" + piece * 20_000 + "\ncuda --device cuda"
    assert len(shell_mentions(text, "npu")) >= 2


TOY = MigrationTarget(
    "toy-board", "toy", "torch.toy", has_name=lambda name: True, backend="toyccl",
    environment={"CUDA_VISIBLE_DEVICES": "TOY_VISIBLE", "CUDA_OF_TOY": "TOY_OF_TOY"},
)  # fmt: skip


def test_a_plug_in_s_target_reaches_shell_and_settings_files():
    # Given a target of a plug-in, and one that says of its surroundings nothing
    silent = MigrationTarget("silent", "", "torch.silent", has_name=lambda name: True)
    text = "CUDA_VISIBLE_DEVICES=0 CUDA_OF_TOY=1 python a.py --device cuda:1 --dist-backend nccl"
    settings = "device: cuda:0\nbackend: nccl\n"
    # Then its own words stand in scripts, and are told for settings
    found = shell.shell_mentions(text, TOY)
    edits = [edit for mention in found for edit in mention.edits]
    assert apply(text, merged(edits)) == (
        "TOY_VISIBLE=0 TOY_OF_TOY=1 python a.py --device toy:1 --dist-backend toyccl"
    )
    told = config_mentions(settings, ConfigKind.SETTINGS, TOY)
    assert [one.replacement for one in told] == ["toy:0", "toyccl"]
    # And without them nothing is rewritten, and everything is listed
    known = text.replace("CUDA_OF_TOY=1 ", "")
    listed = shell.shell_mentions(known, silent)
    assert not [edit for mention in listed for edit in mention.edits]
    assert {one.outcome for one in listed} == {Outcome.LISTED}


def test_a_plug_in_s_target_reaches_container_files():
    # Given a target that says what stands for CUDA's images, options, packages and folders, and one that does not
    words = {
        "image": "toy/torch:1",
        "container_options": "--device=/dev/toy0",
        "package_index": "the toy wheels",
        "folder": "/opt/toy",
    }
    boarded = replace(TOY, **words)
    docker = (
        "FROM nvidia/cuda:12.4.0-devel-ubuntu22.04\n"
        "RUN pip install torch --index-url https://download.pytorch.org/whl/cu124\n"
        "RUN ls /usr/local/cuda/lib64\n"
        "RUN docker run --gpus all me/train\n"
    )
    compose = "services:\n  train:\n    image: nvidia/cuda:12.4.0-base\n    runtime: nvidia\n"
    # When a Dockerfile and a compose file are read for either
    told = {
        target.name: {
            one.replacement
            for one in (
                *shell.shell_mentions(docker, target),
                *config_mentions(compose, ConfigKind.SETTINGS, target),
            )
        }
        for target in (boarded, replace(TOY, name="silent"))
    }
    # Then the first one's words are told at each place, and of the second nothing is made up
    assert told["toy-board"] >= {*words.values()}
    assert told["silent"] == {""}
