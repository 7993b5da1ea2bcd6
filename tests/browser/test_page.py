"""What a reader does with the page: reads, clicks a finding, moves the timeline, copies, filters, saves, prints."""

import json
from pathlib import Path

import pytest
from msgspec.structs import replace

from diagnose import pipeline
from diagnose.contracts.diagnosis import Diagnosis
from diagnose.contracts.finding import OutcomeKind
from diagnose.reports.html import page
from tests.browser.conftest import Open, Opened
from tests.drawing import Drawing
from tests.reports.html.test_job import eight
from tests.reports.test_trials import FUSED, WORKERS, report

pytestmark = pytest.mark.slow

HOSTILE = "<img src=https://evil.example/x onerror=alert(1)></script><script>alert(2)</script>&lt;b&gt;\u202egnp"


def analysed(drawing: Drawing, folder: Path) -> Diagnosis:
    folder.mkdir(exist_ok=True)
    return pipeline.diagnose([drawing.write(folder / "trace.json")])


def training(name: str = "sm90_gemm", file: str = "/home/me/train.py") -> Drawing:
    """Four steps of 10 ms, in each of which the GPU waits 4 ms for a batch and the host reads a number."""
    draw = Drawing()
    for number in range(5):
        at = number * 10_000
        draw.step(number, at, at + 10_000).frame(f"{file}(12): train", at, at + 10_000)
        draw.span(
            "user_annotation", "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", at + 100, at + 4_000
        )
        draw.op("aten::mm", at + 4_600, at + 4_700)
        draw.launch(name, (at + 4_650, at + 4_660), (at + 4_670, at + 8_000))
        draw.op("aten::item", at + 7_000, at + 9_100).call("cudaStreamSynchronize", at + 7_510, at + 8_990)
    return draw


@pytest.fixture(scope="module")
def usual(tmp_path_factory: pytest.TempPathFactory) -> str:
    return page.render(analysed(training(), tmp_path_factory.mktemp("run")))


@pytest.fixture
def opened(open_page: Open, usual: str) -> Opened:
    return open_page(usual)


def test_the_first_screen_says_what_ran_what_is_lost_what_to_do_and_why(opened: Opened) -> None:
    # The kernel runs 3.33 ms of each 10.
    assert opened.text("h1").startswith("10.0 ms/iteration · data-loader-bound: GPU idle 67 % of the time")
    assert opened.text(".lost").startswith("Fix ")
    first = opened.page.locator(".card").first
    assert "DataLoader loads in the training process (num_workers=0)" in first.inner_text()
    assert "num_workers" in first.locator("pre.after").first.inner_text()
    assert "of 10.0 ms a step, once those above are fixed" in first.inner_text()
    assert first.bounding_box()["y"] < 900  # type: ignore[index]
    why = first.locator("details.why")
    why.locator("summary").click()
    words = ("The replayed step takes 10.0 ms; with that change, ", "Why it costs", "Ignore when", "DL02")
    assert [text for text in words if text not in why.inner_text()] == []
    assert why.locator("table tbody tr").count() > 0
    assert opened.page.locator("#unchecked li").count() > 0
    assert "diagnose profile" in opened.text("#unchecked pre")


def test_clicking_a_finding_takes_the_timeline_to_its_places(opened: Opened) -> None:
    whole = opened.range_ms()
    assert whole[0] == 0
    low, high = opened.moved_by(opened.page.locator(".card .show").first.click)
    assert high - low < whole[1] - whole[0]
    # The longest fetch takes 3.9 ms: it fills a fifth of what is shown, with twice its length on either side.
    assert high - low == pytest.approx(5 * 3.9, abs=0.1)
    marked = opened.page.evaluate("document.getElementById('lanes').layout.shapes.filter(one => one.type === 'rect')")
    assert len(marked) == 4
    assert any(
        one["x0"] >= low and one["x1"] <= high and one["x1"] - one["x0"] == pytest.approx(3.9, abs=0.1)
        for one in marked
    )
    assert "place " in opened.text("#spot span")
    lanes = opened.page.evaluate("document.getElementById('lanes').layout.yaxis.ticktext")
    assert [lane for lane in lanes if "▸" in lane] == ["<b>▸ main thread: ops</b>"]
    opened.until(opened.is_steered)
    assert opened.page.locator("#lanes").bounding_box()["y"] < 900  # type: ignore[index]


