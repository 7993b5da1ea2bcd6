"""The server for agents: its answers, what it refuses, and how it serves the client of the protocol's SDK."""

import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("mcp")

import anyio
from mcp import Client, StdioServerParameters
from mcp.server.mcpserver.exceptions import ToolError
from msgspec.structs import replace

from diagnose import agents, pipeline
from diagnose.agents import MOST_KEPT, MOST_LINE, Server, inside, matching
from diagnose.comparing.compare import compare
from diagnose.contracts.diagnosis import Diagnosis
from diagnose.reports import terminal
from diagnose.reports.answers import CannotAnswer, brief, compared, evidence, page, timeline, tried
from diagnose.reports.comparison import headline
from diagnose.reports.words import MOST_BYTES, NOTE, size
from diagnose.trace.frames import Site
from tests.capture.scripts import environment, script, wait_for
from tests.cli.test_try import LOADER
from tests.drawing import Drawing
from tests.hostile import EVIL, MIXED, ORDER, ROOT, SAMPLE, evil, outside_of_quotes, sample
from tests.reports.test_comparison import SLOWER, casts
from tests.reports.test_reports import EVERY, of
from tests.reports.test_trials import BOTH, FUSED, WORKERS, report
from tests.runs import MS


def pages(ask: Callable[[int], str]) -> Iterator[str]:
    start: int | None = 0
    while start is not None:
        yield (text := ask(start))
        more = re.search(r"^There is more: call again with start=(\d+)\.$", text, re.MULTILINE)
        start = int(more[1]) if more else None


def rows(text: str, kind: str = "") -> list[Any]:
    """What lines of an answer hold as JSON: those that begin with a word, or that are nothing else."""
    found = [line.removeprefix(f"{kind} ") for line in text.splitlines() if not kind or line.startswith(f"{kind} ")]
    return [json.loads(line) for line in found if line.startswith(("{", "["))]


@pytest.mark.parametrize("width", [0, 10, 300, 2_000])
@pytest.mark.parametrize("count", [0, 1, 7, 900])
def test_pages_hold_each_line_once_in_order(count: int, width: int) -> None:
    found = list(pages(lambda start: page([f"{number}:{'x' * width}" for number in range(count)], start, ["head"])))
    assert all(size(one) <= MOST_BYTES and one.startswith(f"{NOTE}\nhead\n") for one in found)
    told = [int(number) for one in found for number in re.findall(r"^(\d+):", one, re.MULTILINE)]
    assert told == list(range(count))


def test_findings_are_told_by_their_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(SAMPLE.parent)
    server = Server(SAMPLE.parent, allow_run=False)
    text = server.analyze("medium")
    assert text.startswith("Diagnosis d1. ")
    head, told = text.split(f"\n{NOTE}\n")
    assert (len(head.splitlines()), told) == (1, brief(server._kept["d1"]))
    assert '"Fix 2 faults: 17.4 → 8.39 ms/step (2.1x faster)"' in told.splitlines()
    assert 'evidence(diagnosis="d1", finding=1)' in text
    for row, one in zip(rows(server.findings("d1")), sample().findings, strict=True):
        saving = one.saving
        assert (row["rank_order"], row["rule"], row["kind"]) == (one.rank_order, one.rule, one.kind.value)
        assert [row["saving"][name] for name in ("low_ns", "likely_ns")] == [saving.low_ns, saving.likely_ns]
        assert (row["evidence"][0]["text"], row["fix"]) == (one.evidence[0].text, one.fixes[0].do)
    assert "dataloader_starvation" not in server.analyze("medium", rules=["OP01"])
    with pytest.raises(ToolError, match="has no finding 4"):
        server.evidence("d1", 4)
    with pytest.raises(ToolError, match="usable steps"):
        server.analyze("medium", steps="900-901")


def test_evidence_has_all_sentences_the_code_and_windows_of_the_timeline() -> None:
    one = sample().findings[1]
    text = evidence(sample(), "d1", one.rank_order)
    assert [row["text"] for row in rows(text, "evidence")] == [part.text for part in one.evidence]
    assert rows(text, "fix")[0]["after"] == one.fixes[0].after
    assert rows(text, "confidence")[0]["why"] == one.confidence.why
    spot = one.spots[0]
    call = (
        f'timeline(diagnosis="d1", start_ns={spot.start_ns}, end_ns={spot.start_ns + spot.dur_ns}, lanes=[{spot.lane}])'
    )
    assert f"\nplace {call}\n" in text
    window = timeline(sample(), (spot.start_ns, spot.start_ns + spot.dur_ns), [spot.lane], 0)
    assert rows(window)[0][:2] == [spot.lane, spot.start_ns]
    with pytest.raises(CannotAnswer, match=r"has no finding 4\. It has findings 1 to 3"):
        evidence(sample(), "d1", 4)


