"""`--visible-device`: numbers go, the environment chooses, and what cannot be told is listed."""

import pytest
from places import visible

from lockstep.wings.migrate.plan import Outcome


def test_a_number_becomes_the_first_device_that_is_seen():
    found = visible('x.to("cuda:3")\ntorch.cuda.set_device(3)\ny.cuda(3)\n', "npu")
    assert found.text.endswith('x.to("npu")\ntorch.npu.set_device(0)\ny.npu(0)\n')
    reasons = found.rewritten("visible/number")
    assert len(reasons) == 3
    assert all("ASCEND_RT_VISIBLE_DEVICES=3 python" in reason for reason in reasons)


@pytest.mark.parametrize(
    ("lines", "numbers"),
    [
        ('a.to("cuda:0")\nb.to("cuda:1")\n', "0, 1"),
        ('a.cuda(3)\nf(device="cuda:1")\n', "1, 3"),
        ('torch.cuda.set_device(2)\nx = torch.device("cuda", 0)\n', "0, 2"),
    ],
)
def test_several_devices_stay_several(lines, numbers):
    # given a script with a model on two devices, when the environment is to choose
    found = visible(f"import torch\n{lines}", "npu")
    # then none of its numbers goes, and each is listed
    assert not found.rewritten("visible/number")
    reasons = found.listed("visible/number")
    assert len(reasons) == 2
    assert all(f"several devices ({numbers})" in reason for reason in reasons)
    for number in numbers.split(", "):
        assert number in found.text.partition("\n")[2]


def test_one_number_in_many_places_is_one_device():
    found = visible('a.to("cuda:1")\nb.cuda(1)\nc.to("cuda")\n', "npu")
    assert len(found.rewritten("visible/number")) == 2
    assert not found.listed("visible/number")


def test_a_location_is_rewritten_whole():
    found = visible("torch.load('m', map_location=lambda s, l: s.cuda(3))\n", "npu")
    assert "torch.load('m', map_location=\"npu\")" in found.text


def test_in_neutral_form_too():
    found = visible('import torch\nd = torch.device("cuda:3")\n')
    assert "d = torch.device(accelerator())" in found.text
    assert "CUDA_VISIBLE_DEVICES=3" in found.rewritten("visible/number")[0]


@pytest.mark.parametrize("line", ['x.to("cuda")', "torch.cuda.set_device(0)", "y.cuda()"])
def test_what_has_no_number_is_no_ones_business_here(line):
    assert not [row for row in visible(f"{line}\n", "npu").rows if row.rule.startswith("visible")]


def test_a_variable_that_the_script_sets_becomes_a_default():
    line = "import os\nos.environ['CUDA_VISIBLE_DEVICES'] = '3'  # mine\n"
    found = visible(line, "npu")
    assert "os.environ.setdefault('ASCEND_RT_VISIBLE_DEVICES', '3')  # mine\n" in found.text
    assert visible(line, "neutral").text.endswith(
        "os.environ.setdefault('CUDA_VISIBLE_DEVICES', '3')  # mine\n"
    )


@pytest.mark.parametrize(
    "line",
    ["os.environ['OTHER'] = '3'", "environ['CUDA_VISIBLE_DEVICES'] = '3'", "os.environ.get('A')"],
)
def test_other_variables_stay(line):
    assert line in visible(f"import os\n{line}\n").text


def test_it_holds_in_the_running_script(monkeypatch):
    found = visible("import os\nos.environ['CUDA_VISIBLE_DEVICES'] = '3'\n")
    for given, seen in (("1", "1"), (None, "3")):
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
        if given:
            monkeypatch.setenv("CUDA_VISIBLE_DEVICES", given)
        names = {}
        exec(found.text, names)
        assert names["os"].environ["CUDA_VISIBLE_DEVICES"] == seen


@pytest.mark.parametrize(
    ("line", "rule"),
    [
        ("torch.cuda.set_device(args.gpu)", "visible/number"),
        ('d == "cuda:3"', "visible/number"),
        ("load('m', lambda s, l: s.cuda(3))", "visible/number"),
        ('f"cuda:{rank}"', "visible/number"),
        ('"cuda:%d" % args.gpu', "visible/number"),
        ('"cuda:{}".format(rank)', "visible/number"),
        ('"cuda:" + str(rank)', "visible/number"),
        ('parser.add_argument("--gpu", type=int, default=1)', "visible/option"),
        ("torch.distributed.init_process_group('gloo')", "visible/distributed"),
    ],
)
def test_what_is_known_only_as_it_runs_is_listed(line, rule):
    found = visible(f"x = {line}\n", "npu")
    assert found.listed(rule)


def test_other_options_are_not_listed():
    found = visible('parser.add_argument("--epochs", type=int, default=1)\n')
    assert not [row for row in found.rows if row.outcome is Outcome.LISTED]


@pytest.mark.parametrize("target", ["neutral", "npu", "xpu", "hpu", "mps"])
@pytest.mark.parametrize("index", [0, 3])
def test_a_second_run_changes_nothing(target, index):
    text = (
        "import os\nimport torch\nos.environ['CUDA_VISIBLE_DEVICES'] = '3'\n"
        'torch.cuda.set_device(3)\nd = torch.device("cuda:3")\ne = torch.device("cuda", 3)\n'
        "torch.load('m', map_location=lambda storage, location: storage.cuda(3))\n"
    ).replace("3", str(index))
    once = visible(text, target)
    assert visible(once.plan.migrated(), target).unchanged
