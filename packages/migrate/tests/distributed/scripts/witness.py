"""Notes what each process of a training sees and ends with, for the tests that started it."""

import json
import os
from pathlib import Path

import torch

_RANK = os.environ.get("RANK", "0")
_FOLDER = Path(os.environ["WITNESS"])
_seen = {"training": {}, "evaluation": {}}
_losses = []


def saw(kind, epoch, samples):
    _seen[kind].setdefault(str(epoch), []).extend(int(sample) for sample in samples)


def lost(loss):
    _losses.append(float(loss).hex())


def done(model):
    notes = {"seen": _seen, "losses": _losses}
    (_FOLDER / f"notes-{_RANK}.json").write_text(json.dumps(notes))
    torch.save([p.detach().clone() for p in model.parameters()], _FOLDER / f"parameters-{_RANK}.pt")
