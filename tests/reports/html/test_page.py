"""The page as text: made of every kind of diagnosis, small, and with nothing of a trace as markup."""

import re
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path

import pytest
from msgspec.structs import replace

from diagnose import pipeline
from diagnose.contracts.diagnosis import Diagnosis
from diagnose.reports import markdown
from diagnose.reports.html import page
from diagnose.trace.manifest import Manifest
from tests.drawing import Drawing
from tests.reports.test_reports import EVERY

HOSTILE = "<img src=https://evil.example/x>\"'</script><script>alert(1)</script>`&lt;"


class Elements(HTMLParser):
    """Names and attributes of all elements, and what follows a tag that is never closed."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))

    def named(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.found if name == tag]


def analysed(drawing: Drawing, folder: Path) -> Diagnosis:
    return pipeline.diagnose([drawing.write(folder / "trace.json")])


@pytest.mark.parametrize("name", EVERY)
@pytest.mark.parametrize("render", [page.render, markdown.notebook_html])
def test_every_kind_of_diagnosis_has_one(name: str, render: Callable[[Diagnosis], str], tmp_path: Path) -> None:
    text = render(analysed(EVERY[name](), tmp_path))
    elements = Elements(text)
    assert not [tag for tag, _ in elements.found if tag in ("img", "iframe", "link", "object", "embed", "base")]
    assert all((one["href"] or "").startswith(("#", "https://")) for one in elements.named("a"))
    assert not [name for _, attributes in elements.found for name in attributes if name.startswith("on")]
    assert "None" not in re.sub(
        r"<(script|style|pre|code).*?</\1>|set_to_none|to None|setting None", "", text, flags=re.DOTALL
    )


@pytest.mark.parametrize("name", EVERY)
def test_the_only_scripts_are_ours(name: str, tmp_path: Path) -> None:
    text = page.render(analysed(EVERY[name](), tmp_path))
    scripts = Elements(text).named("script")
    assert [script.get("id") for script in scripts] == ["plotly-packed", "data-packed", "trace-packed", None]
    assert [script.get("type") for script in scripts] == ["text/plain"] * 3 + [None]
    policy = Elements(text).named("meta")[1]["content"]
    assert policy.startswith("default-src 'none'; script-src 'sha256-")
    assert "unsafe-eval" not in policy
    assert "'unsafe-inline'" not in policy.partition("style-src")[0]


def test_what_a_manifest_says_is_text_too(tmp_path: Path) -> None:
    found = analysed(EVERY["training"](), tmp_path)
    manifest = Manifest(command=("python", HOSTILE), versions={"torch": HOSTILE}, started=HOSTILE)
    hostile = replace(found, provenance=replace(found.provenance, manifest=manifest))
    for text in (page.render(hostile), markdown.notebook_html(hostile)):
        assert HOSTILE not in text
        assert not Elements(text).named("img")
    assert "&lt;img src=https://evil.example/x&gt;" in page.render(hostile)


@pytest.mark.slow
def test_a_page_of_many_operations_stays_small(tmp_path: Path) -> None:
    """A quarter of a million operations in 25 steps, with names of 1,000 characters."""
    draw = Drawing()
    for k in range(250):
        draw.work(f"kernel_{k % 100}" + "x" * 1000, (40 * k, 40 * k + 30), stream=k % 40)
    small = len(page.render(analysed(draw, tmp_path)))
    events = draw.events
    draw.events = [{**one, "ts": one["ts"] + 10_000 * n} for n in range(400) for one in events]
    large = len(page.render(analysed(draw, tmp_path)))
    assert small < large < 5_000_000


def test_the_same_diagnosis_gives_the_same_page(tmp_path: Path) -> None:
    found = analysed(EVERY["training"](), tmp_path)
    assert page.render(found) == page.render(Diagnosis.from_json(found.to_json()))


def test_a_notebook_shows_the_summary(tmp_path: Path) -> None:
    found = analysed(EVERY["training"](), tmp_path)
    assert markdown.shown_in_notebooks() is type(found)
    shown = found._repr_html_()  # type: ignore[attr-defined]
    assert shown == markdown.notebook_html(found)
    assert "10.0 ms/step · data-loader-bound: " in shown
    assert "<script" not in shown
    assert len(shown) < 30_000


def test_importing_the_public_name_is_enough_for_a_notebook() -> None:
    import diagnose

    assert diagnose.Diagnosis is Diagnosis
    assert callable(Diagnosis._repr_html_)  # type: ignore[attr-defined]
    assert diagnose.figures.timeline.__name__ == "timeline"


def test_what_could_not_be_looked_at_never_reads_as_fine(tmp_path: Path) -> None:
    found = analysed(EVERY["cpu_only"](), tmp_path)
    nothing = page.render(replace(found, findings=()))
    assert re.search("No fault was found, but [0-9]+ of [0-9]+ rules could not look .see NOTES.", nothing)
    assert re.search("<h2>NOTES</h2>.*Not checked: ", nothing)
    unpriced = page.render(replace(found, replay=None, findings=()))
    assert "The steps could not be simulated: no saving is known, and no finding is listed." in unpriced
    assert "No fault was found" not in unpriced
    assert "No rule ran, so nothing was looked for." in page.render(replace(found, outcomes=(), findings=()))
