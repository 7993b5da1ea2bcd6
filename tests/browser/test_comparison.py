"""The page of a comparison: its figures are drawn, nothing is asked of a network, and it fits a narrow screen."""

from pathlib import Path

import pytest

from diagnose.comparing.compare import compare
from diagnose.comparing.runs import baseline_of
from diagnose.reports.html import comparison_page, whole_run_page
from tests.browser.conftest import Open
from tests.browser.test_page import HOSTILE, analysed, training
from tests.reports.html.test_bundle import run

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("width", [1280, 390])
def test_the_figures_are_drawn_and_the_page_fits(open_page: Open, tmp_path: Path, width: int) -> None:
    before, after = (analysed(training(name), tmp_path / side) for side, name in (("a", "sgemm"), ("b", HOSTILE)))
    found = compare(baseline_of([before]), baseline_of([after]))
    opened = open_page(comparison_page.render(found, before, after), width)
    opened.scroll_through()
    drawn = opened.page.locator("[data-drawn=yes]")
    assert [one.get_attribute("data-figure") for one in drawn.all()] == ["waterfall", "before", "after"]
    assert opened.page.evaluate("document.documentElement.scrollWidth") <= width
    assert opened.page.locator("img").count() == 0


def test_a_baseline_has_no_timeline_and_says_so(open_page: Open, tmp_path: Path) -> None:
    one = analysed(training(), tmp_path)
    side = baseline_of([one])
    opened = open_page(comparison_page.render(compare(side, side), None, one), 1280)
    assert "a baseline keeps no timeline" in opened.text("#steps")
    assert opened.page.locator("#steps .figure").count() == 1


@pytest.mark.parametrize("width", [1280, 390])
def test_the_figures_of_a_whole_run_are_drawn_and_the_page_fits(open_page: Open, width: int) -> None:
    opened = open_page(whole_run_page.render(run(3)), width)
    opened.scroll_through()
    drawn = [one.get_attribute("data-figure") for one in opened.page.locator("[data-drawn=yes]").all()]
    assert drawn == ["parts", "steps", "memory", "device"]
    assert opened.page.evaluate("document.documentElement.scrollWidth") <= width
