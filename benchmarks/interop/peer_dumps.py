"""Runs in the peer's environment: dumps trainings with mindstudio-probe, and compares the dumps with its own command.

    python peer_dumps.py MODEL DIRECTORY

leaves in DIRECTORY a dump `sound`, a dump `threads` of the same step on another number of threads, one for each
planted fault with `planted.json`, where it is, and `flagged.json`, the first row that the peer's comparison flags.
"""

from __future__ import annotations

import csv
import json
import os
import re
import sys
import traceback
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

FOLDERS = {"Functional": F, "Torch": torch}
Alter = Callable[[Tensor], None]


@dataclass(frozen=True)
class Fault:
    """A wrong kernel: the n-th call of an operator (`Functional.linear`), and what becomes of its result."""

    operator: str
    call: int
    kind: str

    @property
    def name(self) -> str:
        """Of its dump."""
        return re.sub(r"\W+", "_", f"{self.operator} {self.call} {self.kind}")


def _too_large(result: Tensor) -> None:
    result.mul_(1.01)


def _one_element(result: Tensor) -> None:
    flat = result.view(-1)
    flat[flat.numel() // 3] += 0.5 * float(result.abs().max())


def _rounded(result: Tensor) -> None:
    result.copy_(result.to(torch.bfloat16))


def _shifted(result: Tensor) -> None:
    result.add_(1e-3 * float(result.norm()) / result.numel() ** 0.5)


ALTERS: dict[str, Alter] = {
    "1 % too large": _too_large, "one element off": _one_element, "rounded": _rounded, "shifted": _shifted,
}  # fmt: skip
SITES = {
    "GPT-2": ("Torch.addmm.0", "Functional.layer_norm.1", "Functional.scaled_dot_product_attention.0", "Torch.addmm.3",
              "Functional.layer_norm.2", "Torch.addmm.5", "Functional.linear.0"),
    "BERT": ("Functional.embedding.0", "Functional.linear.0", "Functional.scaled_dot_product_attention.1",
             "Functional.linear.4", "Functional.linear.7", "Torch.tanh.0", "Functional.layer_norm.3"),
    "ResNet": ("Functional.conv2d.0", "Functional.batch_norm.1", "Functional.relu.2", "Functional.conv2d.4",
               "Functional.batch_norm.6", "Functional.linear.0"),
}  # fmt: skip


def faults_of(model: str) -> list[Fault]:
    """The planted faults: each site with one kind after the other."""
    kinds = list(ALTERS)
    found = []
    for number, site in enumerate(SITES[model]):
        operator, _, call = site.rpartition(".")
        found.append(Fault(operator, int(call), kinds[number % len(kinds)]))
    return found


def built(model: str) -> tuple[nn.Module, dict[str, Tensor]]:
    """A model with random weights, and a batch."""
    import transformers

    torch.manual_seed(0)
    tokens = torch.randint(0, 200, (4, 24), generator=torch.Generator().manual_seed(1))
    if model == "GPT-2":
        config = transformers.GPT2Config(
            vocab_size=200,
            n_positions=32,
            n_embd=64,
            n_layer=2,
            n_head=4,
            resid_pdrop=0,
            embd_pdrop=0,
            attn_pdrop=0,
        )
        return transformers.GPT2LMHeadModel(config), {"input_ids": tokens, "labels": tokens}
    if model == "BERT":
        config = transformers.BertConfig(
            vocab_size=200, hidden_size=64, num_hidden_layers=2, num_attention_heads=4, intermediate_size=128,
            hidden_dropout_prob=0, attention_probs_dropout_prob=0,
        )  # fmt: skip
        labels = torch.tensor([0, 1, 1, 0])
        return transformers.BertForSequenceClassification(config), {
            "input_ids": tokens,
            "labels": labels,
        }
    config = transformers.ResNetConfig(
        embedding_size=16,
        hidden_sizes=[16, 32, 32, 64],
        depths=[1, 1, 1, 1],
        layer_type="basic",
        num_labels=4,
    )
    images = torch.randn(4, 3, 32, 32, generator=torch.Generator().manual_seed(1))
    return transformers.ResNetForImageClassification(config), {
        "pixel_values": images, "labels": torch.tensor([0, 1, 2, 3])
    }  # fmt: skip


def plant(fault: Fault, model: nn.Module, planted: dict[str, Any]) -> None:
    """Put a wrong kernel in place of an operator, before the peer wraps it, and note where it was called."""
    kind, _, name = fault.operator.partition(".")
    holder, inside, count = FOLDERS[kind], [""], [0]
    original = getattr(holder, name)
    for path, module in model.named_modules():
        module.register_forward_pre_hook(lambda _, __, path=path: inside.append(path))
        module.register_forward_hook(lambda _, __, ___: inside.__delitem__(-1))

    def wrong(*args: Any, **kwargs: Any) -> Any:
        result = original(*args, **kwargs)
        if count[0] == fault.call:
            planted.update(asdict(fault), module=inside[-1])
            ALTERS[fault.kind](result.data)  # as a kernel does, unseen by autograd
        count[0] += 1
        return result

    setattr(holder, name, wrong)


def dump(name: str, folder: Path, fault: Fault | None = None, threads: int = 1) -> None:
    """One step, forward and backward, as the peer dumps it."""
    from msprobe.pytorch import PrecisionDebugger

    torch.set_num_threads(threads)
    model, batch = built(name)
    planted: dict[str, Any] = {}
    if fault is not None:
        plant(fault, model, planted)
    debugger = PrecisionDebugger(task="tensor", dump_path=str(folder), level="mix")
    debugger.start(model=model)
    model(**batch).loss.backward()
    debugger.stop()
    debugger.step()
    if fault is not None:
        if not planted:
            raise RuntimeError(
                f"{fault.operator} is called fewer than {fault.call + 1} times: nothing was planted"
            )
        (folder / "planted.json").write_text(json.dumps(planted))


def compare(reference: Path, candidate: Path, output: Path) -> None:
    """The peer's own comparison of two dumps of one step."""
    from msprobe.msprobe import main

    sides = ["-tp", str(candidate / "step0"), "-gp", str(reference / "step0")]
    sys.argv = ["msprobe", "compare", *sides, "-o", str(output)]
    main()


def flagged(output: Path, words: tuple[str, ...]) -> str:
    """The first row that the comparison calls one of these words; "" for none."""
    for file in sorted(output.rglob("compare_result*.csv")):
        with file.open(newline="") as lines:
            for row in csv.DictReader(lines):
                if row["Result"] in words:
                    return row["NPU Name"]
    return ""


def apart(work: Callable[[], None], log: Path) -> None:
    """Do it in a process of its own: the peer has one state a process."""
    child = os.fork()
    if child:
        os.waitpid(child, 0)
        return
    code = 1
    with log.open("w") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
        try:
            work()
            code = 0
        except SystemExit:
            code = 0
        except BaseException:
            traceback.print_exc()
        sys.stdout.flush()
    os._exit(code)


def main() -> None:
    """Dump, compare, and leave what was planted and what was flagged."""
    name, directory = sys.argv[1], Path(sys.argv[2])
    import transformers  # noqa: F401 - loaded once, before processes are forked

    dumps: dict[str, Callable[[Path], None]] = {
        "sound": lambda folder: dump(name, folder),
        "threads": lambda folder: dump(name, folder, threads=2),
    }
    for one in faults_of(name):
        dumps[one.name] = lambda folder, one=one: dump(name, folder, one)  # type: ignore[misc]
    answers: dict[str, dict[str, str]] = {}
    for label, work in dumps.items():
        folder = directory / label
        apart(lambda work=work, folder=folder: work(folder), directory / f"{label}.log")  # type: ignore[misc]
        if label == "sound":
            continue
        output = directory / f"{label}.compared"
        apart(
            lambda folder=folder, output=output: compare(directory / "sound", folder, output),  # type: ignore[misc]
            directory / f"{label}.compared.log",
        )
        answers[label] = {
            "error": flagged(output, ("error",)), "warning": flagged(output, ("error", "warning", "Warning")),
            "table": str(any(output.rglob("compare_result*.csv"))),
        }  # fmt: skip
    (directory / "flagged.json").write_text(json.dumps(answers))


if __name__ == "__main__":
    main()