def all_answers(found: Diagnosis, folder: Path) -> Iterator[str]:
    """Every answer there is about a diagnosis."""
    server = Server(folder, allow_run=False)
    server._kept["d1"] = found
    yield from pages(lambda start: server.findings("d1", start))
    for finding in found.findings:
        yield from pages(lambda start, number=finding.rank_order: evidence(found, "d1", number, start))  # type: ignore[misc]
    if found.timeline is not None:
        yield from pages(lambda start: timeline(found, (0, found.timeline.dur_ns), None, start))


@pytest.mark.parametrize("name", EVERY)
def test_every_answer_is_bounded_whatever_the_recording(name: str, tmp_path: Path) -> None:
    assert all(size(answer) <= MOST_BYTES for answer in all_answers(of(EVERY[name]()), tmp_path))


@pytest.mark.parametrize("name", EVERY)
def test_every_line_of_the_report_is_in_quotes(name: str) -> None:
    found = of(EVERY[name]())
    assert size(brief(found)) <= MOST_BYTES - 1_000  # Below a handle and a note.
    told, lines = brief(found).splitlines(), terminal.render(found, 100).splitlines()
    assert [line.strip('"') for line in told] == [" ".join(line.split()) for line in lines if line.strip()]
    assert all(re.fullmatch(r'"[^"]+"', line) for line in told)


def test_many_findings_make_many_pages(tmp_path: Path) -> None:
    many = tuple(replace(sample().findings[0], rank_order=number) for number in range(1, 101))
    found = list(all_answers(replace(sample(), findings=many, timeline=None), tmp_path))
    numbers = [row["rank_order"] for text in found for row in rows(text) if "rank_order" in row]
    assert numbers[:100] == list(range(1, 101))


def test_orders_in_names_stay_quoted_and_bounded(tmp_path: Path) -> None:
    found = pipeline.diagnose([evil().write(tmp_path / "rank0.json")])
    comparison = compare(casts(2), casts(50, Site(EVIL, 1, EVIL), EVIL, EVIL))
    trial = replace(WORKERS, injected=EVIL, fix=EVIL, why=EVIL)
    answers = [
        *all_answers(found, tmp_path),
        f"{NOTE}\n{brief(found)}",
        *pages(lambda start: compared(comparison, start)),
        *pages(lambda start: tried(report(*[trial] * 40, notes=(EVIL,)), start)),
    ]
    assert sum(ORDER in answer for answer in answers) >= 5
    for answer in answers:
        assert size(answer) <= MOST_BYTES
        assert answer.startswith(NOTE)
        assert ORDER not in outside_of_quotes(answer)
        assert all(line.isprintable() for line in answer.splitlines())


def test_a_comparison_begins_with_its_verdict_and_its_parts_add_up() -> None:
    found = list(pages(lambda start: compared(SLOWER, start)))
    assert found[0].splitlines()[:2] == [NOTE, headline(SLOWER)]
    assert '\ncause "+48.0 ms: aten::copy_ at src/train.py:88 (main): more calls, 2 -> 50 per step' in found[0]
    parts = [part for text in found for part in rows(text, "part")]
    assert sum(part["ns"] for part in parts) == 48 * MS
    assert any('Changed settings: "version torch: 2.10 -> 2.11."' in text for text in found)


def test_trials_are_told_with_their_factors() -> None:
    """80 ms by 1.6 is 50 ms."""
    text = tried(report(WORKERS, FUSED, together=BOTH), 0)
    assert "80.0 ms -> 50.0 ms per step, 60 % faster (95 % interval 40 to 80 %); predicted 40 % faster." in text
    told = rows(text, "trial")
    assert [row["verdict"] for row in told] == ["keep", "keep", "keep"]
    assert (told[0]["measured"], told[1]["predicted"]) == ({"low": 1.2, "likely": 1.25, "high": 1.31}, None)
    assert rows(text, "not tried")[0]["why"] == "it needs an edit of the script"


