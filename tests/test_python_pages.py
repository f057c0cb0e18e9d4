"""The pages about Lockstep in Python: their code runs, and the reference leads to docstrings."""

from __future__ import annotations

import ast
import importlib
import re
import subprocess
import sys
from pathlib import Path

import pytest

import lockstep

ROOT = Path(__file__).parents[1]
_BLOCK = re.compile(r"```python\n(.*?)```", re.DOTALL)


def blocks() -> list[str]:
    """The code of the page on notebooks, cell by cell."""
    return _BLOCK.findall((ROOT / "docs" / "notebook.md").read_text())


def shown_by(cell: str, names: dict[str, object]) -> object:
    """Run a cell as a notebook does: the value of its last line is what it shows."""
    tree = ast.parse(cell)
    last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None
    exec(compile(tree, "cell", "exec"), names)
    if last is None:
        return None
    return eval(compile(ast.Expression(last.value), "cell", "eval"), names)


def test_the_cells_of_the_notebook_page_show_what_it_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {"__name__": "__main__"}
    cells = blocks()
    # when its first cell runs, the comparison is at fault where the page says so
    found = shown_by(cells[0], names)
    said = re.search(r"<Comparison (.*), \.\.\.>", (ROOT / "docs" / "notebook.md").read_text())
    assert said is not None
    assert repr(found).startswith(f"<Comparison {said[1]}")
    # and the next ones make the page and open the recording
    shown_by(cells[1], names)
    assert (tmp_path / "comparison.html").stat().st_size > 0
    assert repr(shown_by(cells[2], names)).startswith("Recording('ref'")
    # and the test passes for the same training again, and fails for the other
    shown_by('train("none", "ref_again")', names)
    shown_by(cells[3], names)
    shown_by("test_the_new_kernel_trains_as_the_old_one()", names)
    with pytest.raises(AssertionError, match="DIVERGED"):
        shown_by('lockstep.assert_agree("ref", "cand")', names)


_TRAINER = """
import lockstep, torch
from torch import nn
from transformers import Trainer, TrainingArguments

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 1)

    def forward(self, x, labels=None):
        result = self.layer(x).squeeze(-1)
        return {"loss": (result - labels).square().mean(), "logits": result}

model = Net()
rows = [{"x": torch.randn(4), "labels": torch.tensor(1.0)} for _ in range(32)]
arguments = TrainingArguments("out", max_steps=5, report_to=[], use_cpu=True, disable_tqdm=True)
trainer = Trainer(model, arguments, train_dataset=rows)
"""
_LIGHTNING = """
import lockstep, torch, lightning
from torch import nn

class Net(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 1)

    def training_step(self, batch, index):
        return self.layer(batch).square().mean()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)

module = Net()
loader = torch.utils.data.DataLoader(torch.randn(32, 4), batch_size=4)
trainer = lightning.Trainer(
    max_steps=5, accelerator="cpu", logger=False, enable_checkpointing=False, enable_progress_bar=False
)
"""


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("made", "call"), [(_TRAINER, "trainer.train()"), (_LIGHTNING, "trainer.fit(module, loader)")]
)
def test_trainers_need_no_callback(made: str, call: str, tmp_path: Path) -> None:
    # given a trainer, and the block that the page shows for it
    (recipe,) = [one for one in blocks() if call in one]
    subprocess.run(
        [sys.executable, "-c", f"{made}\n{recipe}"], cwd=tmp_path, check=True, capture_output=True
    )
    # then its first three steps are recorded, under the model's own names
    recording = lockstep.open(tmp_path / "ref")
    assert recording.ranks["rank0"].steps == (0, 1, 2)
    assert "layer" in {one.site.module for one in recording.records()}


def targets() -> list[str]:
    """What the reference shows the docstrings of."""
    return re.findall(
        r"^<!-- docstring: (\S+) -->$", (ROOT / "docs" / "api.md").read_text(), re.MULTILINE
    )


def test_the_reference_shows_docstrings_that_are_there() -> None:
    assert len(targets()) > 15
    for target in targets():
        module, _, name = target.rpartition(".")
        assert len(getattr(importlib.import_module(module), name).__doc__) > 20, target


def test_the_reference_has_every_public_name() -> None:
    page = (ROOT / "docs" / "api.md").read_text()
    listed = re.findall(r"^\| \[`lockstep\.(\w+)`\]", page, re.MULTILINE)
    assert set(listed) == set(lockstep.__all__) - {"__version__"}
    # what is needed first stands first
    assert listed[:4] == ["record", "compare_recordings", "open", "assert_agree"]
    # and the functions it leads to are those that the face gives
    shown = {target.rpartition(".")[2] for target in targets()}
    assert {getattr(lockstep, name).__name__ for name in listed if name != "reading"} <= shown
