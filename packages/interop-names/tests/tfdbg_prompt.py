"""A prompt that answers as TensorFlow 1's debugger does: a step of `run`, `lt`, `pt`, `exit`.

Without TensorFlow 1, which no Python of today runs: written after what tfdbg documents and prints.
"""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

import numpy as np

TENSORS = {
    "conv1/kernel/read:0": np.arange(12, dtype="f4").reshape(3, 4),
    "conv1/Conv2D:0": np.linspace(-1, 1, 8, dtype="f4").reshape(2, 4) * np.float32(sys.argv[1]),
    "conv1/Conv2D:1": np.array(3),
    "loss:0": np.array(0.5, "f4"),
}


def answer(command: str, ran: bool) -> None:
    words = shlex.split(command)
    if words[:1] == ["lt"] and ran:
        lines = [
            f"{len(TENSORS)} dumped tensor(s):",
            "",
            "t (ms)     Size (B) Op type    Tensor name",
        ]
        lines += [
            f"[{number}.125]    {value.nbytes + 130}      Op         {name}"
            for number, (name, value) in enumerate(TENSORS.items())
        ]
        text = "\n".join(lines)
        if len(words) == 3:
            Path(words[2]).write_text(text)
            print(f'Wrote output to "{words[2]}"')
        else:
            print(text)
    elif words[:1] == ["pt"] and words[1] in TENSORS and ran:
        print(f'Tensor "{words[1]}:DebugIdentity":')
        print(TENSORS[words[1]])
        np.save(words[words.index("-w") + 1], TENSORS[words[1]])
        print(f"Saved value to: {words[words.index('-w') + 1]}")
    else:
        print(f'ERROR: "{words[1] if len(words) > 1 else command}" is not a valid tensor name')


ran = False
print("--- run-start: run #1: 1 fetch (train_op); 2 feeds ---")
while True:
    line = input("tfdbg> ").strip()
    if line == "exit":
        sys.exit()
    if line == "die":
        sys.exit("Segmentation fault")
    if line == "hang":
        sys.stdin.readline()
    if line.split(" ")[0] == "run":
        ran = True
        print("\x1b[1m--- run-end: run #1: 1 fetch (train_op) ---\x1b[0m")
    else:
        answer(line, ran)
