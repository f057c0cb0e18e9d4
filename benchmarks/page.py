"""How fluid the page of a comparison is: `python benchmarks/page.py [PAIRS]` makes one of so many pairs and opens it.

Prints the size of the file, when the browser first painted, when all areas were drawn, and how many frames a second it
made while the table was scrolled from top to bottom.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from pathlib import Path

import numpy as np
from playwright.sync_api import sync_playwright

from lockstep.report.page import (
    Page,
    Rows,
    Scatter,
    Selected,
    Strip,
    Table,
    TextColumn,
    Tree,
    Work,
    write_page,
)
from lockstep.wings.report.comparison_page import KINDS, METRICS, TABLE

SCROLL = """async () => {
  const grid = document.querySelector('.rows'), step = grid.scrollHeight / 300, start = performance.now();
  for (let frame = 0; frame < 300; frame++) {
    grid.scrollTop += step;
    await new Promise(requestAnimationFrame);
  }
  return 300 / ((performance.now() - start) / 1000);
}"""


def page_of(pairs: int) -> Page:
    """A page of so many made-up pairs: 24 steps, 200 modules, a fault at a third of the way."""
    random = np.random.default_rng(0)
    at = np.arange(pairs)
    margin = np.where(
        at < pairs // 3, random.choice([0.0, 0.5], pairs), 10 ** random.uniform(0, 5, pairs)
    )
    kind = np.where(margin == 0, 10, np.where(margin <= 1, 9, 2)).astype(np.int32)
    kind[pairs // 3] = 0
    texts = {
        "phase": ("forward", "backward", "optimizer"), "role": ("input", "output", "grad_input"), "rank": ("rank0",),
        "module": tuple(f"transformer.h.{one // 10}.part{one % 10}" for one in range(200)),
        "operator": tuple(f"torch.nn.functional.op{one}" for one in range(40)), "dtype": ("float32",),
        "kind": tuple(one.name for one in KINDS),
    }  # fmt: skip
    per_step = -(-pairs // 24)
    codes = {
        "phase": at % per_step * 3 // per_step, "kind": kind, "module": at // 5 % 200,
        "operator": at % 40, "role": at % 3,
    }  # fmt: skip
    columns: dict[str, TextColumn | np.ndarray] = {
        name: TextColumn(np.asarray(codes.get(name, at * 0), np.int32), names)
        for name, names in texts.items()
    }
    for column in TABLE:
        if column.column not in columns:
            columns[column.column] = (
                random.uniform(0, 1, pairs)
                if column.form == "number"
                else TextColumn(np.zeros(pairs, np.int32), ("",))
            )
    columns |= {
        "step": (at // per_step).astype(np.int32), "call": (at // 1000 % 5).astype(np.int32), "margin": margin,
        "producer": np.full(pairs, -1, np.int32), "shape": TextColumn(np.zeros(pairs, np.int32), ("[4, 32]",)),
        "index": np.zeros(pairs, np.int32),
    }  # fmt: skip
    rows = Rows(columns, KINDS, marked=(pairs // 3,), selected=pairs // 3)
    work = Work(
        Tree("Modules"),
        Scatter("Metric", METRICS),
        Table("Pairs", TABLE),
        Selected("Selected pair"),
    )
    return Page("Made up", (Strip("Where the runs part"), work), rows=rows)


def main() -> None:
    pairs = int(sys.argv[1]) if len(sys.argv) > 1 else 50_000
    browser_path = shutil.which("chromium") or sys.exit(
        "no Chromium: as root, apt-get install chromium"
    )
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as started:
        path = Path(folder) / "page.html"
        write_page(page_of(pairs), path)
        browser = started.chromium.launch(executable_path=browser_path, args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 1400, "height": 900})
        page.goto(path.as_uri())
        page.wait_for_selector("html[data-ready]", timeout=60_000)
        ready = page.evaluate("performance.now()")
        painted = page.evaluate(
            "performance.getEntriesByName('first-contentful-paint')[0].startTime"
        )
        frames = page.evaluate(SCROLL)
        browser.close()
        size = path.stat().st_size
    print(
        f"{pairs} pairs, {size / 1e6:.1f} MB: first paint {painted:.0f} ms, all drawn {ready:.0f} ms"
    )
    print(f"{frames:.0f} frames/s while scrolling")


if __name__ == "__main__":
    main()
