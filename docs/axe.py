"""Check pages for accessibility: `python -m docs.axe build/site/html/*.html`.

Runs axe-core in Chromium at the widths of a phone and of a desktop, light and dark, with all details open,
and exits with 1 if a page has a serious or critical problem, or is wider than the screen. It needs
`pip install 'riskmin[browser]'` and Chromium.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

VIEWS = [("light", 400), ("dark", 400), ("light", 1200), ("dark", 1200)]


def problems(
    pages: Sequence[Path], views: Sequence[tuple[str, int]] = VIEWS, pictures: Path | None = None
) -> list[str]:
    """Return one line for each serious problem of each page in each view.

    Parameters
    ----------
    pages : sequence of paths
    views : sequence of (color scheme, width in pixels)
    pictures : path, optional
        A folder to which a picture of each page in each view is written.
    """
    from axe_playwright_python.sync_playwright import Axe
    from playwright.sync_api import sync_playwright

    found = []
    with sync_playwright() as playwright:
        browser = launch(playwright)
        for scheme, width in views:
            tab = browser.new_page(viewport={"width": width, "height": 900}, color_scheme=scheme)
            for page in pages:
                tab.goto(page.resolve().as_uri())
                tab.evaluate("document.querySelectorAll('main details').forEach(d => d.open = true)")
                if pictures is not None:
                    tab.screenshot(path=pictures / f"{page.stem}-{scheme}-{width}.png", full_page=True)
                at = f"{page.name}, {scheme}, {width} pixels"
                for rule in Axe().run(tab).response["violations"]:
                    if rule["impact"] in ("serious", "critical"):
                        found.append(f"{at}: {rule['id']}: {rule['nodes'][0]['html'][:200]}")
                if tab.evaluate("document.documentElement.scrollWidth > innerWidth"):
                    found.append(f"{at}: the page is wider than the screen")
        browser.close()
    return found


def launch(playwright: Any) -> Any:
    """Start Playwright's Chromium, or that of the system."""
    installed = Path(playwright.chromium.executable_path).exists()
    path = None if installed else shutil.which("chromium") or shutil.which("google-chrome")
    return playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])


if __name__ == "__main__":
    lines = problems([Path(name) for name in sys.argv[1:]])
    print("\n".join(lines) or "no serious problem")
    sys.exit(bool(lines))