@pytest.fixture(scope="module")
def drawn() -> Diagnosis:
    """Four steps of 100 us: an op from 1 to 9, a launch at 2, its kernel from 10 to 60.
    The first is not used. A step of the device ends with its work, so that the timeline starts at 60: there the kernels
    run from 50 to 100, the ops from 41 to 49."""
    draw = Drawing()
    for number in range(4):
        at = number * 100
        draw.step(number, at, at + 100).op("aten::mm", at + 1, at + 9).launch("k", (at + 2, at + 3), (at + 10, at + 60))
    return of(draw)


def kernels(found: Diagnosis, *window: int) -> list[list[object]]:
    """Start, duration, name and count of what runs on the device."""
    text = timeline(found, window, None, 0)  # type: ignore[arg-type]
    lanes = {int(lane) for lane in re.findall(r"^lane (\d+) device ", text, re.MULTILINE)}
    return [mark[1:] for mark in rows(text) if mark[0] in lanes]


def test_a_window_has_its_marks_from_the_timeline_s_start(drawn: Diagnosis) -> None:
    assert kernels(drawn, 0, 100_000) == [[50_000, 50_000, "k", 1]]
    assert kernels(drawn, 0, 300_000) == [[at + 50_000, 50_000, "k", 1] for at in (0, 100_000, 200_000)]
    assert kernels(drawn, 60_000, 70_000) == [[60_000, 10_000, "k", 1]]
    assert kernels(drawn, 0, 40_000) == []
    assert "\n0 to 100000 ns of 300000: lanes, then marks" in timeline(drawn, (None, None), None, 0)


def test_lanes_are_chosen(drawn: Diagnosis) -> None:
    (lane,) = re.findall(r"^lane (\d+) device ", timeline(drawn, (0, 100_000), None, 0), re.MULTILINE)
    assert rows(timeline(drawn, (0, 100_000), [int(lane)], 0)) == [[int(lane), 50_000, 50_000, "k", 1]]


@pytest.mark.parametrize(
    ("window", "lanes", "said"),
    [
        ((300_000, 400_000), None, "300000 ns long"),
        ((9, 3), None, "300000 ns long"),
        ((0, 100_000), [99], "There is no lane 99"),
    ],
)
def test_what_is_not_on_the_timeline_is_refused(
    drawn: Diagnosis, window: tuple[int, int], lanes: list[int] | None, said: str
) -> None:
    with pytest.raises(CannotAnswer, match=said):
        timeline(drawn, window, lanes, 0)
    with pytest.raises(CannotAnswer, match="There is no timeline"):
        timeline(of(EVERY["inconclusive"]()), window, lanes, 0)


