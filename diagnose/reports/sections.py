"""What a report says, as titled tables of text: shared by the terminal and Markdown, so that both say the same."""

from collections.abc import Callable, Iterator, Mapping
from typing import TypeVar

from msgspec import Struct

from diagnose.contracts.diagnosis import Diagnosis, RankSummary
from diagnose.contracts.job import JobSummary
from diagnose.facts.core.steps import Measure
from diagnose.facts.device.kernels import Kernel, KernelGroup
from diagnose.facts.device.lost_time import AchievedFlops
from diagnose.facts.host.functions import FunctionTime
from diagnose.failures import attempt
from diagnose.replay.critical_path import PathPart
from diagnose.reports import job_tables as jobs
from diagnose.reports.words import CAUSES, WORK_NOT_RECORDED, infers, threads, why_this_rank
from diagnose.trace import kinds
from diagnose.trace.enums import HostMemory
from diagnose.trace.frames import Site
from diagnose.trace.units import clipped, duration, number, share, size, three_digits

T = TypeVar("T")

MOST_ROWS = 8  # Rows of a table in a report for people; JSON has more.
LEAST_SHARE = 0.001  # Of the step, for a row of a table that has one for everything else (our choice).


class Row(Struct, frozen=True):
    """One line of a table."""

    label: str
    cells: tuple[str, ...]
    part: float = 0.0  # Share of the step, for a bar.
    place: str = ""  # The source line it comes from.


