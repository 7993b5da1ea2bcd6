"""Pictures of the report for the documentation: `python -m benchmarks.pictures CORPUS`. Needs Chromium and playwright.

The corpus is the folder of public traces: the report that is shown is of the trace that the README's report is of.
"""

import shutil
import sys
import tempfile
from pathlib import Path

from playwright.sync_api import Browser, Page, sync_playwright

import diagnose
from benchmarks.texts import ROOT, SHOWN, SITE
from benchmarks.watching import shown
from diagnose.reports import heading
from diagnose.reports.html import page, whole_run_page
from diagnose.source.run_log import logs_in, read
from diagnose.watched.assembly import watched_run

FOLDER = SITE / "pictures"
SAID = FOLDER / "page.txt"  # What the picture of the page begins with.
WIDE, NARROW = (1280, 1000), (390, 844)
JOB = ROOT / "sample_traces" / "jobs" / "few_micro_batches"  # A pipeline of three stages, recorded by diagnose.


def main() -> None:
    """Write page-1280.png, page-timeline.png, page-390.png, page-job.png and page-run.png."""
    chromium = shutil.which("chromium") or shutil.which("google-chrome")
    if chromium is None:
        sys.exit("Install Chromium first.")
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        file = Path(folder) / "report.html"
        found = diagnose.analyze(Path(sys.argv[1], SHOWN))
        file.write_text(page.render(found), encoding="utf-8")
        SAID.write_text("\n".join([heading.headline(found), *heading.gain(found)]) + "\n", encoding="utf-8")
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox", "--disable-gpu"])
        wide = _opened(browser, file, WIDE)
        wide.screenshot(path=FOLDER / "page-1280.png")
        wide.locator(".card .show").nth(1).click()
        wide.wait_for_timeout(1000)
        wide.locator("#timeline").screenshot(path=FOLDER / "page-timeline.png")
        _opened(browser, file, NARROW).screenshot(path=FOLDER / "page-390.png")
        file.write_text(page.render(diagnose.analyze(JOB)), encoding="utf-8")
        job = _opened(browser, file, WIDE)
        job.locator("#job").scroll_into_view_if_needed()
        job.locator("[data-figure=job_path][data-drawn]").wait_for()
        job.screenshot(path=FOLDER / "page-job.png")
        run = watched_run([read(path) for path in logs_in(shown.SHOWN)])
        file.write_text(whole_run_page.render(run), encoding="utf-8")
        _opened(browser, file, WIDE, "parts").screenshot(path=FOLDER / "page-run.png")
        browser.close()


def _opened(browser: Browser, file: Path, size: tuple[int, int], drawn: str = "step") -> Page:
    """The page, as soon as this figure of its first screen is drawn."""
    one = browser.new_page(viewport={"width": size[0], "height": size[1]})
    one.goto(file.as_uri())
    one.locator("html[data-ready=yes]").wait_for()
    one.locator(f"[data-figure={drawn}][data-drawn]").wait_for()
    return one


if __name__ == "__main__":
    main()
