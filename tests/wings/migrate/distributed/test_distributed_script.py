"""Which places of a main script change for many processes, and which scripts are left alone with a reason."""

import ast
from functools import partial

import pytest
from places import HEAD, Migrated, many, module
from pyflakes import checker
from runs import SCRIPTS

from lockstep.wings.migrate.distributed import WRAP, distribute

LOOP = """
for epoch in range(3):
    for x, y in loader:
        optimizer.zero_grad()
        nn.functional.mse_loss(model(x), y).backward()
        optimizer.step()
"""
MODEL = """
model = nn.Linear(4, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
"""


def script(
    loader="loader = DataLoader(data, batch_size=4, shuffle=True)", model=MODEL, loop=LOOP, end=""
):
    return f"{loader}\n{model}{loop}{end}"


# -- loaders


def test_the_training_loader_is_shared_out_and_the_other_is_not():
    found = many(script(end="for x, y in test_loader:\n    model(x)\n").replace(
        "model =", "test_loader = DataLoader(data)\nmodel =", 1))  # fmt: skip
    assert "loader = training_loader(DataLoader, data, batch_size=4, shuffle=True)" in found.text
    assert "test_loader = DataLoader(data)" in found.text
    assert found.rewritten("distributed/loader")[0].startswith("training: the loop over it in line")
    assert found.kept("distributed/evaluation")


def test_shuffle_is_never_given_twice():
    for arguments in (
        "data, 4, True",
        "data, shuffle=True, **options",
        "dataset=data, shuffle=flag",
    ):
        found = many(script(f"loader = DataLoader({arguments})"))
        assert f"training_loader(DataLoader, {arguments})" in found.text


@pytest.mark.parametrize(
    ("call", "why"),
    [
        ("DataLoader(data, sampler=picked)", "sampler of its own"),
        ("DataLoader(data, batch_sampler=picked)", "batch_sampler of its own"),
        ("DataLoader(data, 4, False, picked)", "by position"),
        ("DataLoader(*arguments)", "inside a *"),
        ("DataLoader(data, **{'sampler': picked})", "inside **"),
        ("DataLoader(Stream())", "IterableDataset"),
    ],
)
def test_a_loader_that_takes_no_sampler_is_listed_and_nothing_changes(call, why):
    stream = "class Stream(torch.utils.data.IterableDataset): pass\n"
    found = many(stream + script(f"loader = {call}"))
    assert found.unchanged
    assert why in found.listed("distributed/loader")[0]


def test_an_empty_sampler_is_none():
    found = many(script("loader = DataLoader(data, batch_sampler=None, shuffle=True)"))
    assert not found.unchanged


def test_a_name_alone_makes_no_training_loader():
    found = many(
        "train_loader = DataLoader(data, shuffle=True)\n" + script("loader = DataLoader(data)")
    )
    assert "train_loader = DataLoader(data, shuffle=True)" in found.text
    assert any(
        "looks like the training's" in reason for reason in found.listed("distributed/loader")
    )


def test_a_loader_made_elsewhere_is_listed():
    found = many(
        "from data import train_loader\n" + script() + LOOP.replace("loader", "train_loader")
    )
    assert "made elsewhere" in found.listed("distributed/loader")[0]
    assert "in loader:" in found.text


TRAINER = """
class Trainer:
    def __init__(self, model, loader):
        self.model = model
        self.loader = loader

    def run(self):
        for epoch in range(3):
            for x in self.loader:
                self.model(x).sum().backward()

loader = DataLoader(data, shuffle=True)
model = nn.Linear(1, 1)
Trainer(model, loader).run()
"""


def test_a_training_inside_an_object_is_listed_and_nothing_changes():
    # before, loaders and models were followed through functions and attributes
    found = many(TRAINER)
    assert found.unchanged
    assert any(
        "looks like the training's" in reason for reason in found.listed("distributed/loader")
    )


FUNCTIONS = """
def fit(loader, {parameter}, opt):
    for epoch in range(3):
        for x in loader:
            model(x).sum().backward()

loader = DataLoader(data, shuffle=True)
other = DataLoader(data)
model = nn.Linear(1, 1)
{call}
"""


def test_a_function_that_is_given_all_by_their_own_names_is_known():
    found = many(FUNCTIONS.format(parameter="model", call="fit(loader, model, None)"))
    assert "loader = training_loader(DataLoader, data, shuffle=True)" in found.text
    assert "    for epoch in range(3):\n        if WORLD_SIZE > 1:\n" in found.text


