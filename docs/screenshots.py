"""`make screenshots`: the two pictures of the README, and a picture of every page of `report` and `ui`.

    python docs/screenshots.py demo-output

takes the recordings and the page that the demo leaves in that folder. Pictures of all pages go into its `pictures/`,
in light and dark colours, each as long as the page.
"""

from __future__ import annotations

import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from playwright.sync_api import Browser, sync_playwright

IMAGES = Path(__file__).parent / "images"


def main() -> None:
    """Take all pictures, and print each path."""
    demo = Path(sys.argv[1]).absolute()
    program = shutil.which("chromium") or sys.exit("no Chromium: as root, apt-get install chromium")
    pictures = demo / "pictures"
    pictures.mkdir(exist_ok=True)
    with sync_playwright() as started, served(demo) as address:
        browser = started.chromium.launch(executable_path=program, args=["--no-sandbox"])
        of_the_readme(browser, demo / "comparison.html")
        for name, page in pages(browser, demo, address).items():
            whole_page(browser, page, pictures, name)
        browser.close()


def of_the_readme(browser: Browser, page_file: Path) -> None:
    """Keep a comparison's verdict and its selected pair as PNG."""
    page = browser.new_page(viewport={"width": 1240, "height": 780})
    page.goto(page_file.as_uri())
    page.wait_for_selector("html[data-ready]")
    page.screenshot(path=IMAGES / "report.png")
    page.locator("#selected").screenshot(path=IMAGES / "pair.png")
    page.close()


def pages(browser: Browser, demo: Path, address: str) -> dict[str, str]:
    """Return the address of each page by the name of its picture."""
    recording = demo / "reference.html"
    command = ["lockstep", "report", demo / "reference", "-o", recording, "--force"]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    asking = browser.new_page()
    runs = asking.request.get(f"{address}runs").json()["runs"]
    asking.close()
    keys = {run["name"]: run["key"] for run in runs}
    reference, candidate = keys["reference"], keys["candidate"]
    both = f"runs={reference},{candidate}"
    return {
        "report-of-two": (demo / "comparison.html").as_uri(),
        "report-of-one": recording.as_uri(),
        "ui-runs": address,
        "ui-run": f"{address}run/{reference}",
        "ui-comparison": f"{address}compare/{reference}/{candidate}",
        "ui-graph": f"{address}compare/{reference}/{candidate}/graph",
        "ui-curves": f"{address}curves?{both}",
        "ui-values": f"{address}spread?{both}",
    }


def whole_page(browser: Browser, address: str, pictures: Path, name: str) -> None:
    """Keep a page in light and dark colours, from its head to its foot."""
    for colours in ("light", "dark"):
        page = browser.new_page(
            viewport={"width": 1240, "height": 900},
            color_scheme="dark" if colours == "dark" else "light",
        )
        page.goto(address, timeout=300_000)
        page.wait_for_selector("html[data-ready]", timeout=300_000)
        page.wait_for_load_state("load")
        page.wait_for_timeout(500)
        path = pictures / f"{name}-{colours}.png"
        page.screenshot(path=path, full_page=True)
        page.close()
        print(path)


@contextmanager
def served(folder: Path) -> Iterator[str]:
    """Run `lockstep ui` over a folder; yield its address."""
    process = subprocess.Popen(["lockstep", "ui", folder], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    found = re.search(r"http://\S+", process.stdout.readline())
    assert found is not None
    try:
        yield found[0]
    finally:
        process.send_signal(signal.SIGINT)
        process.wait(timeout=60)


if __name__ == "__main__":
    main()
