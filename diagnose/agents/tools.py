"""What the tools do, whatever protocol they are called by: paths, commands, and the diagnoses that are kept."""

from __future__ import annotations

import re
import shutil
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path

import anyio
import msgspec

from diagnose.agents import comparisons, diagnoses, trying
from diagnose.agents.answers import Answer
from diagnose.agents.commands import RESULT, Commands, Ended, Heard
from diagnose.agents.kept import Analysed, Kept
from diagnose.agents.paths import inside, matching, named, word
from diagnose.agents.refusals import Refused
from diagnose.contracts.comparison import Comparison
from diagnose.contracts.diagnosis import Diagnosis
from diagnose.contracts.trials import Report
from diagnose.reports.quoting import plain, quoted
from diagnose.storage.checkout import root_of

DONE, INCONCLUSIVE = 0, 3
"""Exit codes after which there is a result."""

NOT_ALLOWED = "This server runs no commands. Its user can start it with: diagnose mcp --allow-run"

NEEDS_NSYS = (".nsys-rep", ".qdrep")
"""Reports that only Nsight Systems reads."""

TAIL_LINES = 20
"""Of a script's output, where its recording fails."""


class Tools:
    """Of one server."""

    def __init__(self, root: Path, allow_run: bool) -> None:
        """`root`: the folder in which it works, without links. `allow_run`: whether it may run commands."""
        self.root, self.allow_run = root, allow_run
        self.commands, self.kept = Commands(root), Kept()

    async def analyze(self, path: str, steps: str | None, rules: Sequence[str], heard: Heard) -> Answer:
        """Analyse a recording, and tell it in short. Raises Refused."""
        return diagnoses.overview(await self._analysed(await self._path(path), steps, rules, heard))

    async def _path(self, given: str) -> Path:
        """Raises Refused if it must not be read."""
        found: Path = await anyio.to_thread.run_sync(inside, self.root, given)
        if found.suffix in NEEDS_NSYS and not self.allow_run:
            raise Refused(f"{quoted(given)} is read by running nsys. {NOT_ALLOWED}")
        return found

    async def _side(self, given: str) -> str:
        """A path, or a pattern for several, as a word of a command. Raises Refused if one must not be read."""
        for one in await anyio.to_thread.run_sync(matching, self.root, given):
            await self._path(str(one))
        return word(given)

    async def _analysed(self, path: Path, steps: str | None, rules: Sequence[str], heard: Heard) -> Analysed:
        options = [*([f"--steps={steps}"] if steps else []), *(f"--select={rule}" for rule in rules)]
        name = named(self.root, path)
        ended = await self.commands.run(["analyze", "--quiet", "--brief", *options, "--json", RESULT, name], heard)
        if ended.code not in (DONE, INCONCLUSIVE) or not ended.result:
            raise ended.why("diagnose analyze")
        return self.kept.keep(name, await anyio.to_thread.run_sync(Diagnosis.from_json, ended.result))

    async def compare(self, before: str, after: str, start: int, heard: Heard) -> Answer:
        """What differs between two recordings, and whether it is noise. Raises Refused."""
        names = [await self._side(given) for given in (before, after)]
        ended = await self.commands.run(["compare", "--quiet", "--json", RESULT, *names], heard)
        if not ended.result:
            raise ended.why("diagnose compare")
        return comparisons.compared(msgspec.json.decode(ended.result, type=Comparison), start)

    async def profile(self, command: Sequence[str], steps: int, warmup: int, heard: Heard) -> Answer:
        """Record a command in a new folder, and analyse that. Raises Refused."""
        self._refuse_running()
        words = _words(command)
        name = re.sub(r"[^\w.-]", "_", Path(_what(words)).stem)[:60]
        folder = self.root / "diagnose-runs" / f"{name}-{datetime.now():%Y%m%d-%H%M%S-%f}"
        options = [f"--out={named(self.root, folder)}", f"--steps={steps}", f"--warmup={warmup}", "--no-analyze"]
        try:
            ended = await self.commands.run(["profile", *options, *words], heard, runs_scripts=True)
        except anyio.get_cancelled_exc_class():
            shutil.rmtree(folder, ignore_errors=True)  # Nobody will learn its name.
            raise
        if not any(folder.glob("*.trace.*")):
            raise _failed(ended)
        found = await self._analysed(folder, None, (), heard)
        said = [f"The recording is {quoted(found.path)}. The command's exit code is {ended.code}."]
        return diagnoses.overview(found, said, {"recording": found.path, "exit_code": ended.code})

    async def try_fixes(
        self, path: str, fixes: Sequence[str], budget_s: int, may_write: bool, start: int, heard: Heard
    ) -> Answer:
        """Measure fixes of a recording in its script. Raises Refused."""
        self._refuse_running()
        name = named(self.root, await self._path(path))
        options = [f"--budget={budget_s}s", *(f"--fix={fix}" for fix in fixes), *(["--yes"] if may_write else [])]
        words = ["try", *options, "--json", RESULT, name]
        ended = await self.commands.run(words, heard, runs_scripts=True)
        if not ended.result:
            raise ended.why("diagnose try")
        return trying.tried(name, msgspec.json.decode(ended.result, type=Report), start)

    async def patch(self, path: str, fixes: Sequence[str], write: bool, start: int, heard: Heard) -> Answer:
        """The fixes of a recording as a diff of the user's files; `write` changes these. Raises Refused."""
        if write:
            self._refuse_running()
        name = named(self.root, await self._path(path))
        diff, said = await self._patch(name, fixes, [], heard)
        if write:  # What is in the diff is known before it is written.
            diff, said = await self._patch(name, fixes, ["--write"], heard)
        return trying.patched(name, diff, said, write, start)

    async def _patch(self, name: str, fixes: Sequence[str], options: Sequence[str], heard: Heard) -> tuple[str, str]:
        """The diff, and what is said of it. Raises Refused."""
        words = ["patch", *options, *(f"--fix={fix}" for fix in fixes), "--output", RESULT, name]
        ended = await self.commands.run(words, heard)
        if ended.code not in (DONE, INCONCLUSIVE):
            raise ended.why("diagnose patch")
        return _diff(ended.result, self.root), ended.said

    def _refuse_running(self) -> None:
        if not self.allow_run:
            raise Refused(NOT_ALLOWED)