@pytest.mark.parametrize(
    ("parameter", "call", "rule", "why"),
    [
        ("model", "fit(other, model, None)", "loader", "a loader of another name"),
        ("model", "start(fit)", "loader", "or not here"),
        ("model", "fit(loader, net, None)", "model", "a model of another name"),
    ],
)
def test_a_function_that_is_given_something_else_is_listed(parameter, call, rule, why):
    found = many(FUNCTIONS.format(parameter=parameter, call=call))
    assert found.unchanged
    assert why in found.listed(f"distributed/{rule}")[0]


def test_batches_taken_by_next_are_listed_and_nothing_changes():
    found = many(script(loop="""
batches = iter(loader)
for step in range(9):
    model(next(batches)).sum().backward()
"""))  # fmt: skip
    assert found.unchanged
    assert any(
        "looks like the training's" in reason for reason in found.listed("distributed/loader")
    )


@pytest.mark.parametrize("name", ["loader", "model"])
def test_an_imported_name_is_no_variable_of_the_file(name):
    # given a training on what is imported, and another function with a variable of that name
    other = {"loader": "DataLoader(data)", "model": "nn.Linear(1, 1)"}[name]
    local = f"def other():\n    {name} = {other}\n    return {name}\n"
    rest = {"loader": MODEL, "model": "loader = DataLoader(data, shuffle=True)\n"}[name]
    found = many(f"from elsewhere import {name}\n{local}{rest}{LOOP}")
    assert found.unchanged
    assert "nothing was made distributed" in "".join(row.reason for row in found.rows)


# -- epochs


def test_the_sampler_is_told_each_epoch():
    found = many(script())
    assert (
        "for epoch in range(3):\n    if WORLD_SIZE > 1:\n        loader.sampler.set_epoch(epoch)\n"
        in found.text
    )


def test_an_epoch_that_cannot_be_told_is_listed():
    found = many(script(loop=LOOP.replace("for epoch in range(3)", "while True")))
    assert "set_epoch" in found.listed("distributed/epoch")[0]
    assert "set_epoch" not in found.text


def test_a_loader_made_in_each_epoch_is_not_told_before_it_is_there():
    found = many(MODEL + """
for epoch in range(3):
    loader = DataLoader(data, shuffle=True)
    for x in loader:
        model(x).sum().backward()
""")  # fmt: skip
    assert found.listed("distributed/epoch")
    assert "set_epoch" not in found.text


# -- the model


def test_the_model_is_wrapped_once_it_is_ready():
    model = (
        MODEL + "model.load_state_dict(torch.load('m.pt'))\nif fast:\n    model.cuda()\n# here\n"
    )
    found = many(script(model=model))
    assert found.text.count("DistributedDataParallel(model)") == 1
    assert (
        "accelerator())\nif WORLD_SIZE > 1:\n    model = torch.nn.parallel.DistributedDataParallel(model)\n# here"
        in found.text
    )


def test_another_name_can_be_given():
    found = many(script().replace("model", "net"), "net")
    assert "net = torch.nn.parallel.DistributedDataParallel(net)" in found.text


@pytest.mark.parametrize("name", ["nobody", "optimizer_of_another"])
def test_an_unknown_name_changes_nothing(name):
    found = many(script(), name)
    assert found.unchanged
    assert "--model" in found.listed(WRAP)[0]


def test_a_second_model_that_is_trained_must_be_named():
    second = MODEL + "other = nn.Linear(2, 2)\nsecond = torch.optim.Adam(other.parameters())\n"
    text = script(model=second, loop=LOOP.replace("model(x)", "other(model(x))"))
    found = many(text)
    assert found.unchanged
    assert "--model model,other" in found.listed(WRAP)[0]
    assert many(text, "model", "other").text.count("parallel.DistributedDataParallel(") == 2


def test_a_model_that_moves_after_training_began_is_left():
    found = many(script(end="def later():\n    model.cuda()\n"))
    assert "moved after" in found.listed(WRAP)[0]
    assert "WORLD_SIZE" not in found.text


def test_what_is_the_models_own_is_asked_of_the_model():
    found = many(
        script(end="model.eval()\ntorch.save(model.state_dict(), 'm')\nprint(model.weight.shape)\n")
    )
    assert "torch.save(unwrapped(model).state_dict(), 'm')" in found.text
    assert "print(unwrapped(model).weight.shape)" in found.text
    assert "\nmodel.eval()" in found.text


