"""Settings files: values that name the device are listed, keys and prose are kept, and nothing is rewritten."""

import json
from pathlib import PurePosixPath

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lockstep.wings.migrate.catalogue import rule_words
from lockstep.wings.migrate.files import config
from lockstep.wings.migrate.files.config import ConfigKind, config_kind
from lockstep.wings.migrate.plan import Outcome
from lockstep.wings.migrate.targets import migration_targets


def config_mentions(text, kind, target):
    return config.config_mentions(text, kind, migration_targets()[target])


def mentions(text, kind=ConfigKind.SETTINGS, target="npu"):
    return [
        (
            mention.rule.split("/")[1],
            mention.outcome.value,
            text[mention.span.start : mention.span.end],
        )
        for mention in config_mentions(text, kind, target)
    ]


def replacements(text, kind=ConfigKind.SETTINGS, target="npu"):
    return [mention.replacement for mention in config_mentions(text, kind, target)]


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("a.yaml", ConfigKind.SETTINGS),
        ("conf/environment.yml", ConfigKind.ENVIRONMENT),
        ("env-gpu.yaml", ConfigKind.ENVIRONMENT),
        ("my_environment.yaml", ConfigKind.ENVIRONMENT),
        ("envelope.yaml", ConfigKind.SETTINGS),
        ("a.json", ConfigKind.SETTINGS),
        ("a.jsonnet", ConfigKind.SETTINGS),
        ("Pipfile", ConfigKind.SETTINGS),
        ("a.gin", ConfigKind.INI),
        ("pyproject.toml", ConfigKind.SETTINGS),
        ("setup.cfg", ConfigKind.INI),
        ("requirements-gpu.txt", ConfigKind.REQUIREMENTS),
    ],
)
def test_the_name_tells_how_a_file_is_written(name, kind):
    assert config_kind(PurePosixPath(name)) is kind


EVERYWHERE = {
    "yaml": "# cuda\ncuda:\n  device: cuda:0\n  l: [cpu, 'cuda']\n  b: \"nccl\"  # nccl\n",
    "json": '// cuda\n{"cuda": {"device": "cuda:0", "l": ["cpu", "cuda"], "b": "nccl"}} // nccl',
    "toml": '# cuda\n[cuda]\ndevice = "cuda:0"\nl = [\'cpu\', """cuda"""]\nb = \'nccl\'  # nccl\n',
    "ini": "# cuda\n[cuda]\ndevice = cuda:0\nl:\n  cpu\n  cuda\nb=nccl ; nccl\n",
}


@pytest.mark.parametrize("form", EVERYWHERE)
@pytest.mark.parametrize("line_end", ["\n", "\r\n"])
def test_values_are_listed_with_keys_and_comments_kept_however_it_is_written(form, line_end):
    text = EVERYWHERE[form].replace("\n", line_end)
    kind = ConfigKind.INI if form == "ini" else ConfigKind.SETTINGS
    found = mentions(text, kind)
    assert [item[:2] for item in found] == [
        ("prose", "kept"),
        ("key", "kept"),
        ("device", "listed"),
        ("device", "listed"),
        ("backend", "listed"),
        ("prose", "kept"),
    ]
    assert [item[2].strip("[]") for item in found] == [
        "cuda",
        "cuda",
        "cuda:0",
        "cuda",
        "nccl",
        "nccl",
    ]
    assert replacements(text, kind) == ["", "", "npu:0", "npu", "hccl", ""]


@pytest.mark.parametrize(
    ("text", "rule", "shown"),
    [
        ("CUDA_VISIBLE_DEVICES: '0'", "variable", "CUDA_VISIBLE_DEVICES"),
        ("env:\n  - NCCL_DEBUG=INFO", "variable", "NCCL_DEBUG=INFO"),
        ("b: 'cpu:gloo,cuda:nccl'", "backend", "cpu:gloo,cuda:nccl"),
        ("_target_: torch.cuda.amp.GradScaler", "name", "torch.cuda.amp.GradScaler"),
        ("fp16_backend: apex", "name", "apex"),
        ("image: nvidia/cuda:11.8.0-base", "image", "nvidia/cuda:11.8.0-base"),
        ("image: nvcr.io/nvidia/pytorch:23.01-py3", "image", "nvcr.io/nvidia/pytorch:23.01-py3"),
        ("runtime: nvidia", "image", "nvidia"),
        ("limits: {nvidia.com/gpu: 1}", "image", "nvidia.com/gpu"),
        ("run: python a.py --device cuda:1", "command", "cuda:1"),
        ("run: |\n  export X=1\n  nvidia-smi\n", "command", "nvidia-smi"),
        ("dependencies:\n  - cudatoolkit=11.3", "package", "cudatoolkit=11.3"),
        ("mode: cuda,cpu", "device", "cuda"),
    ],
)
@pytest.mark.parametrize("target", ["neutral", "npu"])
def test_what_needs_a_person_is_listed(text, rule, shown, target):
    assert mentions(text, ConfigKind.SETTINGS, target) == [(rule, "listed", shown)]


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("use_cuda: true", "key"),
        ("cuda: yes", "key"),
        ("description: trains on cuda", "prose"),
        ("x: we train it on cuda here", "prose"),
        ("path: data/cuda_test.txt", "own-name"),
        ("name: my-cuda-run", "own-name"),
        ("owner: jonvidia", "own-name"),
        ("model: nvidia/some-model", "own-name"),
        ("NVIDIA_API_KEY: x", "key"),
    ],
)
def test_keys_names_and_prose_are_kept(text, rule):
    assert [item[:2] for item in mentions(text)] == [(rule, "kept")]


