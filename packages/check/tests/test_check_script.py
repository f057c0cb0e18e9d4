"""`lockstep check --script`: what makes runs incomparable is found with its line, and its twin is not."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from lockstep.cli.main import main
from lockstep_check.scripts.randomness import look_at_scripts, rules

HEAD = """import glob, os, random, time
import timm
import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from pathlib import Path
from torch.utils.data import DataLoader, DistributedSampler, RandomSampler, random_split
from torchvision import transforms
import torchvision.transforms.v2 as v2
import albumentations as A
torch.manual_seed(0)
"""

CASES = [
    ("shuffle", "DataLoader(data, shuffle=True)", "DataLoader(data, shuffle=True, generator=g)"),
    ("shuffle", "DataLoader(data, 4, True)", "DataLoader(data, 4, False)"),
    ("shuffle", "DataLoader(data, shuffle=args.shuffle)", "DataLoader(data)"),
    ("sampler", "RandomSampler(data)", "RandomSampler(data, generator=g)"),
    ("sampler", "random_split(data, [8, 2])", "random_split(data, [8, 2], generator=g)"),
    ("workers", "DataLoader(data, num_workers=4)", "DataLoader(data, num_workers=0)"),
    ("workers", "DataLoader(data, num_workers=n)", "DataLoader(data, num_workers=n, worker_init_fn=seed)"),
    ("augmentation", "transforms.RandomCrop(32)", "transforms.CenterCrop(32)"),
    ("augmentation", "v2.RandomHorizontalFlip()", "v2.Resize(32)"),
    ("augmentation", "A.Rotate()", "B.Rotate()"),
    ("dropout", "nn.Dropout()", "nn.Dropout(0.0)"),
    ("dropout", "nn.Dropout2d(p=0.1)", "nn.Dropout2d(p=0)"),
    ("dropout", "F.dropout(x, 0.2)", "F.dropout(x, 0.0)"),
    ("dropout", "torch.nn.functional.alpha_dropout(x, p=rate)", "torch.nn.functional.gelu(x)"),
    ("dropout-argument", "GPT2Config(resid_pdrop=0.1)", "GPT2Config(resid_pdrop=0.0)"),
    ("dropout-argument", "nn.LSTM(8, 8, dropout=0.3)", "nn.LSTM(8, 8)"),
    ("benchmark", "torch.backends.cudnn.benchmark = True", "torch.backends.cudnn.benchmark = False"),
    ("tf32", "torch.backends.cuda.matmul.allow_tf32 = True", "torch.backends.cuda.matmul.allow_tf32 = False"),
    ("matmul-precision", "torch.set_float32_matmul_precision('high')", "torch.set_float32_matmul_precision('highest')"),
    ("own-seed", "torch.seed()", "torch.initial_seed()"),
    ("no-seed", "np.random.default_rng()", "np.random.default_rng(0)"),
    ("no-seed", "random.seed()", "random.seed(0)"),
    ("files", "files = os.listdir('data')", "files = sorted(os.listdir('data'))"),
    ("files", "files = [f for f in Path('data').rglob('*')]", "files = sorted(f for f in Path('data').rglob('*'))"),
    ("files", "count = glob.glob('data/*')", "count = len(glob.glob('data/*'))"),
    ("set-order", "for word in set(words): pass", "for word in sorted(set(words)): pass"),
    ("nondeterministic", "F.interpolate(x, scale_factor=2)", "F.pad(x, (1, 1))"),
    ("nondeterministic", "x.scatter_add_(0, i, y)", "x.gather(0, i)"),
    ("seed-varies", "torch.manual_seed(int(time.time()))", "torch.manual_seed(1234)"),
    ("seed-varies", "seed = os.getpid()\nnp.random.seed(seed)", "seed = 7\nnp.random.seed(seed)"),
    ("numpy-draws", "np.random.shuffle(order)", "np.random.seed(0)\nnp.random.shuffle(order)"),
    ("numpy-draws", "i = np.random.permutation(9)", "i = np.random.default_rng(0).permutation(9)"),
    ("random-draws", "random.shuffle(files)", "random.seed(0)\nrandom.shuffle(files)"),
    ("random-draws", "k = random.sample(files, 3)", "k = random.Random(0).sample(files, 3)"),
    ("batch-draws", "for step in range(3):\n    i = torch.randint(9, (4,))", "i = torch.randint(9, (4,))"),
    ("batch-draws", "def batch():\n    return torch.randint(9, (4,))\nwhile True: batch()",
     "def batch():\n    return torch.randint(9, (4,), generator=g)\nwhile True: batch()"),
    ("dropout-default", "nn.TransformerEncoderLayer(8, 2)", "nn.TransformerEncoderLayer(8, 2, dropout=0.0)"),
    ("model-elsewhere", "timm.create_model('vit')", "timm.create_model('vit', drop_rate=0.0)"),
    ("sampler-epoch", "sampler = DistributedSampler(data)", "sampler = DistributedSampler(data)\nsampler.set_epoch(1)"),
]  # fmt: skip


def rules_met(source: str) -> set[str]:
    """The rules that a script meets behind its head."""
    found, failed = look_at_scripts({"train.py": HEAD + source})
    assert not failed
    lines = len(HEAD.splitlines())
    assert all(one.line > lines and one.text and one.says and one.edit for one in found)
    return {one.rule for one in found}


@pytest.mark.parametrize(("rule", "source", "twin"), CASES)
def test_a_place_is_found_and_its_twin_is_silent(rule: str, source: str, twin: str) -> None:
    assert rules_met(source) == {rule}
    assert rules_met(twin) == set()


def test_a_project_that_seeds_nothing_is_told_once_and_one_file_may_seed_for_all() -> None:
    train = "import torch\noptimizer = torch.optim.SGD(p, lr=1)\nother = torch.optim.Adam(p)\n"
    found, _ = look_at_scripts({"train.py": train})
    assert [(one.rule, one.line) for one in found] == [("unseeded", 2)]
    setup = "from lightning.pytorch import seed_everything\nseed_everything(0)\n"
    assert look_at_scripts({"train.py": train, "setup.py": setup}) == ([], {})


LOADER = "DataLoader(data, shuffle={})"
PARSED = "\nargs = parser.parse_args()\n"
FLOWS = {
    "an option": (
        "parser.add_argument('--mix', default=True)" + PARSED,
        "parser.add_argument('--mix', action='store_true')" + PARSED,
        LOADER.format("args.mix"),
    ),
    "a name": ("mix = True\n", "mix = False\n", LOADER.format("mix")),
    "a parameter": (
        "def load(mix=True):\n    return ",
        "def load(mix=False):\n    return ",
        LOADER.format("mix"),
    ),
    "a call": (
        "def load(mix):\n    return " + LOADER.format("mix") + "\nload(True)\n",
        "def load(mix):\n    return " + LOADER.format("mix") + "\nload(False)\n",
        "",
    ),
    "a field": (
        "class Config:\n    mix: bool = True\n",
        "class Config:\n    mix: bool = False\n",
        LOADER.format("Config().mix"),
    ),
    "a key": ("c = {'mix': True}\n", "c = {'mix': False}\n", LOADER.format("c['mix']")),
    "a choice": (
        "mix = True if 2 > 1 else False\n",
        "mix = True if 1 > 2 else False\n",
        LOADER.format("mix"),
    ),
    "a not": ("test = False\n", "test = True\n", LOADER.format("not test")),
    "a loop": (
        "for mix in (True, False):\n    ",
        "for mix in (False, False):\n    ",
        LOADER.format("mix"),
    ),
}


@pytest.mark.parametrize(("harmful", "harmless", "place"), FLOWS.values(), ids=FLOWS)
def test_values_flow_through(harmful: str, harmless: str, place: str) -> None:
    assert rules_met(harmful + place) == {"shuffle"}
    assert rules_met(harmless + place) == set()


@pytest.mark.parametrize("rate", ["0.1", "0.0"])
def test_a_rate_of_dropout_flows_from_the_models_own_default(rate: str) -> None:
    source = f"""class Net(nn.Module):
    def __init__(self, width, p={rate}):
        self.drop = nn.Dropout(p)
        self.layer = nn.LSTM(width, width, dropout=p)