def test_what_comes_before_the_wrap_stays():
    found = many(script(model=MODEL + "print(model.weight)\nmodel.half()\n"))
    assert "print(model.weight)" in found.text
    assert "def unwrapped" not in found.text


def test_gradients_past_the_wrapper_are_listed_not_rewritten():
    found = many(script(loop=LOOP.replace("model(x)", "model.encode(x)")))
    assert "would not be averaged" in found.listed("distributed/unwrapped")[0]
    assert "model.encode(x)" in found.text


def test_the_same_call_without_gradients_is_rewritten():
    found = many(script(end="with torch.no_grad():\n    model.encode(x)\n"))
    assert "unwrapped(model).encode(x)" in found.text


def test_a_stranger_that_gets_the_model_is_listed():
    found = many(script(end="import helper\nhelper.show(model)\n"))
    assert "helper.show" in found.listed("distributed/unwrapped")[0]


# -- one process tells and saves


def test_what_other_rules_write_at_the_end_of_a_line_stays_before_the_wrap():
    model = MODEL.replace("nn.Linear(4, 2)", "nn.Linear(4, 2).cuda(0)")
    found = many(script(model=model))
    assert "model = nn.Linear(4, 2).to(accelerator(LOCAL_RANK))\nif WORLD_SIZE > 1:\n" in found.text


def test_each_message_has_its_condition_and_keeps_its_lines():
    found = many(script(end="print(1)\n# said\nprint('a',\n      'b')\n"))
    guarded = "if RANK == 0:\n    print(1)\n# said\nif RANK == 0:\n    print('a',\n          'b')\n"
    assert guarded in found.text


def test_the_lines_of_a_string_stay():
    found = many(script(end='print("""a\nb""",\n  1)\n'))
    assert 'if RANK == 0:\n    print("""a\nb""",\n      1)\n' in found.text


@pytest.mark.parametrize(
    "statement",
    [
        "print(model(x))",
        "print(measure(model))",
        "torch.save(model(x), 'y')",
        "print(next(batches))",
        "print(scheduler.step())",
    ],
)
def test_what_runs_the_model_stays_with_every_process(statement):
    measure = "def measure(m):\n    return m(1)\n"
    found = many(measure + script(end=statement + "\n"))
    assert f"\n{statement}\n" in found.text
    kind = "saving" if "save" in statement else "logging"
    assert "may run the model" in found.listed(f"distributed/{kind}")[0]


def test_messages_of_failures_are_everyones():
    found = many(script(end="try:\n    pass\nexcept ValueError as e:\n    print(e)\n"))
    assert "    print(e)\n" in found.text
    assert "RANK == 0" not in found.text


def test_an_own_print_is_no_print():
    found = many("def print(x):\n    pass\n" + script(end="print(1)\n"))
    assert "\nprint(1)\n" in found.text


@pytest.mark.parametrize(
    ("head", "line"),
    [
        ("from tqdm import tqdm", "tqdm(range(9))"),
        ("import wandb", "wandb.init(project='p')"),
        ("from torch.utils.tensorboard import SummaryWriter", "SummaryWriter('runs')"),
        ("import logging", "logger = logging.getLogger('a')"),
    ],
)
def test_what_else_shows_or_logs_is_listed(head, line):
    # before, it was written with rank 0 as its condition
    found = many(f"{head}\n" + script(end=f"{line}\n"))
    assert f"\n{line}\n" in found.text
    assert found.listed("distributed/logging")


@pytest.mark.parametrize("line", ["np.save('a', x)", "net.save_pretrained('a')"])
def test_rank_0_saves_whatever_is_saved(line):
    found = many("import numpy as np\n" + script(end=f"{line}\n"))
    assert f"if RANK == 0:\n    {line}\n" in found.text
    assert found.rewritten("distributed/saving")


def test_a_progress_bar_over_the_training_is_a_loop_over_its_loader():
    text = script(loop=LOOP.replace("in loader", "in tqdm(loader)"))
    assert "training_loader(" in many("from tqdm import tqdm\n" + text).text


# -- checkpoints


def test_a_checkpoint_that_every_process_loads_is_listed():
    found = many(script(end="state = torch.load('m')\nmodel.load_state_dict(state['model'])\n"))
    assert "state = torch.load('m')" in found.text
    assert found.listed("distributed/load")