def test_keys_and_buttons_move_the_timeline(opened: Opened) -> None:
    opened.page.locator("#lanes").focus()
    low, high = opened.range_ms()
    closer = opened.moved_by(lambda: opened.page.keyboard.press("+"))
    assert closer[1] - closer[0] == pytest.approx((high - low) / 2)
    later = opened.moved_by(lambda: opened.page.keyboard.press("ArrowRight"))
    assert later[0] == pytest.approx(closer[0] + (high - low) / 8)
    assert opened.moved_by(lambda: opened.page.keyboard.press("0")) == pytest.approx((low, high))
    low, high = opened.moved_by(opened.page.locator("[data-move=step]").click)
    assert high - low == pytest.approx(10.0)


def test_code_is_copied(open_page: Open, usual: str) -> None:
    opened = open_page(usual, permissions=["clipboard-read", "clipboard-write"])
    button = opened.page.locator(".card .copy").first
    wanted = opened.page.locator(".card pre.after").first.inner_text()
    button.click()
    opened.until(lambda: button.inner_text() == "Copied")
    assert opened.page.evaluate("navigator.clipboard.readText()") == wanted


def test_intervals_of_fixes_that_were_tried_are_drawn(open_page: Open, tmp_path: Path) -> None:
    found = replace(analysed(training(), tmp_path / "run"), trials=report(WORKERS, FUSED))
    opened = open_page(found)
    section = opened.page.locator("#tried")
    section.scroll_into_view_if_needed()
    opened.until(lambda: section.locator("path.xerror").count() == 3)  # The prediction of one of them is not known.
    assert "2. unfused_optimizer" in (section.locator(".annotation").nth(2).text_content() or "")


def test_rules_are_filtered_by_how_they_ended(opened: Opened) -> None:
    def kinds() -> list[str]:
        shown = "all => all.filter(one => !one.hidden).map(one => one.dataset.kind)"
        found: list[str] = opened.page.eval_on_selector_all("details.rule", shown)
        return found

    everything = kinds()
    # Events, not clicks at a place: figures that are drawn meanwhile move the buttons.
    opened.page.locator("button[data-kind=cannot_tell]").dispatch_event("click")
    opened.until(lambda: set(kinds()) == {OutcomeKind.CANNOT_TELL.value})
    assert len(kinds()) < len(everything)
    opened.page.locator("button[data-kind='']").dispatch_event("click")
    opened.until(lambda: kinds() == everything)


def test_the_trace_that_is_saved_has_the_findings(opened: Opened) -> None:
    with opened.page.expect_download() as download:
        opened.page.locator("#save-trace").click()
    saved = json.loads(Path(download.value.path()).read_text())
    named = {event["name"] for event in saved["traceEvents"]}
    assert "DataLoader loads in the training process (num_workers=0)" in named
    assert "sm90_gemm" in named


@pytest.mark.parametrize("width", [1280, 390])
def test_nothing_is_wider_than_the_screen(open_page: Open, usual: str, width: int) -> None:
    opened = open_page(usual, width=width)
    opened.page.evaluate("document.querySelectorAll('details').forEach(one => { one.open = true; })")
    opened.scroll_through()
    assert opened.page.evaluate("document.documentElement.scrollWidth") == width


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_figures_are_readable_in_both_themes(open_page: Open, usual: str, scheme: str) -> None:
    opened = open_page(usual, color_scheme=scheme)

    def darker() -> int:
        """By how much the text in the timeline is darker than the page behind it."""
        colours = opened.page.evaluate(
            "[getComputedStyle(document.querySelector('#lanes .xtick text')).fill,"
            " getComputedStyle(document.body).backgroundColor]"
        )
        text, back = (sum(map(int, colour[4:-1].split(", "))) for colour in colours)
        return back - text

    sign = 1 if scheme == "light" else -1
    assert sign * darker() > 380
    opened.page.locator("#theme").click()
    opened.until(lambda: -sign * darker() > 380)


def test_names_from_a_trace_are_text_everywhere(open_page: Open, tmp_path: Path) -> None:
    drawing = training(name=HOSTILE + "x" * 10_000, file=f"/home/me/{HOSTILE}.py")
    drawing.op(HOSTILE, 14_200, 14_300).copy("HtoD (Pageable -> Device)", (14_250, 14_260), (14_270, 14_400), 9_000_000)
    opened = open_page(analysed(drawing, tmp_path / "run"))
    opened.page.evaluate("document.querySelectorAll('details').forEach(one => { one.open = true; })")
    opened.scroll_through()
    for move in ("step", "in", "in"):
        opened.page.locator(f"[data-move={move}]").click()
    assert opened.page.locator("img[src*=evil], a[href*=evil]").count() == 0
    assert opened.page.evaluate("[...document.querySelectorAll('svg a, svg image')].length") == 0
    shown = opened.page.evaluate("document.getElementById('lanes').data.flatMap(one => one.hovertext).join(' ')")
    assert "&lt;img src" in shown
    assert "<img" not in shown
    drawn = "[...document.querySelectorAll('#lanes text')].map(one => one.textContent).join(' ')"
    opened.until(lambda: "<img src" in opened.page.evaluate(drawn))


