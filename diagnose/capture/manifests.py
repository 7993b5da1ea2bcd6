"""Writing `manifest.json`, and bringing together what the ranks of a run have left."""

import re
import shutil
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import msgspec

from diagnose.capture import folders
from diagnose.capture.agent import steps
from diagnose.capture.agent.board import Board
from diagnose.capture.agent.place import MOST
from diagnose.capture.agent.plan import APART, ENDINGS, FILES, KILLED, LEFT, Part
from diagnose.trace import lenient, units
from diagnose.trace.manifest import DeviceState, Host, Links, Manifest, RankManifest, SourceFile
from diagnose.version import __version__

NAME = "manifest.json"
SEEN = {"cpu", "cuda", "meta"}  # Types of devices that are recorded, or compute nothing. AMD's are called cuda, too.
EVENTS = {"backward": "backward passes", "loader": "batches of a DataLoader", "call": "calls of the model"}
POLL_S = 0.5

_SECRET = re.compile(
    r"(?i)secret|token(?!s|iz)|passw|passphrase|pwd|credential|auth|webhook|(api|access|private)[-_]?key|(?<![a-z])key$"
)
"""Names of arguments whose values are kept out of what is written. Where a name only begins with key, as key_dim, the
value is no secret."""

_IN_ADDRESS = re.compile(r"(?<=://)[^/@\s]+(?=@)|(?<=://hooks\.)\S+|(?<=[?#])\S+")
"""What may be secret in an address: who asks, with the password; a hook's path; what is asked."""


class _Run(msgspec.Struct, frozen=True, kw_only=True):
    """What one process of a run has noted for all of them, in run.json."""

    host: Host = Host()
    versions: dict[str, str] = {}
    environment: dict[str, str] = {}
    devices: tuple[DeviceState, ...] = ()
    links: tuple[Links, ...] = ()
    sources: tuple[SourceFile, ...] = ()


def begin(folder: Path, command: Sequence[str]) -> None:
    """Write what is known before the run."""
    started = datetime.now(timezone.utc).isoformat(timespec="seconds")
    _write(folder, Manifest(tool_version=__version__, command=tuple(_without_secrets(command)), started=started))


def _without_secrets(command: Sequence[str]) -> list[str]:
    """A command in which the values of arguments named like secrets, and such parts of addresses, are starred out."""
    shown, hidden = list[str](), False
    for word in command:
        name, is_set, _ = word.partition("=")
        secret = bool(_SECRET.search(name)) and (bool(is_set) or word.startswith("-"))
        public = _IN_ADDRESS.sub("***", word) if "://" in word else word
        shown.append("***" if hidden and not word.startswith("--") else f"{name}=***" if secret and is_set else public)
        hidden = secret and not is_set
    return shown


def said(part: Part) -> tuple[list[RankManifest], dict[int, str]]:
    """The manifests that the ranks have left so far, in order; and a sentence by rank on each that cannot be read."""
    ranks, notes = list[RankManifest](), dict[int, str]()
    for number in sorted(_numbers(part, "rank*.json")):
        try:
            found = rank(part, number)
        except msgspec.MsgspecError as error:
            notes[number] = f"The report of rank{number} cannot be read: {error}."
        else:
            ranks += [] if found is None else [found]
    return ranks, notes


def _numbers(part: Part, pattern: str) -> set[int]:
    """Ranks that have such files, and all ranks of the job if its size is known: shared folders list files late."""
    listed = {int(digits[1]) for path in part.shared.glob(pattern) if (digits := re.match(r"rank(\d+)\.", path.name))}
    try:
        known = next((found for number in sorted({0, *listed}) if (found := rank(part, number))), None)
    except msgspec.MsgspecError:
        known = None
    return listed | set(range(known.world_size if known is not None else 0))