def test_a_load_that_names_its_place_is_no_risk():
    end = "model.load_state_dict(torch.load('m', map_location=place))\n"
    assert not many(script(end=end)).listed("distributed/load")


# -- risks


@pytest.mark.parametrize(
    ("rule", "line"),
    [
        ("seed", "torch.manual_seed(1)"),
        ("files", "import os; os.makedirs('out')"),
        ("files", "open('log', 'w')"),
        ("batch-norm", "nn.BatchNorm2d(3)"),
        ("files", "get(download=True)"),
        ("seed", "torch.utils.data.random_split(data, [1, 2])"),
    ],
)
def test_risks_are_listed(rule, line):
    assert many(script(end=f"{line}\n")).listed(f"distributed/{rule}")


@pytest.mark.parametrize(
    "line", ["import os; os.makedirs('o', exist_ok=True)", "open('log')", "get(download=False)"]
)
def test_what_is_no_risk_is_not_listed(line):
    assert not many(script(end=f"{line}\n")).listed("distributed/files")


def test_a_split_that_all_share_is_no_risk():
    line = "torch.utils.data.random_split(data, [1, 2], generator=shared)\n"
    assert not many(script(end=line)).listed("distributed/seed")


def test_counts_of_samples_are_listed():
    found = many(script(end="n = len(loader.dataset)\n"))
    assert "n = len(loader.dataset)" in found.text
    assert found.listed("distributed/metric")


def test_sums_of_a_share_are_listed():
    found = many(script(loop=LOOP + "        total += model(x).sum().item()\n        n += 1\n"))
    assert len(found.listed("distributed/metric")) == 1


def test_tabs_stay_tabs():
    text = (HEAD + script(end="print(1,\n\t2)\n")).replace("    ", "\t")
    found = many_file(text.encode(), "neutral")
    assert "\tif WORLD_SIZE > 1:\n\t\tloader.sampler.set_epoch(epoch)\n" in found.text
    assert "if RANK == 0:\n\tprint(1,\n\t\t2)\n" in found.text


def test_the_batch_size_is_listed():
    assert "WORLD_SIZE" in many(script()).listed("distributed/batch-size")[0]


# -- devices


def test_device_0_becomes_the_processs_own():
    found = many(script(end="torch.cuda.set_device(0)\nx.to('cuda:0')\n"), target="npu")
    assert "torch.npu.set_device(LOCAL_RANK)\nx.to('npu')\n" in found.text


def test_other_devices_are_listed():
    found = many(script(end="torch.cuda.set_device(chosen)\nx.to('cuda:1')\n"), target="npu")
    assert len(found.listed("distributed/device")) == 2
    assert "x.to('npu:1')" in found.text


def test_a_number_in_what_is_rewritten_whole_is_listed():
    lines = "torch.load('m', map_location=lambda s, l: s.cuda(0))\nload(lambda s, l: s.cuda(0))\n"
    found = many(script(end=lines), target="npu")
    assert "torch.load('m', map_location=\"npu\")" in found.text
    assert len(found.listed("distributed/device")) == 1


# -- where the processes meet


def test_they_meet_under_the_main_guard():
    body = "".join(f"    {line}\n" for line in script().splitlines())
    found = many(f"def main():\n{body}\nif __name__ == '__main__':\n    main()  # all\n")
    assert found.text.endswith(
        "if __name__ == '__main__':\n    start_processes()\n    main()  # all\n"
        "    if WORLD_SIZE > 1:\n        torch.distributed.destroy_process_group()\n"
    )


def test_they_meet_at_the_head_where_the_module_itself_trains():
    text = many(script()).text
    assert text.index("\nstart_processes()\n") < text.index("training_loader(DataLoader, data")


def test_a_guard_on_one_line_works():
    body = "".join(f"    {line}\n" for line in script().splitlines())
    found = many(f"def main():\n{body}\nif __name__ == '__main__': main()\n")
    assert "if __name__ == '__main__': start_processes(); main()" in found.text


def test_taken_names_are_not_taken_again():
    found = many("RANK = 'private'\nWORLD_SIZE = 1\n" + script(end="print(RANK)\n"))
    assert "if PROCESS_RANK == 0:\n    print(RANK)" in found.text
    assert "if PROCESS_COUNT > 1:" in found.text


# -- whole files