def _words(command: Sequence[str]) -> list[str]:
    """A command as `diagnose profile` takes it. Raises Refused."""
    words = list(command)
    if words[:1] not in (["-m"], ["--"]) and not (words and words[0].endswith(".py")):
        words = ["--", *words]
    what = _what(words)
    if not what or what.startswith("-"):
        raise Refused('Name the command to record, for example: ["train.py", "--epochs", "3"]')
    return words


def _what(words: Sequence[str]) -> str:
    """The script, module or program of such a command."""
    return "".join(words[1:2] if words[0] in ("-m", "--") else words[:1])


def _diff(content: bytes, root: Path) -> str:
    """A diff as text. Raises Refused if it is none, or about files outside of `root`."""
    inner = root.relative_to(root_of(root)).as_posix()
    start = "diff --git a/" if inner == "." else f"diff --git a/{inner}/"
    try:
        text = content.decode()
    except UnicodeDecodeError as error:
        raise Refused("The diff is not UTF-8. Use the command line: diagnose patch.") from error
    heads = [line for line in text.split("\n") if line.startswith("diff --git ")]
    if not all(line.startswith(start) for line in heads):
        raise Refused(f"The fixes change files outside of {root}. Start the server at the top of the git checkout.")
    return text


def _failed(ended: Ended) -> Refused:
    """Why there is no recording: the last sentence, and what the script has printed at the end."""
    lines = [plain(line, 200) for line in (ended.printed + "\n" + ended.said).splitlines() if line.strip()]
    output = " ".join(quoted(line) for line in lines[-TAIL_LINES:])
    return Refused(f"{ended.why('diagnose profile')}. The end of the output, as data: {output}")
