"""What of a Diagnosis is compared: its parts, settings and versions."""

import re
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence

from msgspec import Struct

from diagnose.advice.timing import without_profiler
from diagnose.contracts.baseline import Baseline, GroupTime, KnownFinding, RankStep, Run
from diagnose.contracts.diagnosis import Diagnosis, Provenance, RankSummary
from diagnose.contracts.finding import OutcomeKind, RankedFinding
from diagnose.contracts.job import JobSummary
from diagnose.reports import job_words as jobs
from diagnose.trace.manifest import DeviceState, Manifest, RankManifest
from diagnose.version import __version__

MOST_SOURCES = 50  # Files of the user's own whose changes are named.
DIGITS = 8  # Of a file's checksum: enough to tell that it changed.


class Area(Struct, frozen=True):
    """A part of the step that some settings act on."""

    pattern: str  # Of their names.
    words: str
    holds: Callable[[str, str], bool]  # Whether a part is of it: its kind, and what it is of.


_MATRICES = ("gemm", "gemv", "conv", "attention", "triton_template")
AREAS = (
    Area(r"loader \d+ ", "data loading", lambda kind, of: of in ("loader", "host_copy") or kind == "exposed_copy"),
    Area(
        r"torch (float32_matmul_precision|cuda_matmul|cudnn)",
        "matrix products and convolutions",
        lambda kind, of: of in _MATRICES,
    ),
    Area(r"env PYTORCH_(CUDA_)?ALLOC", "device memory allocation", lambda kind, of: of == "allocation"),
    Area(
        r"env (NCCL|GLOO|TORCH_NCCL)|(ddp|fsdp) \d+ |version nccl",
        "communication",
        lambda kind, of: kind == "exposed_communication" or of == "other_rank",
    ),
    Area(
        r"device \d+ |env CUDA_LAUNCH_BLOCKING", "the GPU's work", lambda kind, of: kind in ("compute", "exposed_copy")
    ),
    Area(
        r"env (OMP|MKL)_|torch threads|host ",
        "the CPU's work",
        lambda kind, of: kind == "host" or of in ("ops", "python", "launch", "loader"),
    ),
)
"""The first whose pattern begins a name is what it acts on; a setting of no area may act on all."""


def area(name: str) -> Area | None:
    """The part of the step that a setting acts on; None: it may act on all."""
    return next((area for area in AREAS if re.match(area.pattern, name)), None)


def settings(provenance: Provenance, ran: RankManifest | None) -> dict[str, str]:
    """All that is known of how a rank ran, by name. A name begins with what it is of, as "env", "torch", "loader 0"."""
    found = {f"version {name}": version for name, version in provenance.framework.items()}
    if provenance.manifest is not None:
        found |= dict(_of_run(provenance.manifest))
    if ran is not None:
        found |= dict(_of_rank(ran))
    return found


def _of_run(manifest: Manifest) -> Iterator[tuple[str, str]]:
    """Settings of a run as (name, value) pairs: versions, environment, host, devices, sources."""
    yield from ((f"version {name}", version) for name, version in manifest.versions.items())
    yield from ((f"env {name}", value) for name, value in manifest.environment.items())
    yield from _of("host", manifest.host)
    for device in manifest.devices:
        yield from _device(device)
    for source in manifest.sources[:MOST_SOURCES]:
        if source.sha256:
            yield f"source {source.file}", source.sha256[:DIGITS]


def _device(device: DeviceState) -> Iterator[tuple[str, str]]:
    """Device settings that may limit speed, as (name, value); not clock, power or temperature, which vary by run."""
    for name in ("name", "memory_bytes", "most_sm_clock_mhz", "power_limit_w"):
        if value := getattr(device, name):
            yield f"device {device.index} {name}", str(value)
    if device.throttled_by is not None:
        yield f"device {device.index} throttled by", ", ".join(device.throttled_by) or "nothing"


def _of_rank(ran: RankManifest) -> Iterator[tuple[str, str]]:
    """Settings of one rank as (name, value) pairs."""
    yield "world size", str(ran.world_size)
    yield from _of("torch", ran.flags)
    for number, loader in enumerate(ran.loaders):
        yield from _of(f"loader {number}", loader, _OF_LOADER)
    for number, optimizer in enumerate(ran.optimizers):
        yield from _of(f"optimizer {number}", optimizer, _OF_OPTIMIZER)
    if ran.distributed is not None:
        for kind, wrapped in (("ddp", ran.distributed.ddp), ("fsdp", ran.distributed.fsdp)):
            for number, options in enumerate(wrapped):
                yield from _options(f"{kind} {number}", options)


