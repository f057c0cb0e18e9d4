"""`make screenshots`: the pictures of the README, from the page that the demo leaves."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

from playwright.sync_api import sync_playwright

FOLDER = Path(__file__).parent / "images"


def main() -> None:
    """Open the page that is given, and keep its verdict and its selected pair as PNG."""
    page_file = Path(sys.argv[1]).absolute()
    program = shutil.which("chromium") or sys.exit("no Chromium: as root, apt-get install chromium")
    FOLDER.mkdir(exist_ok=True)
    with sync_playwright() as started:
        browser = started.chromium.launch(executable_path=program, args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 1240, "height": 780})
        page.goto(page_file.as_uri())
        page.wait_for_selector("html[data-ready]")
        page.screenshot(path=FOLDER / "report.png")
        page.locator("#selected").screenshot(path=FOLDER / "pair.png")
        browser.close()


if __name__ == "__main__":
    main()