def test_many_short_marks_are_joined_and_counted(tmp_path: Path) -> None:
    draw = Drawing()
    for number in range(2):
        at = number * 10_000
        draw.step(number, at, at + 10_000)
        for k in range(1000):
            start = at + 10 * k
            draw.launch(f"kernel_{k}", (start, start + 1), (start + 2, start + 9))
    found = pipeline.diagnose([draw.write(tmp_path / "rank0.json")])
    joined = kernels(found, 0, 10_000_000)
    assert 1 < len(joined) <= 100
    assert sum(int(str(mark[3])) for mark in joined) == 1000
    assert "ns are joined. A smaller window" in timeline(found, (0, 10_000_000), None, 0)
    assert [mark[2] for mark in kernels(found, 0, 30_000)] == ["kernel_0", "kernel_1", "kernel_2"]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A folder with a recording, beside which lies one that is not to be read."""
    for folder in (tmp_path / "here" / "run", tmp_path / "other"):
        folder.mkdir(parents=True)
        (folder / "rank0.trace.json").write_text("{}")
    return (tmp_path / "here").resolve()


@pytest.mark.parametrize("given", ["run", "./run", "run/../run", "run/rank0.trace.json", ".", "", "{root}/run"])
def test_what_lies_under_the_folder_may_be_read(root: Path, given: str) -> None:
    assert inside(root, given.format(root=root)).is_relative_to(root)


@pytest.mark.parametrize(
    ("given", "word"),
    [
        ("../other", "outside"),
        ("run/../../other/rank0.trace.json", "outside"),
        ("{root}/../other", "outside"),
        ("/", "outside"),
        ("../none", "outside"),
        ("none", "does not exist"),
        ("run/*.json", "does not exist"),
        ("a\0b", "not a path"),
        ("s3://bucket/run", "is a URL"),
        ("file:///etc/passwd", "is a URL"),
    ],
)
def test_nothing_else_may(root: Path, given: str, word: str) -> None:
    with pytest.raises(ToolError, match=word) as refused:
        inside(root, given.format(root=root))
    assert str(refused.value).count("\n") == 0


def test_a_link_counts_where_it_leads(root: Path) -> None:
    (root / "out").symlink_to(root.parent / "other")
    (root / "in").symlink_to(root / "run")
    assert inside(root, "in") == root / "run"
    with pytest.raises(ToolError, match="outside"):
        inside(root, "out")
    (root / "run" / "python").symlink_to("/usr/bin/env")  # No trace: nothing reads it.
    assert inside(root, "run") == root / "run"
    (root / "run" / "rank1.trace.json").symlink_to(root.parent / "other" / "rank0.trace.json")
    with pytest.raises(ToolError, match=r'holds the link "rank1\.trace\.json", which leads out'):
        inside(root, "run")


def test_links_in_a_circle_end(root: Path) -> None:
    (root / "run" / "loop.json").symlink_to(root / "run" / "loop.json")
    with pytest.raises(ToolError):
        inside(root, "run/loop.json")
    assert inside(root, "run") == root / "run"


def test_a_pattern_stands_for_paths_under_the_folder(root: Path) -> None:
    shutil.copytree(root / "run", root / "run-2")
    (root / "run[3]").mkdir()
    assert matching(root, "run*") == [root / "run", root / "run-2", root / "run[3]"]
    assert matching(root, "run") == [root / "run"]
    assert matching(root, "run[3]") == [root / "run[3]"]


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("../*", "may lead out"),
        ("{root}/../oth*", "may lead out"),
        ("/etc/*", "may lead out"),
        ("none*", "matches nothing"),
        ("s3://bucket/*", "is a URL"),
        ("a*\0", "not a path"),
        ("li*", "outside"),
    ],
)
def test_no_pattern_leads_out(root: Path, given: str, said: str) -> None:
    (root / "link").symlink_to(root.parent / "other")
    with pytest.raises(ToolError, match=said):
        matching(root, given.format(root=root))


def test_inputs_that_cannot_be_read_are_refused_in_a_sentence(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(root)
    (root / "broken.json.gz").write_bytes(b"\x1f\x8b\x08\x00broken")
    (root / "x.nsys-rep").write_bytes(b"x")
    (root / "empty").mkdir()
    server = Server(root, allow_run=False)
    for name, word in [("broken.json.gz", "broken"), ("x.nsys-rep", "runs no commands"), ("empty", "holds no trace")]:
        with pytest.raises(ToolError, match=word) as refused:
            server.analyze(name)
        assert str(refused.value).count("\n") == 0
    with pytest.raises(ToolError, match=r"known: none\). Call analyze again"):
        server.findings("d1")


def test_the_diagnosis_that_was_asked_for_longest_ago_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(agents, "_diagnosed", lambda *asked: sample())
    server = Server(SAMPLE.parent, allow_run=False)
    for number in range(MOST_KEPT):
        assert server.analyze("medium").startswith(f"Diagnosis d{number + 1}. ")
    server.findings("d1")
    server.analyze("medium")
    server.findings("d1")
    with pytest.raises(ToolError, match='There is no diagnosis "d2"'):
        server.findings("d2")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A script with its recording, as it lies in a user's folder."""
    shutil.copytree(MIXED / "two_faults_between_ranks" / "medium", tmp_path / "run")
    shutil.copy(MIXED / "two_faults_between_ranks" / "make.py", tmp_path)
    os.utime(tmp_path / "make.py", (0, 0))
    monkeypatch.chdir(tmp_path)
    return tmp_path.resolve()


def diff_of(text: str) -> str:
    return "".join(f"{line[1:]}\n" for line in text.split("\n") if line.startswith("|"))