_OF_LOADER = (
    *("dataset", "dataset_length", "batch_size", "num_workers", "pin_memory", "prefetch_factor", "persistent_workers"),
    *("drop_last", "in_order", "sampler", "collate", "start_method"),
)
_OF_OPTIMIZER = ("name", "foreach", "fused", "capturable", "groups", "parameters", "elements", "dtypes", "devices")


def _of(prefix: str, given: Struct, names: Sequence[str] = ()) -> Iterator[tuple[str, str]]:
    """(name, value) of all fields of a struct, or of those with these names; without empty ones."""
    yield from _options(prefix, {name: getattr(given, name) for name in names or given.__struct_fields__})


def _options(prefix: str, given: Mapping[str, object]) -> Iterator[tuple[str, str]]:
    """(name with the prefix, value as text) of all options that are neither None nor empty."""
    for name, value in given.items():
        if value is not None and value != {} and value != ():
            yield f"{prefix} {name}", _text(value)


def _text(value: object) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{name}: {setting}" for name, setting in value.items())
    return ", ".join(map(str, value)) if isinstance(value, tuple) else str(value)


MOST_GROUPS = 32  # Of a job: those that hold ranks up longest.
LOOKED = (OutcomeKind.FOUND, OutcomeKind.CLEAN, OutcomeKind.NOT_APPLICABLE)


def baseline_of(diagnoses: list[Diagnosis]) -> Baseline:
    """One side of a comparison. Raises ValueError if nothing could be measured in one of them."""
    return Baseline(tool_version=__version__, runs=tuple(map(run_of, diagnoses)))


def middle(runs: Sequence[Run]) -> int:
    """The position of the run with the middle mean step, of two that of the lower one."""
    ranked = sorted(range(len(runs)), key=lambda at: statistics.fmean(runs[at].times_ns))
    return ranked[(len(runs) - 1) // 2]


def run_of(diagnosis: Diagnosis) -> Run:
    """What is compared of a recording. Raises ValueError if nothing could be measured."""
    known, told = diagnosis.steps, diagnosis.provenance
    if known is None:
        raise ValueError("Nothing in it could be measured.")
    own = next(rank for rank in diagnosis.ranks if rank.rank == diagnosis.rank)
    manifest = told.manifest
    ran = next((rank for rank in manifest.ranks if rank.rank == diagnosis.rank), None) if manifest else None
    return Run(
        started=manifest.started if manifest else None,
        format=next(source.format for source in told.sources if source.rank == diagnosis.rank),
        devices=tuple(device.name for device in told.devices),
        world_size=told.world_size,
        rank=diagnosis.rank,
        measure=known.measure,
        times_ns=own.times_ns,
        unprofiled_ns=() if ran is None else without_profiler(ran),
        samples_per_step=None if ran is None else _samples(ran),
        flops_per_step=None if diagnosis.flops is None else diagnosis.flops.flops,
        spending=diagnosis.spending or (),
        findings=tuple(map(_finding, diagnosis.findings)),
        looked=tuple(outcome.rule for outcome in diagnosis.outcomes if outcome.outcome in LOOKED),
        settings=settings(told, ran),
        ranks=tuple(map(_rank, diagnosis.ranks)) if len(diagnosis.ranks) > 1 else (),
        groups=() if diagnosis.job is None else tuple(_groups(diagnosis.job)),
    )


def _samples(ran: RankManifest) -> int | None:
    """How many samples per step the DataLoader gives that is asked most; None where that is not known."""
    loader = max(ran.loaders, key=lambda loader: loader.asked_timed or 0, default=None)
    steps = 0 if ran.unprofiled is None else len(ran.unprofiled.wall_ns)
    if loader is None or not loader.batch_size or not loader.asked_timed or not steps:
        return None
    return round(loader.batch_size * loader.asked_timed / steps)


def _finding(found: RankedFinding) -> KnownFinding:
    return KnownFinding(
        rule=found.rule,
        code=found.code,
        title=found.title,
        site=found.site,
        low_ns=found.saving.low_ns,
        likely_ns=found.saving.likely_ns,
        high_ns=found.saving.high_ns,
        minor=found.minor,
    )


def _groups(job: JobSummary) -> Iterator[GroupTime]:
    for group in job.groups[:MOST_GROUPS]:
        label = " ".join(filter(None, (jobs.group_label(group), f"({jobs.group_place(job, group)})")))
        yield GroupTime(label=label, calls=group.calls, wait_ns=group.wait_ns, transfer_ns=group.transfer_ns)


def _rank(rank: RankSummary) -> RankStep:
    return RankStep(
        rank=rank.rank,
        step_ns=None if rank.step_time_ns is None else rank.step_time_ns.mean,
        computing_ns=rank.computing_ns,
        waiting_ns=rank.waiting_ns,
    )