def complete(part: Part, exit_code: int | None, notes: Sequence[str] = ()) -> Manifest:
    """Write the manifest with what the processes have left and notes of the run, and remove their working files."""
    folder, work, (ranks, unreadable) = part.recording, part.work, said(part)
    begun = msgspec.json.decode((folder / NAME).read_bytes(), type=Manifest)
    notes = [*notes, *unreadable.values()]
    here = {one.rank for one in ranks}
    trained = {number for number in _numbers(part, "rank*.claim") if (part.shared / f"rank{number}.claim").exists()}
    silent = trained - {one.rank for one in ranks if one.ended is not None} - unreadable.keys()
    if silent:
        names = ", ".join(f"rank{one}" for one in sorted(silent))
        by_us = Board(work).read(KILLED) is not None
        why = "diagnose killed processes that did not exit" if by_us else "killed, or exited with os._exit"
        notes.append(f"{names} ended without a message: {why}.")
    if absent := set(range(max((one.world_size for one in ranks), default=0))) - here - trained:
        notes.append(
            f"{units.ranks(absent).capitalize()} left nothing in {folder}. Check that all machines share this folder,"
            " and that the launcher passes PYTHONPATH to them."
        )
    if unseen := sorted({name for rank in ranks for one in rank.optimizers for name in one.devices} - SEEN):
        notes.append(f"The training runs on {' and '.join(unseen)}, which diagnose cannot record.")
    ranks += [_silent(number) for number in trained - here]
    ranks = sorted((_with_files_that_are_there(folder, one) for one in ranks), key=lambda one: one.rank)
    if (work / "compiled.post").exists():
        notes.append(
            "The optimizer runs inside torch.compile, where diagnose cannot see it. Mark steps with diagnose.record."
        )
    elif (seen := Board(work).read("seen")) is not None:
        notes.append(_too_few(seen))
    if not ranks and not list(part.shared.glob("*/python*")):
        notes.append("diagnose saw no Python in this command. It may run with -I or -E, or in a container.")
    if ignored := len(list(part.shared.glob("*/ignored.*.post"))):
        notes.append(f"{ignored} more processes used a rank that was already recorded. They are not included.")
    try:
        run, _ = lenient.read((part.shared / "run.json").read_bytes(), _Run)
    except (OSError, msgspec.MsgspecError):
        run = _Run()
    found = msgspec.structs.replace(
        begun,
        complete=bool(ranks) and not absent and all(one.trace is not None or not one.recorded for one in ranks),
        exit_code=exit_code,
        host=run.host,
        versions=run.versions,
        environment=run.environment,
        devices=run.devices,
        links=run.links,
        sources=run.sources,
        ranks=tuple(_with_nodes(ranks)),
        notes=(*begun.notes, *notes),
    )
    _write(folder, found)
    shutil.rmtree(part.shared, ignore_errors=True)
    return found


def _too_few(seen: Mapping[str, int]) -> str:
    """A sentence on why these events, counted by kind, make no steps; it names the kind that EVENTS lists first."""
    kind = min(seen, key=list(EVENTS).index)
    return (
        f"The run made {seen[kind]} {EVENTS[kind]} but no optimizer step. At least {steps.ENOUGH + 1} count as"
        f" steps, or {steps.ENOUGH_BESIDE + 1} if there is an optimizer."
    )


def _with_files_that_are_there(folder: Path, rank: RankManifest) -> RankManifest:
    """The rank with None in place of each file that it names and that is not in the folder."""
    named = {kind: getattr(rank, kind) for kind in FILES.values()}
    there = {kind: name if name and (folder / name).is_file() else None for kind, name in named.items()}
    return msgspec.structs.replace(rank, **there)


def _silent(number: int) -> RankManifest:
    """The manifest of a rank that has left none, with the names of all files that it may have written."""
    named = {kind: f"rank{number}.{kind}.{ENDINGS['torch']}" for kind in FILES.values()}
    return msgspec.convert({"rank": number, **named}, RankManifest)


