"""Patches of scripts by hand-written findings, applied as users apply them."""

import subprocess
from collections.abc import Sequence
from pathlib import Path

from diagnose.contracts.finding import Confidence, Fix, Kind, Level, PricedSaving, RankedFinding, Where
from diagnose.contracts.patches import Patch
from diagnose.fixes.setting import Safety
from diagnose.patches import making
from diagnose.replay.saving import Basis
from diagnose.trace.frames import Site
from diagnose.trace.manifest import Distributed, Loader, Made, Manifest, Optimizer, RankManifest


def finding(
    trial: str | None,
    number: int = 1,
    site: Site | None = None,
    safety: Safety = Safety.SAME_NUMBERS,
    minor: bool = False,
    after: str = "",
) -> RankedFinding:
    return RankedFinding(
        rule=f"rule_{number}",
        code=f"XX{number:02}",
        title="Something is slow",
        kind=Kind.FAULT,
        rank_order=number,
        where=Where((0,), (1,)),
        evidence=(),
        saving=PricedSaving(1_000_000, 2_000_000, 3_000_000, Basis.REPLAYED, None, None),
        share_of_step=0.2,
        confidence=Confidence(Level.HIGH, ""),
        fixes=(Fix("Do it.", after=after, safety=safety, trial=trial),),
        site=site,
        minor=minor,
        hidden=None,
        changes=(),
        spots=(),
        spot_count=0,
    )


def made(file: Path, line: int) -> Made:
    return Made(file=str(file), line=line, function="main")


def manifest(
    script: Path,
    *,
    loader: int | None = None,
    optimizer: tuple[str, int] | None = None,
    ddp: int | None = None,
    environment: dict[str, str] | None = None,
    loop: str | None = None,
) -> Manifest:
    """Of a run of a script that makes these at these lines."""
    name, line = optimizer or ("", 0)
    made_by = (Optimizer(name=name, elements=10, devices=("cpu",), made=made(script, line)),) if optimizer else ()
    rank = RankManifest(
        rank=0,
        loop=loop,
        loaders=() if loader is None else (Loader(dataset="Data", made=made(script, loader)),),
        optimizers=made_by,
        distributed=None if ddp is None else Distributed(ddp_made=(made(script, ddp),)),
    )
    return Manifest(command=("python", script.name), ranks=(rank,), environment=environment or {})


def line_of(text: str, part: str) -> int:
    (found,) = (number for number, line in enumerate(text.splitlines(), start=1) if part in line)
    return found


def patch(
    folder: Path, trials: Sequence[str | RankedFinding], known: Manifest | None, asked: Sequence[str] = ()
) -> Patch:
    findings = [
        one if isinstance(one, RankedFinding) else finding(one, number) for number, one in enumerate(trials, start=1)
    ]
    return making.make(findings, known, 0, asked, folder)


def apply(folder: Path, done: Patch) -> None:
    text = making.unified(done.files)
    assert text
    for options in (["--check"], []):
        subprocess.run(["git", "apply", *options, "-"], cwd=folder, input=text, check=True, capture_output=True)
    for file in done.files:
        assert file.path.read_bytes() == file.after


def why_not(done: Patch) -> str:
    assert done.files == ()
    (only,) = done.by_hand
    return only.why
