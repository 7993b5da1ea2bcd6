"""Pages in the system's Chromium, opened from disk, with everything noted that a page may not do."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from diagnose.contracts.diagnosis import Diagnosis
from diagnose.reports.html import page as html_page

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

# Without a network, Chromium's own background requests only make noise.
_ARGUMENTS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]


@pytest.fixture(scope="session")
def browser(request: pytest.FixtureRequest) -> Iterator[Browser]:
    found = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if found is None:
        if request.config.getoption("--require-browser"):
            pytest.fail("--require-browser: there is no Chromium on this machine")
        pytest.skip("drives Chromium, which is not installed")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=found, args=_ARGUMENTS)
        yield started
        started.close()


@dataclass
class Opened:
    """A page, and what went wrong in it."""

    page: Page
    wrong: list[str] = field(default_factory=list)
    """Console errors and warnings, uncaught errors, and requests for anything but the file itself."""

    def text(self, selector: str) -> str:
        return self.page.locator(selector).first.inner_text()

    def range_ms(self) -> tuple[float, float]:
        """What part of the timeline is shown."""
        low, high = self.page.evaluate("document.getElementById('lanes').layout.xaxis.range")
        return low, high

    def is_steered(self) -> bool:
        """Whether keys go to the timeline."""
        return bool(self.page.evaluate("document.activeElement.id === 'lanes'"))

    def marks(self) -> int:
        count: int = self.page.evaluate("document.getElementById('lanes').data.reduce((n, one) => n + one.x.length, 0)")
        return count

    def until(self, true: Callable[[], bool]) -> None:
        """Waits. Playwright's own wait_for_function evaluates text in the page, which the page's policy forbids."""
        for _ in range(2_400):
            if true():
                return
            self.page.wait_for_timeout(50)
        raise AssertionError("it never came true")

    def moved_by(self, act: Callable[[], None]) -> tuple[float, float]:
        """What part of the timeline is shown once an action has changed that."""
        before = self.range_ms()
        act()
        self.until(lambda: self.range_ms() != before)
        return self.range_ms()

    def scroll_through(self) -> None:
        """Down to the end, until every figure is drawn."""
        for height in range(0, self.page.evaluate("document.documentElement.scrollHeight"), 500):
            self.page.evaluate("height => window.scrollTo(0, height)", height)
            self.page.wait_for_timeout(20)
        self.until(lambda: self.page.locator("[data-figure]:not([data-drawn])").count() == 0)


Open = Callable[..., Opened]


@pytest.fixture
def open_page(browser: Browser, tmp_path: Path) -> Iterator[Open]:
    """Opens a diagnosis' page, or a given one, from disk; fails the test in the end if anything went wrong in it."""
    contexts, opened = [], []

    def opens(shown: Diagnosis | str, width: int = 1280, **options: object) -> Opened:
        file = tmp_path / "report.html"
        file.write_text(shown if isinstance(shown, str) else html_page.render(shown), encoding="utf-8")
        context = browser.new_context(viewport={"width": width, "height": 900}, accept_downloads=True, **options)
        context.set_default_timeout(300_000)  # ms: of a busy machine
        contexts.append(context)
        one = Opened(context.new_page())
        opened.append(one)
        one.page.on("console", lambda said: one.wrong.append(said.text) if said.type != "log" else None)
        one.page.on("pageerror", lambda error: one.wrong.append(str(error)))
        one.page.on("request", lambda asked: None if asked.url == file.as_uri() else one.wrong.append(asked.url))
        one.page.goto(file.as_uri())
        if options.get("java_script_enabled", True):
            one.page.locator("html[data-ready=yes]").wait_for()
        return one

    yield opens
    wrong = [what for one in opened for what in one.wrong]
    for context in contexts:
        context.close()
    assert wrong == []