def test_a_name_is_found_as_it_is_written(open_page: Open, tmp_path: Path) -> None:
    opened = open_page(analysed(training(name="gemm<float>(a&b)"), tmp_path / "run"))
    everything = opened.marks()
    # A kernel in each of four steps, on its stream and on the critical path.
    for text, count in (("<float>", 8), ("a&b", 8), ("&lt;", 0), ("amp", 0)):
        opened.page.locator("#filter").fill(text)
        opened.until(lambda count=count: opened.marks() == count)
    opened.page.locator("#filter").fill("")
    opened.until(lambda: opened.marks() == everything)


def test_figures_keep_their_height_whatever_the_window_does(opened: Opened) -> None:
    opened.scroll_through()

    def heights() -> list[tuple[float, float]]:
        """Of each figure's box, and of what is drawn in it."""
        both = "all => all.map(one => [one, one.querySelector('svg.main-svg')].map(part => {}))"
        found = opened.page.locator("[data-drawn]").evaluate_all(both.format("part.getBoundingClientRect().height"))
        return [(box, drawn) for box, drawn in found]

    before = heights()
    assert all(box >= drawn for box, drawn in before)
    for width in (390, 1280):
        opened.page.set_viewport_size({"width": width, "height": 900})
        opened.page.wait_for_timeout(500)
        opened.until(lambda width=width: opened.page.evaluate("document.documentElement.scrollWidth") == width)
        opened.until(lambda: heights() == before)


def test_lanes_have_short_names_while_the_window_is_narrow(opened: Opened) -> None:
    def names() -> list[str]:
        found: list[str] = opened.page.evaluate("document.getElementById('lanes').layout.yaxis.ticktext")
        return found

    assert names() == ["GPU idle", "critical path", "stream 7", "main thread: ops", "main thread: calls"]
    opened.page.set_viewport_size({"width": 390, "height": 900})
    opened.until(lambda: names() == ["idle", "path", "s7", "main", "calls"])
    opened.page.set_viewport_size({"width": 1280, "height": 900})
    opened.until(lambda: names()[0] == "GPU idle")


def test_no_button_sends_anything_anywhere(opened: Opened) -> None:
    opened.scroll_through()
    titles = opened.page.locator(".modebar-btn").evaluate_all("all => all.map(one => one.dataset.title)")
    assert set(titles) == {"Download plot as a PNG", "Zoom", "Pan"}


def test_dragging_past_the_end_stops_there(opened: Opened) -> None:
    whole = opened.range_ms()
    opened.moved_by(opened.page.locator("[data-move=in]").click)
    opened.page.locator(".modebar-btn[data-title=Pan]").first.click()
    box = opened.page.locator("#lanes .nsewdrag").first.bounding_box()
    for _ in range(3):
        opened.page.mouse.move(box["x"] + 100, box["y"] + 20)
        opened.page.mouse.down()
        opened.page.mouse.move(box["x"] + 900, box["y"] + 20, steps=5)
        opened.page.mouse.up()
        opened.page.wait_for_timeout(200)
    opened.until(lambda: opened.range_ms() == pytest.approx((0, (whole[1] - whole[0]) / 2)))


def test_keys_work_wherever_one_has_clicked_in_the_timeline(opened: Opened) -> None:
    """Places are visited in turn, by buttons and by keys, and left again."""
    opened.page.locator("#lanes").scroll_into_view_if_needed()
    box = opened.page.locator("#lanes .nsewdrag").first.bounding_box()
    opened.page.mouse.click(box["x"] + 5, box["y"] + box["height"] - 3)
    opened.until(opened.is_steered)
    opened.moved_by(lambda: opened.page.keyboard.press("+"))
    first = opened.moved_by(opened.page.locator(".card .show").first.click)
    second = opened.moved_by(opened.page.locator("#spot [data-move=next]").click)
    assert second != first
    assert opened.moved_by(lambda: opened.page.keyboard.press("p")) == pytest.approx(first)
    assert opened.moved_by(lambda: opened.page.keyboard.press("n")) == pytest.approx(second)
    opened.page.locator("#spot [data-move=clear]").click()
    opened.until(lambda: not opened.page.locator("#spot").is_visible())
    opened.moved_by(opened.page.locator(".card .show").first.click)
    opened.until(opened.is_steered)
    opened.page.keyboard.press("Escape")
    opened.until(lambda: opened.page.locator(".card.current").count() == 0)
    opened.moved_by(lambda: opened.page.keyboard.press("0"))
    before = opened.range_ms()
    opened.page.locator("#filter").press("n")
    opened.page.locator("#filter").press("0")
    assert opened.page.locator("#filter").input_value() == "n0"
    assert opened.range_ms() == before


