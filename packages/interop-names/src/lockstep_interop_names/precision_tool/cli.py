"""precision_tool's prompt over `precision_data`: `ac`, `ac -c`, `vcs -c 0.98 -l 10` and Lockstep's own commands."""

from __future__ import annotations

import sys
from pathlib import Path

from lockstep.terminal import main

if __name__ == "__main__":
    data = Path("precision_data")
    pair = [data / "tf" / "dump", data / "npu" / "debug_0"]
    opened = pair if all(one.is_dir() for one in pair) else [data]
    sys.exit(main(["shell", *map(str, opened), *sys.argv[1:]]))