@pytest.mark.parametrize("name", ["functions", "module_level"])
@pytest.mark.parametrize("target", ["neutral", "npu", "xpu", "hpu"])
def test_a_second_run_changes_nothing(name, target):
    once = many_file((SCRIPTS / f"{name}.py").read_bytes(), target)
    again = many_file(once.plan.migrated(), target)
    assert again.unchanged
    assert again.kept("distributed/done")


def test_a_device_that_is_alone_in_its_machine_is_told():
    found = many(script(), target="mps")
    assert found.unchanged
    assert "one device" in found.listed(WRAP)[0]


def test_the_backend_of_the_target_stands_beside_the_cpus():
    for target, backend in {"npu": "hccl", "xpu": "xccl", "hpu": "hccl"}.items():
        assert f'backend = "cpu:gloo,{target}:{backend}"' in many(script(), target=target).text


def test_a_script_that_was_made_neutral_before_can_follow():
    plain = Migrated((SCRIPTS / "module_level.py").read_bytes(), [])
    found = many_file(plain.plan.migrated(), "neutral")
    assert found.text.count("def accelerator(") == 1
    assert found.text.index("ACCELERATOR = ") < found.text.index("\nstart_processes()\n")


def test_other_line_ends_and_encodings_stay():
    text = (HEAD + script(end="print('é')\n")).replace("\n", "\r\n")
    data = ("# coding: latin-1\r\n" + text).encode("latin-1")
    found = many_file(data, "neutral")
    assert b"\n" not in found.plan.migrated().replace(b"\r\n", b"")
    assert b"print('\xe9')" in found.plan.migrated()


@pytest.mark.parametrize(
    "line",
    [
        "torch.distributed.init_process_group('gloo')",
        "model = nn.parallel.DistributedDataParallel(model)",
        "sampler = torch.utils.data.distributed.DistributedSampler(data)",
        "model = nn.DataParallel(model)",
    ],
)
def test_a_script_with_its_own_processes_is_left_alone(line):
    found = many(script(end=f"{line}\n"))
    assert "WORLD_SIZE" not in found.text
    assert found.listed("distributed/own")


def test_a_script_without_training_is_left_alone():
    found = many("model = nn.Linear(1, 1)\nprint(model)\n")
    assert found.unchanged
    assert (
        "no loop over a variable that holds a torch DataLoader"
        in found.listed("distributed/loader")[0]
    )


def test_an_imported_module_is_listed_and_never_changed():
    found = module(script(end="torch.save(model, 'm')\n"))
    assert found.unchanged
    assert found.listed("distributed/loader")
    assert found.listed("distributed/saving")
    assert found.listed("distributed/elsewhere")


def many_file(data, target):

    return Migrated(data, [partial(distribute, names=("model",))], target)


@pytest.mark.parametrize("target", ["neutral", "npu"])
def test_no_checker_of_names_finds_more_than_before(target):
    for name in ("functions", "module_level"):
        data = (SCRIPTS / f"{name}.py").read_bytes()
        assert warnings_of(many_file(data, target).text) <= warnings_of(data.decode())


def warnings_of(text):
    return {
        message.message % message.message_args
        for message in checker.Checker(ast.parse(text)).messages
        if "# noqa" not in text.splitlines()[message.lineno - 1]
    }


# -- devices that are put together


@pytest.mark.parametrize(
    "device",
    [
        'f"cuda:{args.gpu}"',
        '"cuda:%d" % args.gpu',
        '"cuda:%s" % args.gpu',
        '"cuda:%(gpu)d" % vars(args)',
        '"cuda:{}".format(args.gpu)',
        '"cuda:{gpu}".format(gpu=args.gpu)',
        '"cuda:" + str(args.gpu)',
    ],
)
def test_a_device_that_is_put_together_is_listed_for_every_process(device):
    found = many(script(f"device = {device}\nloader = DataLoader(data)"))
    assert not found.unchanged
    assert found.listed("distributed/device") == ["every process would take this device"]


@pytest.mark.parametrize(
    "text",
    [
        '"cpu:%d" % args.gpu',
        '"cuda %d" % args.gpu',
        '"cuda:{} is busy".format(args.gpu)',
        '"cuda:%d is busy" % args.gpu',
        '"cuda" + suffix',
        '"cuda:{}".join(names)',
        '"cuda:" * 3',
    ],
)
def test_other_texts_are_no_devices_of_processes(text):
    found = many(script(f"show({text})\nloader = DataLoader(data)"))
    assert not found.unchanged
    assert not found.listed("distributed/device")
