"""The server over stdio, by the client of the protocol's own SDK: every tool, its refusals, its bounds, its ends."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("mcp")

import anyio
from mcp import Client

from diagnose.contracts.diagnosis import Diagnosis
from diagnose.reports import brief
from diagnose.reports.quoting import MOST_BYTES, NOTE
from tests.agents.samples import MIXED, ORDER, ROOT, evil, outside_of_quotes
from tests.agents.serving import Call, answers, size, text, with_client
from tests.capture.scripts import environment, script
from tests.cli.test_try import LOADER

pytestmark = pytest.mark.slow

TOOLS = ["analyze", "compare", "evidence", "findings", "patch", "profile", "timeline", "try"]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A script with its recording, as it lies in a user's folder."""
    shutil.copytree(MIXED / "two_faults_between_ranks" / "medium", tmp_path / "run")
    shutil.copy(MIXED / "two_faults_between_ranks" / "make.py", tmp_path)
    os.utime(tmp_path / "make.py", (0, 0))
    return tmp_path


def test_every_tool_is_listed_and_answers(folder: Path) -> None:
    async def talk(client: Client) -> tuple[Any, list[Any]]:
        tools = (await client.list_tools()).tools
        calls = {
            "analyze": {"path": "run"},
            "findings": {"diagnosis": "d1"},
            "evidence": {"diagnosis": "d1", "finding": 1},
            "timeline": {"diagnosis": "d1"},
            "compare": {"before": "run", "after": "run"},
            "patch": {"path": "run"},
            "profile": {"command": ["make.py"]},
            "try": {"path": "run"},
        }
        assert sorted(calls) == sorted(tool.name for tool in tools)
        return tools, [await client.call_tool(name, arguments) for name, arguments in calls.items()]

    tools, found = with_client(folder, talk)
    assert sorted(tool.name for tool in tools) == TOOLS
    assert all(tool.description and tool.input_schema["properties"] for tool in tools)
    assert {tool.name for tool in tools if tool.annotations.read_only_hint} == {*TOOLS} - {"profile", "try"}
    assert [result.is_error for result in found] == [False] * 6 + [True] * 2
    assert all(size(result) <= MOST_BYTES for result in found)
    first, findings, evidence, timeline, comparison, patch, *refusals = found
    assert first.structured_content["diagnosis"] == "d1"
    assert [row["rule"] for row in findings.structured_content["findings"]] == ["ddp_overheads", "small_buckets"]
    assert evidence.structured_content["rule"] == "ddp_overheads"
    assert timeline.structured_content["marks"]
    assert comparison.structured_content["verdict"] == "cannot_tell"  # Of five steps each.
    assert "\n|+    ddp = DistributedDataParallel(" in text(patch)
    assert all(
        "runs no commands. Its user can start it with: diagnose mcp --allow-run" in text(refusal)
        for refusal in refusals
    )


def test_analyze_tells_what_the_command_prints(folder: Path) -> None:
    words = [sys.executable, "-m", "diagnose", "analyze", "run"]
    printed = [
        subprocess.run(
            [*words, *more], cwd=folder, env=environment(), capture_output=True, text=True, check=True
        ).stdout
        for more in (["--brief"], ["--format", "json"])
    ]
    (found,) = answers(folder, ("analyze", {"path": "run"}))
    assert printed[0] == brief.render(Diagnosis.from_json(printed[1]))
    assert text(found).endswith(printed[0])


def test_a_patch_is_the_one_of_the_command(folder: Path) -> None:
    before = (folder / "make.py").read_text()
    (found,) = answers(folder, ("patch", {"path": "run", "fixes": ["1"]}))
    lines = [line for line in found.structured_content["lines"] if isinstance(line, str)]
    applied = subprocess.run(
        ["git", "apply", "-"], cwd=folder, input="\n".join([*lines, ""]), text=True, capture_output=True, check=False
    )
    assert applied.returncode == 0, applied.stderr
    assert (folder / "make.py").read_text() == before.replace(
        "bucket_cap_mb=bucket_mb)", "bucket_cap_mb=bucket_mb, gradient_as_bucket_view=True)"
    )
    assert any("predicted" in line["note"] for line in found.structured_content["lines"] if isinstance(line, dict))


