"""Starts one command and says what it used; a small process of its own, run as a script.

A process keeps the peak of the one it was started from, so a peak below that of the benchmark can only be seen from a
starter that is small itself.

    python launcher.py RESULT COMMAND ...
"""

import json
import os
import subprocess
import sys
import time
from pathlib import Path


def main() -> None:
    """Run the command; its exit status, wall seconds, CPU seconds and peak bytes go to RESULT as JSON."""
    start = time.perf_counter()
    child = subprocess.Popen(sys.argv[2:])
    _, status, used = os.wait4(child.pid, 0)
    unit = 1 if sys.platform == "darwin" else 1024
    measured = {
        "status": os.waitstatus_to_exitcode(status),
        "wall_s": time.perf_counter() - start,
        "cpu_s": used.ru_utime + used.ru_stime,
        "peak_bytes": used.ru_maxrss * unit,
    }
    Path(sys.argv[1]).write_text(json.dumps(measured))


if __name__ == "__main__":
    main()
