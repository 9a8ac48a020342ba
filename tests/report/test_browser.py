"""The pages of the command in a real browser: axe-core finds no serious problem, keys reach everything."""

import importlib
import shutil
import sys
from pathlib import Path

import pytest

sync_api = pytest.importorskip("playwright.sync_api")
pytest.importorskip("axe_playwright_python")

sys.path.insert(0, str(Path(__file__).parents[2]))
axe = importlib.import_module("docs.axe")

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    from sklearn.datasets import load_breast_cancer

    from riskmin.cli import main

    with sync_api.sync_playwright() as playwright:
        if not (Path(playwright.chromium.executable_path).exists() or shutil.which("chromium")):
            pytest.skip("there is no Chromium")
    folder = tmp_path_factory.mktemp("pages")
    load_breast_cancer(as_frame=True).frame.to_csv(folder / "data.csv", index=False)
    common = ["--loss", "logistic", "--standardize", "-q"]
    fit = ["fit", folder / "data.csv", *common, "-o", folder / "m", "--report", folder / "fit.html"]
    cv = ["cv", folder / "data.csv", *common, "--metric", "roc_auc,f1", "--n-lams", 3, "--folds", 2]
    for command in (fit, [*cv, "-o", folder / "m", "--report", folder / "cv.html"]):
        assert main([str(word) for word in command]) == 0
    return [folder / "fit.html", folder / "cv.html"]


def test_pages_have_no_serious_problem_of_accessibility(pages):
    assert axe.problems(pages[:1], [("light", 1200)]) == []
    assert axe.problems(pages[1:], [("dark", 400)]) == []


def test_keys_open_the_numbers_of_charts_and_scroll_tables(pages):
    with sync_api.sync_playwright() as playwright:
        browser = axe.launch(playwright)
        tab = browser.new_page(viewport={"width": 400, "height": 900})
        tab.goto(pages[0].as_uri())
        tab.keyboard.press("Tab")
        assert tab.evaluate("document.activeElement.tagName") == "SUMMARY"
        tab.keyboard.press("Enter")
        assert tab.evaluate("document.activeElement.parentElement.open")
        tab.keyboard.press("Tab")
        assert tab.evaluate("document.activeElement.getAttribute('role')") == "region"
        tab.keyboard.press("ArrowRight")
        tab.wait_for_function("document.activeElement.scrollLeft > 0")
        # what a screen reader announces of the first chart
        chart = tab.get_by_role("img", name="Objective and lower bound")
        assert "lower bound of min J: from" in chart.locator("desc").text_content()
        browser.close()
