"""What rules on compiled code that does not fit say alike: which guard failed, and what follows from that."""

from __future__ import annotations

from diagnose.contracts.finding import Evidence, Fix
from diagnose.fixes import catalogue as fixes
from diagnose.fixes.setting import Safety
from diagnose.trace.frames import Site
from diagnose.trace.manifest import FailedGuard, RankManifest

LINK = "https://docs.pytorch.org/docs/stable/torch.compiler_recompilation.html"
PAD = Fix("Or pad to a few sizes, so that each is compiled once.", safety=Safety.ROUNDING, effort=2, link=LINK)
REASONS = Fix("Log which guard fails.", after="TORCH_LOGS=recompiles python train.py", link=LINK)


def why_not(manifest: RankManifest | None) -> FailedGuard | None:
    """The guard by which the most compiled forms of a function failed; None if that was not recorded."""
    return max(manifest.failed_guards, key=lambda one: one.forms, default=None) if manifest else None


def guard_evidence(guard: FailedGuard | None) -> tuple[Evidence, ...]:
    """What failed, in dynamo's words."""
    if guard is None:
        return ()
    versions = "1 compiled version" if guard.forms == 1 else f"{guard.forms} compiled versions"
    return (Evidence(f"{versions} failed the guard `{guard.said}`.", guard.forms),)


def guard_site(guard: FailedGuard | None) -> Site | None:
    """The user's line that the guard is about."""
    return None if guard is None else Site(guard.file, guard.line, guard.function)


def guard_fixes(guard: FailedGuard | None) -> tuple[Fix, ...]:
    """Dynamic sizes only where a size is what changes."""
    dynamic = fixes.CompileArgument("dynamic", True)
    if guard is None:
        return REASONS, Fix.of(dynamic, "If the guard is on a size, compile for any size."), PAD
    if guard.is_size:
        return Fix.of(dynamic, "Compile for any size."), PAD
    return (
        Fix(
            f"Move `{guard.source}` out of the compiled function, or make it a tensor.",
            before=guard.said,
            safety=Safety.ROUNDING,
            effort=2,
            link=LINK,
        ),
    )