@pytest.mark.parametrize("kind", ConfigKind)
def test_files_without_a_word_of_it_have_no_mentions(kind):
    assert config_mentions("device: cpu\nbackend = 'gloo'\nlr = 3e-4\n", kind, "npu") == ()


def test_requirements_and_indexes():
    text = (
        "--extra-index-url https://download.pytorch.org/whl/cu117\n"
        "torch==1.13.1+cu117\nnumpy\nnvidia-ml-py  # cuda\n"
        "git+https://github.com/NVIDIA/apex.git\ntriton==2.0\n"
    )
    assert mentions(text, ConfigKind.REQUIREMENTS) == [
        ("package", "listed", "--extra-index-url https://download.pytorch.org/whl/cu117"),
        ("package", "listed", "torch==1.13.1+cu117"),
        ("package", "listed", "nvidia-ml-py"),
        ("prose", "kept", "cuda"),
        ("package", "listed", "git+https://github.com/NVIDIA/apex.git"),
        ("package", "listed", "triton==2.0"),
    ]
    assert "apex" in replacements(text, ConfigKind.REQUIREMENTS)[4]


def test_packages_whose_names_do_not_tell_are_listed_too():
    assert mentions("xformers\nbitsandbytes>=0.40\n", ConfigKind.REQUIREMENTS) == [
        ("package", "listed", "xformers"),
        ("package", "listed", "bitsandbytes>=0.40"),
    ]
    assert mentions("run: torchrun --nproc_per_node=gpu a.py") == [("command", "listed", "gpu")]


def test_an_environment_lists_packages_and_channels():
    text = (
        "channels:\n  - pytorch\n  - nvidia\ndependencies:\n  - cuda\n  - python=3.10\n"
        "  - pytorch=1.12.1=py3.9_cuda11.3_0\n  - pip:\n    - apex\n"
    )
    assert [item[::2] for item in mentions(text, ConfigKind.ENVIRONMENT)] == [
        ("package", "nvidia"),
        ("package", "cuda"),
        ("package", "pytorch=1.12.1=py3.9_cuda11.3_0"),
        ("package", "apex"),
    ]


def test_packages_of_a_project_file():
    text = '[project]\ndependencies = ["torch==1.13.1+cu117", "numpy", \'apex\']\n'
    assert [item[::2] for item in mentions(text, ConfigKind.SETTINGS)] == [
        ("package", "torch==1.13.1+cu117"),
        ("package", "apex"),
    ]
    text = "[options]\ninstall_requires =\n    torch\n    cupy-cuda11x\n"
    assert [item[::2] for item in mentions(text, ConfigKind.INI)] == [("package", "cupy-cuda11x")]


def test_neutral_lists_what_each_device_calls_it():
    assert replacements("device: cuda:1", target="neutral") == [
        "npu: npu:1; xpu: xpu:1; hpu: hpu:1; mps: mps"
    ]


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
    found = [item for item in mentions(text) if item[1] == "listed"]
    assert found == [("device", "listed", "cuda"), ("backend", "listed", "nccl")]


def test_commands_in_json_are_found_behind_escapes():
    text = json.dumps({"run": 'python "a b.py" --device "cuda" --dist-backend nccl'})
    assert mentions(text, ConfigKind.SETTINGS) == [
        ("command", "listed", "cuda"),
        ("command", "listed", "nccl"),
    ]


def test_positions_count_characters_not_bytes():
    assert mentions("é: 😀 ü\ndevice: 'cuda:0'") == [("device", "listed", "cuda:0")]


def test_bindings_of_gin_and_jsonnet_are_read():
    assert mentions('train.device = "cuda:0"  # cuda\n', ConfigKind.INI)[0] == (
        "device",
        "listed",
        "cuda:0",
    )
    assert mentions('{ device: "cuda", "n": 1 } // cuda', ConfigKind.SETTINGS) == [
        ("device", "listed", "cuda"),
        ("prose", "kept", "cuda"),
    ]


def test_every_rule_is_explained():
    for text in EVERYWHERE.values():
        found = config_mentions(text, ConfigKind.SETTINGS, "npu")
        assert {mention.rule for mention in found} <= rule_words().keys()


@given(st.text(alphabet="cuda:-#'\"[]{}|\n \t,", max_size=60), st.sampled_from(list(ConfigKind)))
def test_any_text_is_read_and_every_name_in_it_accounted_for(text, kind):
    found = config_mentions(text, kind, "npu")
    assert all(mention.outcome is not Outcome.REWRITTEN and not mention.edits for mention in found)
    covered = {place for m in found for place in range(m.span.start, m.span.end)}
    assert all(place in covered for place in range(len(text)) if text.startswith("cuda", place))


@pytest.mark.parametrize("piece", ['"', '\\"', "'''", "[", "- ", "a: ", "a=", "/*", "{"])
@pytest.mark.parametrize("kind", ConfigKind)
def test_hostile_text_takes_no_square_of_its_length(piece, kind):
    config_mentions("cuda\n" + piece * 20_000 + "\ncuda", kind, "npu")