def _with_nodes(ranks: Sequence[RankManifest]) -> list[RankManifest]:
    """The ranks, with nodes numbered by machine and ranks per machine counted where the launcher did not say."""
    ranks_of = Counter(rank.machine for rank in ranks if rank.machine is not None)
    order = {machine: number for number, machine in enumerate(ranks_of)}
    return [
        rank
        if rank.machine is None
        else msgspec.structs.replace(
            rank,
            node=order[rank.machine] if rank.node is None else rank.node,
            peers=ranks_of[rank.machine] if len(ranks_of) > 1 and rank.peers == rank.world_size else rank.peers,
        )
        for rank in ranks
    ]


def _write(folder: Path, manifest: Manifest) -> None:
    """Write the manifest whole or not at all; ranks that were only timed leave out what is not known of them."""
    unfinished = folder / f"{NAME}.tmp"
    contents = msgspec.to_builtins(manifest)
    contents["ranks"] = [one if one["recorded"] else _known(one) for one in contents["ranks"]]
    indent = 2 if len(manifest.ranks) <= MOST else -1
    unfinished.write_bytes(msgspec.json.format(msgspec.json.encode(contents), indent=indent) + b"\n")
    unfinished.replace(folder / NAME)


def _known(fields: dict[str, Any]) -> dict[str, Any]:
    """The fields of a rank, and those inside them, that are not None or empty: there may be thousands of such ranks."""
    inner = {name: _known(value) if isinstance(value, dict) else value for name, value in fields.items()}
    return {name: value for name, value in inner.items() if value not in (None, {}, [], ())}


def completes(part: Part) -> bool:
    """Whether the command of this part completes the recording: the one of rank 0, else the one that began it."""
    if (part.work / "rank0.post").exists():
        return True
    if not part.shared.exists() and (part.recording / "manifest.json").exists():
        return False  # It has been completed, without waiting for this one any longer.
    return not (part.shared / "rank0.claim").exists() and folders.begun(part).first == part.name


def leave(part: Part) -> None:
    """Note that the command of this part has ended, for the one that completes the recording."""
    with suppress(OSError):
        (part.work / LEFT).touch()


def wait_for_all(part: Part, say: Callable[[str], None]) -> None:
    """Wait until all ranks and commands of other machines have said their last, but no longer than files may take to be
    seen. What is looked for is opened by its name: folders that machines share list new files late."""
    several = folders.begun(part).job is not None
    known = None
    with suppress(msgspec.MsgspecError):
        known = rank(part, 0)
    if not several and (known is None or known.peers in (None, known.world_size)):
        return  # All have ended with the command.
    until, announced = time.monotonic() + folders.APPEARS_S, False
    missing = set(range(known.world_size)) if known is not None else set[int]()
    while (missing := {one for one in missing if _may_come(part, one, several)}) or _others_go_on(part):
        if time.monotonic() > until:
            break
        if missing and not announced and time.monotonic() > until - folders.APPEARS_S + 2 * POLL_S:
            announced = True
            late = units.ranks(missing)
            say(f"waiting up to {folders.APPEARS_S:.0f} s for the results of {late} from other commands")
        time.sleep(POLL_S)


def rank(part: Part, number: int) -> RankManifest | None:
    """The manifest that a rank has left so far; None if there is none. Raises msgspec.MsgspecError if it is damaged."""
    try:
        found, dropped = lenient.read((part.shared / f"rank{number}.json").read_bytes(), RankManifest)
    except OSError:
        return None
    note = f"The report of rank{number} {lenient.said(dropped)}."
    return msgspec.structs.replace(found, notes=(*found.notes, note)) if dropped else found


def _may_come(part: Part, number: int, several: bool) -> bool:
    """Whether the rank has not finished its report and still may; `several`: more than one command records the job."""
    with suppress(msgspec.MsgspecError):
        said = rank(part, number)
        if said is not None and said.ended is not None:
            return False
    claimed = Board(part.shared).claimed(f"rank{number}")
    if not claimed:
        return Board(part.work).read(APART) is None
    if claimed == part.name:
        return not several  # On another machine, whose last words may not be seen here yet.
    return folders.is_alive(part.shared / claimed)


def _others_go_on(part: Part) -> bool:
    """Whether another command of the run is still there."""
    return any(work.name != part.name for work in folders.alive(part.recording))