def test_a_patch_can_be_applied_and_is_written_where_that_is_allowed(folder: Path) -> None:
    before = (folder / "make.py").read_text()
    text = Server(folder, allow_run=False).patch("run", ["1"])
    assert "Nothing is changed yet." in text
    assert 'note "' in text
    assert (folder / "make.py").read_text() == before
    subprocess.run(["git", "apply", "-"], cwd=folder, input=diff_of(text), text=True, check=True)
    after = before.replace("bucket_cap_mb=bucket_mb)", "bucket_cap_mb=bucket_mb, gradient_as_bucket_view=True)")
    assert (folder / "make.py").read_text() == after
    (folder / "make.py").write_text(before)
    os.utime(folder / "make.py", (0, 0))
    assert "The files are changed." in Server(folder, allow_run=True).patch_or_write("run", ["1"], write=True)
    assert (folder / "make.py").read_text() == after


def test_a_patch_of_files_above_the_folder_is_refused(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    inner = folder / "inner"
    inner.mkdir()
    (folder / "run").rename(inner / "run")
    manifest = json.loads((inner / "run" / "manifest.json").read_text())
    (inner / "run" / "manifest.json").write_text(json.dumps({**manifest, "command": ["python", f"{folder}/make.py"]}))
    subprocess.run(["git", "init", "-q"], cwd=folder, check=True)
    monkeypatch.chdir(inner)
    before = (folder / "make.py").read_text()
    with pytest.raises(ToolError, match="The fixes change files outside of"):
        Server(inner, allow_run=True).patch_or_write("run", write=True)
    assert (folder / "make.py").read_text() == before


def test_a_long_line_of_a_diff_is_not_cut(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(agents.making, "unified", lambda files: b"+" + b"x" * MOST_LINE + b"\n")
    with pytest.raises(ToolError, match=r'too long to show\. Run: diagnose patch "run"'):
        Server(folder, allow_run=False).patch("run")


def test_the_page_lists_every_tool() -> None:
    listed = re.findall(r"^\| `(\w+)` \|", (ROOT / "docs" / "agents.md").read_text(encoding="utf-8"), re.MULTILINE)
    for allow_run in (False, True):
        tools = anyio.run(Server(ROOT, allow_run).protocol().list_tools)
        assert sorted(tool.name for tool in tools) == sorted(listed)
        (patch,) = [tool for tool in tools if tool.name == "patch"]
        assert ("write" in patch.input_schema["properties"]) == allow_run
        read_only = {tool.name for tool in tools if tool.annotations and tool.annotations.read_only_hint}
        assert read_only == {*listed} - {"profile", "try", *(["patch"] if allow_run else [])}


def with_client(folder: Path, talk: Callable[[Client], Awaitable[Any]], *options: str, program: str = "") -> Any:
    """What a conversation gives with a server that was started in a folder."""
    words = [program] if program else ["-m", "diagnose"]
    server = StdioServerParameters(
        command=sys.executable, args=[*words, "mcp", *options], cwd=folder, env=environment()
    )

    async def converse() -> Any:
        async with Client(server) as client:
            return await talk(client)

    return anyio.run(converse)


def text_of(result: Any) -> str:
    (content,) = result.content
    return str(content.text)


@pytest.mark.slow
def test_tools_answer_over_stdio_and_no_module_of_the_folder_runs(folder: Path) -> None:
    """The folder of somebody else's project may hold modules that are named like those that diagnose imports."""
    for name in ("click.py", "numpy.py", "msgspec.py", "multiprocessing.py", "sitecustomize.py"):
        (folder / name).write_text("import pathlib; pathlib.Path(__file__).with_name('ran').touch()\n")
    starter = folder.parent / f"{folder.name}-bin" / "diagnose"
    starter.parent.mkdir()
    starter.write_text("from diagnose.cli import main\nif __name__ == '__main__': main()\n")

    async def talk(client: Client) -> list[Any]:
        calls = {
            "analyze": {"path": "run"},
            "compare": {"before": "run", "after": "run"},
            "profile": {"command": ["make.py"]},
            "try": {"path": "run"},
        }
        return [await client.call_tool(name, arguments) for name, arguments in calls.items()]

    analysis, comparison, *refusals = with_client(folder, talk, program=str(starter))
    assert text_of(analysis).startswith("Diagnosis d1. ")
    assert "Cannot tell" in text_of(comparison)  # Of five steps each.
    assert [one.is_error for one in (analysis, comparison, *refusals)] == [False, False, True, True]
    assert [text_of(refusal).partition(": ")[2] for refusal in refusals] == [agents.NOT_ALLOWED] * 2
    assert not (folder / "ran").exists()


SLEEPER = """
import pathlib, subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
pathlib.Path("started").write_text(f"{__import__('os').getpid()} {child.pid}")
print("{" * 3, flush=True)
time.sleep(600)
"""
"""Starts another process, prints what is no message of the protocol, and makes no step."""


def started(folder: Path) -> list[int]:
    wait_for(lambda: (folder / "started").is_file() and (folder / "started").read_text(), 600)
    return [int(number) for number in (folder / "started").read_text().split()]


def ended(numbers: list[int]) -> bool:
    until = time.monotonic() + 600
    while any(_alive(number) for number in numbers):
        if time.monotonic() > until:
            return False
        time.sleep(0.05)
    return True


def _alive(number: int) -> bool:
    try:
        return Path(f"/proc/{number}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="asks /proc for processes")
@pytest.mark.parametrize("how", ["cancelled", "closed"])
def test_nothing_is_left_of_a_command_that_nobody_waits_for(tmp_path: Path, how: str) -> None:
    script(tmp_path, SLEEPER)

    async def talk(client: Client) -> None:
        async with anyio.create_task_group() as group:
            group.start_soon(client.call_tool, "profile", {"command": ["train.py"]})
            numbers = await anyio.to_thread.run_sync(started, tmp_path)
            group.cancel_scope.cancel()
        if how == "cancelled":
            assert await anyio.to_thread.run_sync(ended, numbers)
            assert "There is no diagnosis" in text_of(await client.call_tool("findings", {"diagnosis": "d1"}))

    with_client(tmp_path, talk, "--allow-run")
    assert ended(started(tmp_path))


@pytest.mark.slow
def test_a_command_that_takes_too_long_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script(tmp_path, SLEEPER)
    monkeypatch.setattr(agents, "LIMIT_S", 1)

    class Silent:
        async def report_progress(self, seconds: float) -> None:
            pass

    with pytest.raises(ToolError, match="It did not end within 1 s"):
        anyio.run(Server(tmp_path, allow_run=True).profile, ["train.py"], Silent())


@pytest.mark.slow
def test_a_script_that_fails_is_told_with_its_output(tmp_path: Path) -> None:
    script(tmp_path, f"raise RuntimeError('no data here: {ORDER}')")

    async def talk(client: Client) -> list[Any]:
        commands: list[list[str]] = [["train.py"], [], ["none.py"]]
        return [await client.call_tool("profile", {"command": command}) for command in commands]

    failed, empty, unknown = with_client(tmp_path, talk, "--allow-run")
    assert failed.is_error
    assert "no data here" in text_of(failed)
    assert ORDER not in outside_of_quotes(text_of(failed))
    assert "Name the command to record" in text_of(empty)
    assert "none.py does not exist" in text_of(unknown)


@pytest.mark.exhaustive
def test_a_training_is_recorded_tried_and_patched(tmp_path: Path) -> None:
    script(tmp_path, LOADER)
    told = list[float]()

    async def talk(client: Client) -> list[Any]:
        async def heard(seconds: float, total: float | None, message: str | None) -> None:
            told.append(seconds)

        first = await client.call_tool("profile", {"command": ["train.py"]}, progress_callback=heard)
        (run,) = re.findall(r"^The recording is (\S+)\. ", text_of(first))
        fix = {"path": run, "fixes": ["dataloader_starvation"]}
        refused = await client.call_tool("try", fix)
        trial = await client.call_tool("try", {**fix, "may_write_files": True, "budget_s": 120})
        return [first, refused, trial, await client.call_tool("patch", {**fix, "write": True})]

    first, refused, trial, patched = with_client(tmp_path, talk, "--allow-run")
    assert "The recording is diagnose-runs/train-" in text_of(first)
    assert told == sorted(told)
    assert told[-1] > 0
    assert refused.is_error
    assert "writes model.pt, log.txt. Each run writes there again" in text_of(refused)
    row = rows(text_of(trial), "trial")[0]
    assert (row["rule"], row["verdict"]) == ("dataloader_starvation", "keep")
    assert row["measured"]["low"] > 1
    assert "The files are changed." in text_of(patched)
    assert "num_workers=" in (tmp_path / "train.py").read_text()