def test_a_patch_is_written_only_where_commands_may_run(folder: Path) -> None:
    before = (folder / "make.py").read_text()

    async def talk(client: Client) -> tuple[bool, Any]:
        (tool,) = [one for one in (await client.list_tools()).tools if one.name == "patch"]
        return "write" in tool.input_schema["properties"], await client.call_tool(
            "patch", {"path": "run", "write": True}
        )

    offered, found = with_client(folder, talk)
    assert not offered
    assert (folder / "make.py").read_text() == before
    offered, found = with_client(folder, talk, "--allow-run")
    assert offered
    assert found.structured_content["written"] is True
    assert "gradient_as_bucket_view=True" in (folder / "make.py").read_text()


def test_a_patch_of_files_above_the_folder_is_refused(folder: Path) -> None:
    inner = folder / "inner"
    inner.mkdir()
    (folder / "run").rename(inner / "run")
    manifest = json.loads((inner / "run" / "manifest.json").read_text())
    (inner / "run" / "manifest.json").write_text(json.dumps({**manifest, "command": ["python", f"{folder}/make.py"]}))
    subprocess.run(["git", "init", "-q"], cwd=folder, check=True)
    before = (folder / "make.py").read_text()
    for options in ((), ("--allow-run",)):
        write = {"write": True} if options else {}
        (found,) = answers(inner, ("patch", {"path": "run", **write}), options=options)
        assert found.is_error
        assert "The fixes change files outside of" in text(found)
        assert "bucket_mb" not in text(found)
    assert (folder / "make.py").read_text() == before


def test_paths_and_inputs_that_cannot_be_read_are_refused_in_a_sentence(folder: Path) -> None:
    (folder / "broken.json.gz").write_bytes(b"\x1f\x8b\x08\x00broken")
    (folder / "x.nsys-rep").write_bytes(b"x")
    (folder / "empty").mkdir()
    names = ["..", "/etc/passwd", "https://example.com/x.json", "none", "broken.json.gz", "x.nsys-rep", "empty"]
    words = ["outside", "outside", "is a URL", "does not exist", "broken", "runs no commands", "holds no trace"]
    calls: list[Call] = [("analyze", {"path": name}) for name in names]
    calls += [("findings", {"diagnosis": "d7"}), ("analyze", {"path": "run", "steps": "900-901"})]
    words += ["No diagnosis", "usable steps"]
    for result, word in zip(answers(folder, *calls), words, strict=True):
        assert result.is_error
        assert word in text(result)
        assert text(result).count("\n") == 0
        assert "Traceback" not in text(result)


def test_orders_in_a_trace_stay_data(tmp_path: Path) -> None:
    evil().write(tmp_path / "rank0.json")
    first, *found = answers(
        tmp_path,
        ("analyze", {"path": "rank0.json"}),
        ("findings", {"diagnosis": "d1"}),
        ("evidence", {"diagnosis": "d1", "finding": 1}),
        ("timeline", {"diagnosis": "d1"}),
    )
    told = [one for one in (first, *found) if ORDER in text(one)]
    assert len(told) >= 3
    for one in told:
        assert size(one) <= MOST_BYTES
        assert text(one).index(NOTE) < text(one).index(ORDER)
        assert one.structured_content["untrusted"] == NOTE
        assert ORDER not in outside_of_quotes(text(one))
        assert not re.search(r"^SYSTEM", text(one), re.MULTILINE)


def test_no_module_of_the_folder_runs(folder: Path) -> None:
    """The folder of somebody else's project may hold modules that are named like those that diagnose imports."""
    for name in ("click.py", "numpy.py", "msgspec.py", "multiprocessing.py", "sitecustomize.py"):
        (folder / name).write_text("import pathlib; pathlib.Path(__file__).with_name('ran').touch()\n")
    found = answers_of_console_script(folder)
    assert not found.is_error, text(found)
    assert not (folder / "ran").exists()


def answers_of_console_script(folder: Path) -> Any:
    """As installed: unlike `python -m`, `diagnose` itself finds no module in the working folder."""
    starter = folder.parent / f"{folder.name}-bin" / "diagnose"
    starter.parent.mkdir()
    starter.write_text("from diagnose.cli import main\nmain()\n")
    (found,) = answers(folder, ("analyze", {"path": "run"}), program=(str(starter),))
    return found


SLEEPER = """
import pathlib, subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
pathlib.Path("started").write_text(f"{__import__('os').getpid()} {child.pid}")
print("{" * 3, flush=True)
time.sleep(600)
"""
"""Starts another process, prints what is no message of the protocol, and makes no step."""


