"""What a recorded script's own variables lead to at its end decides the verdict and the exit code."""

from __future__ import annotations

from pathlib import Path

from workplace import BIN, Workplace

PROGRAM = """
    import sys, time, uuid
    import torch

    class Trainer:
        def __init__(self, model):
            self.model, self.callbacks = model, [self]
            self.shadow = [one.detach().clone() for one in model.parameters()]
            self.began, self.name = time.time(), str(uuid.uuid4())

        def fit(self, optimizer):
            for _ in range(4):
                optimizer.zero_grad()
                self.model(torch.randn(4, 4)).square().mean().backward()
                optimizer.step()
                with torch.no_grad():
                    for place, one in enumerate(self.model.parameters()):
                        self.shadow[place] = 0.9 * self.shadow[place] + 0.1 * one

    torch.manual_seed(0)
    torch.set_num_threads(int(sys.argv[2]))
    model = torch.nn.Linear(4, 4)
    ema = {name: one.clone() for name, one in model.state_dict().items()}
    trainer = Trainer(model)
    trainer.fit(torch.optim.Adam(model.parameters()))
    if sys.argv[1] == "global":
        ema["weight"] += 1
    if sys.argv[1] == "trainer":
        trainer.shadow[1] += 1
"""


def test_variables_of_the_script_are_named_as_it_writes_them(
    tmp_path: Path, programs: Path
) -> None:
    workplace = Workplace(tmp_path, programs)
    workplace.script("train.py", PROGRAM)
    runs = {
        "ref": ("", "1"),
        "twin": ("", "1"),
        "threads": ("", "2"),
        "global": ("global", "1"),
        "trainer": ("trainer", "1"),
    }
    for name, arguments in runs.items():
        workplace.record("-o", name, "--", "python", "train.py", *arguments)
    found = {
        name: workplace.run(BIN / "lockstep", "compare", "ref", name)
        for name in runs
        if name != "ref"
    }
    assert [one.code for one in found.values()] == [0, 0, 1, 1]
    assert "ema['weight'] differs at the end" in found["global"].out
    assert "trainer.shadow[1] differs at the end" in found["trainer"].out