class Section(Struct, frozen=True):
    """A titled table. `columns` names the cells; the first column is the label's."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[Row, ...]
    note: str = ""  # A sentence below the table.
    words: bool = False  # The last column holds words, which may take several lines.


NO_SECTION = Section("", (), ())


def sections(diagnosis: Diagnosis) -> Iterator[Section]:
    """The tables of a report, the most important first; empty ones are left out."""
    if diagnosis.steps is None:
        return
    yield from _with_rows(_TABLES, diagnosis)
    yield from job_sections(diagnosis)


def _with_rows(tables: Mapping[str, Callable[[T], Section]], told: T) -> Iterator[Section]:
    for name, make in tables.items():
        section = attempt(f"the table of {name}", NO_SECTION, make, told)
        if section.rows:
            yield section


def _per(diagnosis: Diagnosis) -> str:
    window = diagnosis.steps is not None and diagnosis.steps.measure == Measure.WINDOW
    return "time" if window else "per step"


def _whole(diagnosis: Diagnosis) -> str:
    return "the recorded window" if _per(diagnosis) == "time" else "step time (mean)"


def _count(total: int, diagnosis: Diagnosis) -> str:
    """How often something occurred per step, as its time is; `total` is in all used steps."""
    return number(total / max(diagnosis.steps.used, 1)) if diagnosis.steps is not None else f"{total:,}"


def _breakdown(diagnosis: Diagnosis) -> Section:
    whole = diagnosis.breakdown
    if whole is None:
        return NO_SECTION
    parts = (
        ("compute", whole.compute_ns),
        ("exposed communication", whole.exposed_communication_ns),
        ("exposed copies", whole.exposed_copy_ns),
        ("idle", whole.idle_ns),
        *((WORK_NOT_RECORDED, ns) for ns in (whole.work_not_recorded_ns,) if ns),
    )
    rows = (
        *(_timed(label, ns, whole.step_ns) for label, ns in parts),
        Row(_whole(diagnosis), (duration(whole.step_ns), share(1, 1))),
    )
    which = f" (rank {diagnosis.rank}, {why_this_rank(diagnosis)})" if len(diagnosis.ranks) > 1 else ""
    return Section(f"Where the GPU's time goes{which}", ("", _per(diagnosis), "share"), rows)


def _timed(label: str, ns: int, whole: int, *more: str, site: Site | None = None) -> Row:
    return Row(
        label, (duration(ns), share(ns, whole), *more), ns / whole if whole else 0.0, place(site) if site else ""
    )


def _step_ns(diagnosis: Diagnosis) -> int:
    assert diagnosis.steps is not None
    return diagnosis.steps.step_time_ns.mean


def _base_ns(diagnosis: Diagnosis) -> int:
    return diagnosis.step_ns or _step_ns(diagnosis)


def _idle(diagnosis: Diagnosis) -> Section:
    rows = [
        _timed(CAUSES[one.cause], one.ns, _base_ns(diagnosis), _count(one.gaps, diagnosis), site=one.site)
        for one in (diagnosis.idle or ())[:MOST_ROWS]
        if one.ns
    ]
    return Section("Why the GPU was idle", ("", _per(diagnosis), "share", "gaps"), tuple(rows))


def _path(diagnosis: Diagnosis) -> Section:
    """The parts with most time in the order in which a step comes to them, and the rest."""
    found = diagnosis.critical_path or ()
    largest = [one for one in found[:MOST_ROWS] if one.share >= LEAST_SHARE]
    shown = sorted(largest, key=lambda one: one.moment)
    step_ns = _step_ns(diagnosis)
    rows = [_timed(_waited_for(one), one.ns, step_ns, site=one.site) for one in shown]
    if rest := found[len(shown) :]:
        rows.append(_timed("everything else", sum(one.ns for one in rest), step_ns))
    if rows:
        rows.append(Row(_whole(diagnosis), (duration(step_ns), share(1, 1))))
    note = "This is what it waits for. Work that is not on this path can get faster and save nothing."
    what = "recorded window" if _per(diagnosis) == "time" else "step"
    what += f" of rank {diagnosis.rank}" if diagnosis.job is not None else ""
    return Section(f"Critical path of the {what}, in order of time", ("", _per(diagnosis), "share"), tuple(rows), note)


def _waited_for(part: PathPart) -> str:
    mostly = f", mostly {kinds.short_name(part.mostly, 30)}" if part.mostly else ""
    return CAUSES[part.kind] + mostly


def place(site: Site) -> str:
    """A source line: file:line (function), or the function where the line is not known."""
    if site.line:
        return f"{site.place} ({site.function})"
    return f"{site.file}, in {site.function}()" if site.function.isidentifier() else site.file


def _host(diagnosis: Diagnosis) -> Section:
    host = diagnosis.host
    if host is None:
        return NO_SECTION
    ranked = sorted(((ns, activity) for activity, ns in host.parts.items() if ns), key=lambda pair: -pair[0])
    rows = tuple(_timed(CAUSES[activity], ns, host.step_ns) for ns, activity in ranked)
    return Section(f"What the {threads(diagnosis)} did", ("", _per(diagnosis), "share"), rows)


def _input_and_launches(diagnosis: Diagnosis) -> Section:
    rows = []
    per = "" if _per(diagnosis) == "time" else " per step"
    if (wait := diagnosis.input) is not None:
        process = " in this process" if infers(diagnosis) else " in the training process"
        where = {True: process, False: " from workers", None: ""}[wait.in_process]
        hidden = "" if wait.exposed_ns is None else f", GPU idle for {duration(wait.exposed_ns)} of it"
        rows.append(Row("data loader", (f"{duration(wait.host_ns)}{per} fetching{where}{hidden}",)))
    if (launch := diagnosis.launches) is not None:
        text = (
            f"{launch.per_step:,}{per}, in calls that take {duration(launch.call_ns)}, some of them in the step before;"
            f" queue depth {launch.depth_median:,} (median), {share(launch.empty_queue_share, 1)} into an empty queue"
        )
        rows.append(Row("launches", (text,)))
        if launch.tiny_kernels:
            tiny = f"{launch.tiny_kernels:,}{per} under 5 us, {duration(launch.tiny_kernel_ns)} together"
            rows.append(Row("tiny kernels", (tiny,)))
    if (calls := diagnosis.allocation) is not None and calls.calls:
        rows.append(
            Row("driver allocation", (f"{_count(calls.calls, diagnosis)} calls, {duration(calls.host_ns)}{per}",))
        )
    for memory in diagnosis.memory or ():
        if memory.peak_allocated_bytes is not None and memory.peak_reserved_bytes is not None:
            text = f"peak {size(memory.peak_allocated_bytes)} used, {size(memory.peak_reserved_bytes)} reserved"
            rows.append(Row(f"memory of device {memory.device}", (text,)))
    return Section("Input, launches, memory", ("", ""), tuple(rows))


def _flops(diagnosis: Diagnosis) -> Section:
    found = diagnosis.flops
    if found is None:
        return NO_SECTION
    step_s = _base_ns(diagnosis) / 1e9
    rows = [
        _type_row(type_.dtype or "type unknown", type_.flops, type_.peak_flops_per_s, step_s) for type_ in found.types
    ]
    if len(rows) > 1 or found.mfu is None:
        mfu = "-" if found.mfu is None else share(found.mfu, 1)
        rows.append(Row("all", (_flops_told(found.flops, "FLOP"), _flops_told(found.flops_per_s, "FLOP/s"), "", mfu)))
    columns = ("", _per(diagnosis), "achieved", "peak", "MFU")
    return Section("Achieved FLOP/s and MFU", columns, tuple(rows), " ".join(_about_flops(found)))


def _type_row(dtype: str, flops: int, peak: float | None, step_s: float) -> Row:
    achieved = flops / step_s
    of_peak = ("unknown", "-") if peak is None else (_flops_told(peak, "FLOP/s"), share(achieved, peak))
    return Row(dtype, (_flops_told(flops, "FLOP"), _flops_told(achieved, "FLOP/s"), *of_peak))


def _flops_told(value: float, unit: str) -> str:
    return f"{three_digits(value / 1e12)} T{unit}" if value >= 1e11 else f"{three_digits(value / 1e9)} G{unit}"


def _about_flops(found: AchievedFlops) -> Iterator[str]:
    yield "Matrix products, convolutions and attention, from shapes, over the recorded step; recomputation counts."
    if found.device:
        several = f"{found.devices} x " if found.devices > 1 else ""
        yield f"Peaks are nominal and dense: {several}{found.device}."
    if found.why_no_mfu:
        yield f"No MFU, as this is not known: {found.why_no_mfu}."
    if found.counted_share < WHOLE:
        yield f"At least so many: shapes tell the FLOPs of {share(found.counted_share, 1)} of these kernels' time."
    if found.at_most_share > 1 - WHOLE:
        most = share(found.at_most_share, 1)
        yield f"For {most} of the FLOPs this is the most: masks and gradients that nobody asked for lessen it."


WHOLE = 0.99  # From this share on nothing is said of the rest (our choice).


def _kernels(diagnosis: Diagnosis) -> Section:
    rows = [
        _timed(
            kinds.short_name(kernel.name, 44),
            kernel.ns,
            _base_ns(diagnosis),
            _count(kernel.calls, diagnosis),
            _what(kernel),
        )
        for kernel in (diagnosis.kernels or ())[:MOST_ROWS]
    ]
    return Section("Longest kernels", ("", _per(diagnosis), "share", "calls", "kind"), tuple(rows))


def _kernel_kinds(diagnosis: Diagnosis) -> Section:
    return _groups(diagnosis, "Kernels by kind", diagnosis.kernel_kinds)


def _kernel_ops(diagnosis: Diagnosis) -> Section:
    return _groups(diagnosis, "Kernels by op", diagnosis.kernel_ops)


def _groups(diagnosis: Diagnosis, title: str, groups: tuple[KernelGroup, ...] | None) -> Section:
    rows = [
        _timed(group.label or "unknown", group.ns, _base_ns(diagnosis), _count(group.calls, diagnosis))
        for group in (groups or ())[:MOST_ROWS]
    ]
    return Section(title, ("", _per(diagnosis), "share", "calls"), tuple(rows))


def _what(kernel: Kernel) -> str:
    """What a kernel is: its kind, what it multiplies in, and whether on tensor cores."""
    unit = {True: "tensor cores", False: "no tensor cores", None: ""}[kernel.tensor_cores]
    return " ".join(word for word in (kernel.kind.value, kernel.dtype or "", unit) if word)


def _syncs(diagnosis: Diagnosis) -> Section:
    rows = [
        _timed(
            sync.call + (f" in {sync.asked_by}" if sync.asked_by else ""),
            sync.blocked_ns,
            _step_ns(diagnosis),
            _count(sync.calls, diagnosis),
            site=sync.site,
        )
        for sync in (diagnosis.syncs or ())[:MOST_ROWS]
    ]
    return Section("Where the host waits for the GPU", ("", _per(diagnosis), "share", "calls"), tuple(rows))


def _copies(diagnosis: Diagnosis) -> Section:
    rows = []
    for copy in (diagnosis.copies or ())[:MOST_ROWS]:
        memory = "" if copy.host_memory in (HostMemory.NONE, HostMemory.UNKNOWN) else f", {copy.host_memory.value}"
        speed = f"{size(copy.bandwidth_bytes_per_s)}/s" if copy.bandwidth_bytes_per_s else "unknown"
        moved = size(copy.bytes) if copy.bytes is not None else "unknown"
        rows.append(
            Row(
                copy.direction.value + memory,
                (duration(copy.ns), duration(copy.exposed_ns), _count(copy.calls, diagnosis), moved, speed),
            )
        )
    return Section("Copies", ("", _per(diagnosis), "exposed", "calls", "bytes", "speed"), tuple(rows))


def _communication(diagnosis: Diagnosis) -> Section:
    if diagnosis.communication is None:
        return NO_SECTION
    rows = tuple(
        Row(
            collective.operation,
            (duration(collective.ns), duration(collective.exposed_ns), _count(collective.calls, diagnosis)),
        )
        for collective in diagnosis.communication.collectives[:MOST_ROWS]
    )
    note = "Includes waiting for other ranks."
    if all(rank.waiting_ns is None for rank in diagnosis.ranks):
        note = "Includes waiting for other ranks, which one rank's trace cannot tell from transfer."
    return Section("Communication", ("", _per(diagnosis), "exposed", "calls"), rows, note)


def _ops(diagnosis: Diagnosis) -> Section:
    if diagnosis.breakdown is not None:
        return NO_SECTION
    rows = [
        _timed(op.name, op.self_ns, _step_ns(diagnosis), _count(op.calls, diagnosis))
        for op in (diagnosis.ops or ())[:MOST_ROWS]
    ]
    note = "Over all threads, so shares may add up to more than the step."
    return Section(
        "Longest ops on the host (without the ops inside them)",
        ("", _per(diagnosis), "share", "calls"),
        tuple(rows),
        note,
    )


def _functions(diagnosis: Diagnosis) -> Section:
    found = [function for function in diagnosis.functions or () if function.host_ns or function.device_ns][:MOST_ROWS]
    if not any(one.site for one in found):
        return NO_SECTION
    on_device = any(one.device_ns is not None for one in found)
    rows = [
        Row(
            one.site.function if one.site else "outside your code",
            (
                duration(one.host_ns),
                share(one.host_ns, _step_ns(diagnosis)),
                *((duration(one.device_ns or 0),) if on_device else ()),
                _mostly(one, _step_ns(diagnosis)),
            ),
            place=one.site.place if one.site else "",
        )
        for one in found
    ]
    columns = ("", _per(diagnosis), "share", *(("on the GPU", "there mostly") if on_device else ("mostly",)))
    note = "Self time by function, by line in those that ran all along, with the backward pass of their ops."
    return Section("Where the time goes in your code", columns, tuple(rows), note, words=True)


def _mostly(function: FunctionTime, step_ns: int) -> str:
    """What takes most of its time, on the device if that was recorded."""
    parts = [(longest_op.ns, longest_op.name.removeprefix("aten::")) for longest_op in function.longest_ops]
    if function.device_ns is None:
        parts.append((function.python_ns, "outside ops"))
    longest = sorted(((ns, name) for ns, name in parts if ns), reverse=True)[:2]
    return ", ".join(f"{clipped(name, 30)} {share(ns, step_ns)}" for ns, name in longest)


def job_sections(diagnosis: Diagnosis) -> Iterator[Section]:
    """The tables of the job, its critical path first; empty ones are left out."""
    if diagnosis.job is not None:
        yield from _with_rows(_TABLES_OF_JOB, diagnosis.job)
    yield from _with_rows({"ranks": _ranks}, diagnosis)


def _job_unmatched(job: JobSummary) -> Section:
    unmatched = tuple(
        Row(jobs.operation(one.operation), (f"{one.calls:,}", jobs.ranks_told(one.ranks), duration(one.held_ns), why))
        for one in job.unmatched[:MOST_ROWS]
        for why in [jobs.why_unmatched(one)]
    )
    note = "How much of that is waiting is not known: it counts as neither waiting nor transfer."
    columns = ("", "calls", "of ranks", "held up" + " per step" * bool(job.steps), "why")
    return Section("Calls that could not be matched", columns, unmatched, note, words=True)


def _job_stages(job: JobSummary) -> Section:
    heads, rows = jobs.stage_table(job)
    made = tuple(Row(label, cells) for label, cells in rows)
    note = f"{'Per step, mean' if job.steps else 'Mean'} of a stage's ranks."
    return Section("The job's pipeline stages", ("", *heads), made, note)


def _job_groups(job: JobSummary) -> Section:
    heads, cells = jobs.group_table(job)
    made = tuple(
        Row(jobs.group_label(one), some, place=jobs.group_place(job, one))
        for one, some in zip(job.groups, cells, strict=False)
    )
    return Section("The job's process groups and links", ("", *heads), made, jobs.groups_note(job))


def _job_path(job: JobSummary) -> Section:
    rows = [_timed(path_row.label, path_row.ns, job.step_ns) for path_row in jobs.path_rows(job)]
    whole = "the job's step (mean)" if job.steps else "the recorded window"
    rows.append(Row(whole, (duration(job.step_ns), share(1, 1))))
    note = " ".join([*jobs.lead(job), jobs.clocks(job)]).strip()
    columns = ("", "per step" if job.steps else "time", "share")
    return Section(f"The job: critical path of its {jobs.unit(job)}", columns, tuple(rows), note)


def _job_ranks(diagnosis: Diagnosis, job: JobSummary) -> Section:
    shown, note = jobs.shown_ranks(job)
    means = {rank.rank: rank.step_time_ns.mean for rank in diagnosis.ranks if rank.step_time_ns is not None}
    rows = [
        Row(f"rank {one.rank}", (duration(means[one.rank]) if one.rank in means else "-", *jobs.rank_cells(one)))
        for one in shown
    ]
    return Section("Ranks", ("", "step" if job.steps else "window", *jobs.RANK_COLUMNS), tuple(rows), note)


def _ranks(diagnosis: Diagnosis) -> Section:
    if diagnosis.job is not None:
        return _job_ranks(diagnosis, diagnosis.job)
    if len(diagnosis.ranks) < 2:
        return NO_SECTION
    measured = any(rank.breakdown for rank in diagnosis.ranks)
    compared = any(rank.computing_ns is not None for rank in diagnosis.ranks)
    rows = [
        Row(f"rank {rank.rank}", (*_rank_cells(rank, measured), *_compared_cells(rank, measured) * compared))
        for rank in diagnosis.ranks[:64]
    ]
    columns = ["", "step", *("compute", "exposed communication", "idle") * measured]
    columns += [*("computing",) * (compared and not measured), *("waiting for others",) * compared]
    return Section("Ranks", tuple(columns), tuple(rows))


def _rank_cells(one: RankSummary, measured: bool) -> tuple[str, ...]:
    time, part = one.step_time_ns, one.breakdown
    parts = (part.compute_ns, part.exposed_communication_ns, part.idle_ns) if part else ()
    shares = [share(ns, part.step_ns) for ns in parts] if part else ["-"] * 3
    return (duration(time.mean) if time else "-", *shares * measured)


def _compared_cells(one: RankSummary, measured: bool) -> tuple[str, ...]:
    times = (one.waiting_ns,) if measured else (one.computing_ns, one.waiting_ns)
    return tuple("-" if ns is None else duration(ns) for ns in times)


_TABLES = {
    "where the GPU's time goes": _breakdown,
    "why the GPU was idle": _idle,
    "the critical path": _path,
    "what the host did": _host,
    "your functions": _functions,
    "input, launches and memory": _input_and_launches,
    "achieved FLOP/s": _flops,
    "kinds of kernels": _kernel_kinds,
    "ops that launch kernels": _kernel_ops,
    "kernels": _kernels,
    "synchronisation": _syncs,
    "copies": _copies,
    "communication": _communication,
    "ops on the host": _ops,
}
_TABLES_OF_JOB = {
    "the critical path of the job": _job_path,
    "pipeline stages": _job_stages,
    "process groups": _job_groups,
    "calls that could not be matched": _job_unmatched,
}