def started(folder: Path) -> list[int]:
    """The processes of the script, once they are there."""
    until = time.monotonic() + 600
    while not (folder / "started").is_file() or not (folder / "started").read_text():
        assert time.monotonic() < until
        time.sleep(0.05)
    return [int(number) for number in (folder / "started").read_text().split()]


def ended(numbers: list[int]) -> bool:
    """Whether these processes end within seconds."""
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
            result = await client.call_tool("findings", {"diagnosis": "d1"})
            assert "No diagnosis" in text(result)

    with_client(tmp_path, talk, "--allow-run")
    assert ended(started(tmp_path))
    assert not list(tmp_path.glob("diagnose-runs/*"))


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="asks /proc for processes")
def test_a_signal_ends_the_server_and_its_command(tmp_path: Path) -> None:
    script(tmp_path, SLEEPER)
    words = [sys.executable, "-m", "diagnose", "mcp", "--allow-run"]
    server = subprocess.Popen(words, cwd=tmp_path, env=environment(), stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert server.stdin is not None
    for message in HANDSHAKE:
        server.stdin.write(message.encode() + b"\n")
    server.stdin.flush()
    numbers = started(tmp_path)
    server.send_signal(signal.SIGTERM)
    assert server.wait(30) == 128 + signal.SIGTERM
    assert ended(numbers)
    server.communicate()


HANDSHAKE = (
    '{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-06-18","capabilities":{},'
    '"clientInfo":{"name":"test","version":"1"}}}',
    '{"jsonrpc":"2.0","method":"notifications/initialized"}',
    '{"jsonrpc":"2.0","id":2,"method":"tools/call","params":{"name":"profile","arguments":{"command":["train.py"]}}}',
)
"""What a client sends to have a script profiled."""


def test_a_script_that_fails_is_told_with_its_output(tmp_path: Path) -> None:
    script(tmp_path, f"raise RuntimeError('no data here: {ORDER}')")
    found = answers(
        tmp_path,
        ("profile", {"command": ["train.py"]}),
        ("profile", {"command": []}),
        ("profile", {"command": ["none.py"]}),
        options=("--allow-run",),
    )
    assert all(one.is_error for one in found)
    assert "no data here" in text(found[0])
    assert ORDER not in outside_of_quotes(text(found[0]))
    assert "Name the command to record" in text(found[1])
    assert "none.py does not exist" in text(found[2])


def test_the_page_lists_every_tool() -> None:
    page = (ROOT / "docs" / "agents.md").read_text(encoding="utf-8")
    assert sorted(re.findall(r"^\| `(\w+)` \|", page, re.MULTILINE)) == TOOLS


@pytest.mark.exhaustive
def test_a_training_is_recorded_tried_and_patched(tmp_path: Path) -> None:
    script(tmp_path, LOADER)
    told = list[str]()

    async def talk(client: Client) -> list[Any]:
        async def heard(seconds: float, total: float | None, message: str | None) -> None:
            told.append(message or "")

        command = {"command": ["train.py"]}
        first = await client.call_tool("profile", command, progress_callback=heard)
        run = first.structured_content["recording"]
        fix = {"path": run, "fixes": ["dataloader_starvation"]}
        refused = await client.call_tool("try", fix)
        tried = await client.call_tool("try", {**fix, "may_write_files": True, "budget_s": 120})
        return [first, refused, tried, await client.call_tool("patch", {**fix, "write": True})]

    first, refused, tried, patched = with_client(tmp_path, talk, "--allow-run")
    assert first.structured_content["exit_code"] == 0
    assert first.structured_content["recording"].startswith("diagnose-runs/train-")
    assert "dataloader_starvation" in [one["rule"] for one in first.structured_content["findings"]]
    assert any(message.startswith("recording ") for message in told)
    assert refused.is_error
    assert "writes model.pt, log.txt; each run writes there again" in text(refused)
    (trial, *_) = tried.structured_content["trials"]
    assert (trial["rule"], trial["verdict"]) == ("dataloader_starvation", "keep")
    assert trial["measured"]["low"] > 1
    assert patched.structured_content["written"] is True
    assert "num_workers=" in (tmp_path / "train.py").read_text()
    assert all(size(one) <= MOST_BYTES for one in (first, refused, tried, patched))
