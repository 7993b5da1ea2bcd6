"""The page of a watched run in a browser: its figures are drawn, nothing is asked of a network, it fits a screen."""

import pytest

from diagnose.reports.html import whole_run_page
from tests.browser.conftest import Open
from tests.reports.html.test_whole_run import run

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("width", [1280, 390])
def test_the_figures_of_a_whole_run_are_drawn_and_the_page_fits(open_page: Open, width: int) -> None:
    opened = open_page(whole_run_page.render(run(3)), width)
    opened.scroll_through()
    drawn = [one.get_attribute("data-figure") for one in opened.page.locator("[data-drawn=yes]").all()]
    assert drawn == ["parts", "steps", "memory", "device"]
    assert opened.page.evaluate("document.documentElement.scrollWidth") <= width