net = Net(8)
"""
    met = rules_met(source)
    assert met == ({"dropout", "dropout-argument"} if rate == "0.1" else set())


def test_what_no_script_says_could_not_be_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    # given a script whose shuffling a file decides that is not there
    script = tmp_path / "train.py"
    head = "from torch.utils.data import DataLoader\n"
    script.write_text(head + "DataLoader(data, shuffle=load_options().shuffle)\n")
    # when it is looked at
    code = main(["check", "--script", str(script)])
    # then it is neither found nor silent, and its twin is silent
    said = capsys.readouterr().out
    assert (code, "1 place that could not be told, in 1 script" in said) == (2, True)
    script.write_text(head + "DataLoader(data, shuffle=False)\n")
    assert main(["check", "--script", str(script)]) == 0
    assert "No line that makes runs incomparable" in capsys.readouterr().out


SEED = "torch.manual_seed(0)"


@pytest.mark.parametrize(
    ("seeding", "told"),
    [
        (f"if False:\n    {SEED}", True),
        (f"p.add_argument('--seed')\nif a.seed is not None:\n    {SEED}", True),
        (f"def seed():\n    {SEED}", True),
        (f"if unknown():\n    {SEED}", False),
        (f"if True:\n    {SEED}", None),
        (f"p.add_argument('--seed', default=3)\nif a.seed is not None:\n    {SEED}", None),
        (f"def seed():\n    {SEED}\nseed()", None),
        (f"def main():\n    {SEED}\nif __name__ == '__main__':\n    main()", None),
    ],
)
def test_a_seed_that_is_not_come_to_seeds_nothing(seeding: str, told: bool | None) -> None:
    # given a script with an optimizer, and a seed under a condition or in a function
    source = f"import torch\n{seeding}\ntorch.optim.SGD(p, lr=1)\n"
    found, _ = look_at_scripts({"train.py": source})
    # then it is unseeded, or could not be told, or is seeded
    assert all("train.py:" in one.says for one in found)
    assert [(one.rule, one.certain) for one in found] == (
        [] if told is None else [("unseeded", told)]
    )


@pytest.mark.parametrize("name", ["val", "test_set", "valid_data", "evalset"])
def test_a_loader_for_validation_that_does_not_shuffle_is_no_finding(name: str) -> None:
    assert rules_met(f"loader = DataLoader({name}, num_workers=4)") == set()
    assert rules_met(f"{name}_loader = DataLoader(data, num_workers=4)") == set()
    assert rules_met(f"loader = DataLoader({name}, shuffle=True)") == {"shuffle"}


def test_the_projects_own_imports_are_looked_at_too(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    # given a script that imports its model from the next file, and a name from a package of the project
    (tmp_path / "train.py").write_text(
        "from model import Net\nfrom options import RATE\nimport numpy\nnet = Net(RATE)\n"
    )
    (tmp_path / "options").mkdir()
    (tmp_path / "options" / "__init__.py").write_text("RATE = 0.2\n")
    (tmp_path / "model.py").write_text(
        "from torch import nn\ndef Net(p):\n    return nn.Dropout(p)\n"
    )
    (tmp_path / "other.py").write_text("import torch\ntorch.seed()\n")
    # when the script is looked at
    assert main(["check", "--json", "--script", str(tmp_path / "train.py")]) == 1
    answer = json.loads(capsys.readouterr().out)
    # then the dropout of the model is found by the rate that the script hands over, and what it does not import is not
    assert [(one["rule"], Path(one["file"]).name) for one in answer["findings"]] == [
        ("dropout", "model.py")
    ]
    assert answer["looked"] == 3
    # and its twin with a rate of nothing is silent
    (tmp_path / "options" / "__init__.py").write_text("RATE = 0.0\n")
    assert main(["check", "--json", "--script", str(tmp_path / "train.py")]) == 0


def test_every_rule_has_a_case() -> None:
    assert {rule.name for rule in rules()} == {rule for rule, _, _ in CASES} | {"unseeded"}


def test_a_script_is_told_with_line_and_edit_and_what_does_not_parse_is_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    # given a folder with a script that shuffles and one that is no Python
    good, bad = tmp_path / "train.py", tmp_path / "broken.py"
    good.write_text(
        "from torch.utils.data import DataLoader\nloader = DataLoader(x, shuffle=True)\n"
    )
    bad.write_text("def f(:\n")
    # when both are looked at
    assert main(["check", "--script", str(tmp_path)]) == 1
    # then one is told and the other said to be none
    said = capsys.readouterr().out
    assert f"{good}:2  loader = DataLoader(x, shuffle=True)" in said
    assert "instead: shuffle=False" in said
    assert f"not looked at: {bad} is no Python of this version" in " ".join(said.split())
    # and alone it fails, while a script with nothing in it is fine
    assert main(["check", "--script", str(bad)]) == 2
    good.write_text("print(1)\n")
    capsys.readouterr()
    assert main(["check", "--script", str(good), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["findings"] == []


def test_a_folder_is_the_projects_own_scripts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    # given a project with an environment in it
    for folder in ("src", ".venv/lib/site-packages/pkg", "env/lib/site-packages/pkg"):
        (tmp_path / folder).mkdir(parents=True)
        (tmp_path / folder / "a.py").write_text("import torch\ntorch.seed()\n")
    # then its own script alone is looked at
    assert main(["check", "--json", "--script", str(tmp_path)]) == 1
    answer = json.loads(capsys.readouterr().out)
    assert answer["looked"] == 1
    assert [one["file"] for one in answer["findings"]] == [str(tmp_path / "src" / "a.py")]


def test_a_script_is_never_run(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(f"open({str(tmp_path / 'made')!r}, 'w')\nraise SystemExit(7)\n")
    assert main(["check", "--script", str(script)]) == 0
    assert not (tmp_path / "made").exists()