def test_places_stay_marked_when_the_theme_changes(opened: Opened) -> None:
    opened.moved_by(opened.page.locator(".card .show").first.click)

    def colours() -> tuple[str, str]:
        """Of the marks of places, and of text."""
        marks, text = opened.page.evaluate(
            "[document.getElementById('lanes').layout.shapes.find(one => one.type === 'rect').line.color,"
            " getComputedStyle(document.documentElement).getPropertyValue('--text').trim()]"
        )
        return marks, text

    light = colours()
    opened.page.locator("#theme").click()
    opened.until(lambda: colours()[0] != light[0])
    assert colours()[0] == colours()[1]


def test_a_long_operation_under_short_ones_is_drawn_wherever_one_looks(open_page: Open, tmp_path: Path) -> None:
    draw = training()
    draw.work("long", (28_100, 29_900), stream=9)
    for at in range(28_200, 29_000, 40):
        draw.work("short", (at, at + 20), stream=9)
    opened = open_page(analysed(draw, tmp_path / "run"))
    # The timeline begins at 8 ms.
    opened.page.evaluate("Plotly.relayout('lanes', {'xaxis.range[0]': 21.3, 'xaxis.range[1]': 21.8})")
    opened.until(lambda: opened.range_ms() == (21.3, 21.8))
    said = "document.getElementById('lanes').data.flatMap(one => one.hovertext).join(' ')"
    opened.until(lambda: "long" in opened.page.evaluate(said))


def test_without_scripts_the_text_is_complete(open_page: Open, usual: str) -> None:
    opened = open_page(usual, java_script_enabled=False)
    assert "Scripts are off" in opened.text("noscript")
    assert opened.page.locator(".card").count() > 0
    assert "num_workers" in opened.text("pre.after")


def test_it_prints(opened: Opened, tmp_path: Path) -> None:
    opened.page.emulate_media(media="print")
    opened.page.evaluate("window.dispatchEvent(new Event('beforeprint'))")
    opened.until(lambda: opened.page.locator("[data-figure]:not([data-drawn])").count() == 0)
    assert not opened.page.locator("nav").is_visible()
    assert opened.page.locator("details.table:not([open])").count() == 0
    drawn = opened.page.locator("svg.main-svg")
    widths = "all => all.map(one => one.getBoundingClientRect().width)"
    opened.until(lambda: max(drawn.evaluate_all(widths)) <= 660)
    opened.page.emulate_media(media="screen")
    opened.page.evaluate("window.dispatchEvent(new Event('afterprint'))")
    assert opened.page.evaluate("document.documentElement.dataset.theme") is None
    assert opened.page.locator("details.table:not([open])").count() > 0
    opened.until(lambda: opened.page.evaluate("document.querySelector('#lanes svg').clientWidth") > 1000)
    opened.page.emulate_media(media="print")
    paper = opened.page.pdf(format="A4")
    assert paper.startswith(b"%PDF")


def test_the_job_is_above_one_rank_and_shows_waiting_and_any_rank(open_page: Open) -> None:
    opened = open_page(eight())
    figure = "document.querySelector('#panel-job_heat .figure')"
    opened.until(lambda: bool(opened.page.evaluate(f"Boolean({figure}.dataset.drawn)")))
    places = [opened.page.locator(one).first.bounding_box() for one in ("#job .tiles", "#job table", "#rank")]
    tiles, table, rank = [one["y"] for one in places if one is not None]
    assert tiles < table < rank
    assert "Rank 5" in opened.text("#job .tiles")
    opened.page.get_by_role("button", name="waiting for others").click()
    assert opened.page.evaluate(f"{figure}.data.map(one => one.visible)") == [False, True]
    assert opened.page.locator("[data-trace='0']").get_attribute("aria-pressed") == "false"
    assert opened.text("#rank").startswith("Rank ")
    # Any rank is shown by choice, or by a click on its column.
    opened.page.select_option("#choose-rank", "5")
    assert "30.0 ms" in opened.text("#chosen-rank")
    opened.page.evaluate(f"{figure}.emit('plotly_click', {{ points: [{{ x: '2 to 3' }}] }})")
    assert opened.page.locator("#choose-rank").input_value() == "2"
    assert "10.0 ms" in opened.text("#chosen-rank")
    assert not opened.wrong
