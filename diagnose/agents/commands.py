"""Runs the command line as a process of its own: what it prints never meets the protocol, and it can be ended.

So a tool does what the command does, a trace that takes all memory takes no server with it, and nothing is left behind
when a client cancels: the command and what it started are one process group.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import anyio
from anyio.abc import ByteReceiveStream, Process

from diagnose.agents.refusals import Refused
from diagnose.reports.quoting import plain, quoted

LAUNCH = "import sys; sys.path[:1] == [''] and sys.path.pop(0); from diagnose.cli import main; main()"
"""`python -m diagnose`, but for the working folder: no module that lies there is imported in place of another."""

RESULT = "{result}"
"""Stands for the file of the result in a command."""

ENDING = "The server is ending. Start it again."

LARGEST_RESULT_BYTES = 1 << 29
TAIL_BYTES = 16_000
"""Of what a command prints, that is kept."""

POLL_S = 0.05
TOLD_S = 2.0
"""Between two notes on progress, where there is no news (our choice)."""

NOTE_BEGINS = b"diagnose: "

PATIENCE_S = 5.0
"""For a command that is interrupted to end by itself; its trials and recordings clean up behind them (our choice)."""

LEAVING_S = 1.0
"""For its last output to arrive, and for a process to end that was told to (our choice)."""

Heard = Callable[[float, str], Awaitable[None]]
"""Is told the seconds that a command runs for, and its last note."""


@dataclass(frozen=True)
class Ended:
    """A command that came to its end."""

    code: int
    result: bytes
    """Its file; empty if it has written none."""
    printed: str
    """The end of standard output."""
    said: str
    """The end of standard error."""

    def why(self, what: str) -> Refused:
        """Its last sentence as a refusal."""
        lines = [line for line in self.said.splitlines() if line.strip()]
        errors = [line for line in lines if line.startswith("Error: ")]
        last = (errors or lines or [f"exit code {self.code}"])[-1].removeprefix("Error: ")
        return Refused(f"{what}: {quoted(last, 600)}")


class Commands:
    """Runs them in a folder, one at a time."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._one = anyio.Lock()
        self._hurry = anyio.Event()
        self._scopes: list[anyio.CancelScope] = []

    async def run(self, words: Sequence[str], heard: Heard, runs_scripts: bool = False) -> Ended:
        """Run `diagnose` with these words, among them RESULT. Ends it, and all that it started, when cancelled."""
        # A script finds its modules in its own folder; nothing else needs any there.
        safe = {} if runs_scripts else {"PYTHONSAFEPATH": "1"}
        async with self._one:
            if self._hurry.is_set():
                raise Refused(ENDING)
            with tempfile.TemporaryDirectory(prefix="diagnose-") as folder, anyio.CancelScope() as scope:
                result = Path(folder) / "result"
                command = [sys.executable, "-c", LAUNCH, *(word.replace(RESULT, str(result)) for word in words)]
                self._scopes.append(scope)
                try:
                    return await self._ended(command, {**os.environ, **safe}, result, heard)
                finally:
                    self._scopes.remove(scope)
        raise Refused(ENDING)  # By `stop`, which has cancelled the scope.

    async def stop(self) -> None:
        """End what runs, at once. Returns when it is gone."""
        self._hurry.set()
        for scope in self._scopes:
            scope.cancel()
        with anyio.move_on_after(2 * LEAVING_S):
            while self._scopes:
                await anyio.sleep(POLL_S)

    async def _ended(self, command: list[str], environment: dict[str, str], result: Path, heard: Heard) -> Ended:
        printed, said = bytearray(), bytearray()
        process = await anyio.open_process(
            command, stdin=subprocess.DEVNULL, cwd=self._root, env=environment, start_new_session=True
        )
        try:
            async with anyio.create_task_group() as group:
                group.start_soon(_keep_tail, process.stdout, printed)
                group.start_soon(_keep_tail, process.stderr, said)
                await _wait(process, said, heard)
                await anyio.sleep(POLL_S)
                group.cancel_scope.cancel()  # What still holds the pipes is no part of the command any more.
        finally:
            with anyio.CancelScope(shield=True):
                await self._end(process)
                await process.aclose()
        code = process.returncode
        assert code is not None
        return Ended(code, _read(result), _text(printed), _text(said))

    async def _end(self, process: Process) -> None:
        """The process group: by an interrupt, then by force."""
        if process.returncode is None:
            _signal(process, signal.SIGINT)
            await _gone(process, PATIENCE_S, self._hurry)
        _signal(process, getattr(signal, "SIGKILL", signal.SIGTERM))
        await _gone(process, LEAVING_S, anyio.Event())


async def _gone(process: Process, within_s: float, hurry: anyio.Event) -> None:
    """Wait so long for a process to end, or until there is no time for that."""
    with anyio.move_on_after(within_s):
        while process.returncode is None and not hurry.is_set():
            await anyio.sleep(POLL_S)


def _signal(process: Process, number: int) -> None:
    with suppress(ProcessLookupError, PermissionError):
        if hasattr(os, "killpg"):
            os.killpg(process.pid, number)
        elif process.returncode is None:
            process.send_signal(number)


async def _keep_tail(stream: ByteReceiveStream | None, tail: bytearray) -> None:
    """Read to the end, and keep the last bytes."""
    assert stream is not None
    with suppress(anyio.EndOfStream, anyio.ClosedResourceError, anyio.BrokenResourceError):
        while True:
            tail += await stream.receive()
            del tail[:-TAIL_BYTES]


async def _wait(process: Process, said: bytearray, heard: Heard) -> None:
    """Until it has ended, and tell how long that takes and what it says."""
    began = told = anyio.current_time()
    before = ""
    while process.returncode is None:
        await anyio.sleep(POLL_S)
        now, note = anyio.current_time(), _note(said)
        if note != before or now - told >= TOLD_S:
            told, before = now, note
            await heard(round(now - began, 1), note)


def _note(said: bytearray) -> str:
    """The last thing that diagnose itself has said, not the script."""
    lines = [line for line in said.splitlines() if line.startswith(NOTE_BEGINS)]
    return plain(_text(lines[-1].removeprefix(NOTE_BEGINS)), 200) if lines else ""


def _text(some: bytearray) -> str:
    return some.decode(errors="replace")


def _read(result: Path) -> bytes:
    if not result.is_file():
        return b""
    if result.stat().st_size > LARGEST_RESULT_BYTES:
        raise Refused("The result is too large for a server that keeps it. Use the command line.")
    return result.read_bytes()
