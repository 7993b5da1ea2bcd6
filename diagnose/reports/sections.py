"""What a report says of a rank, as titled tables of text: the terminal and Markdown share them, and say the same."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TypeVar

from msgspec import Struct

from diagnose.contracts.diagnosis import Diagnosis
from diagnose.facts.core.steps import Measure
from diagnose.facts.device.kernels import Kernel, KernelGroup
from diagnose.facts.device.lost_time import AchievedFlops
from diagnose.facts.host.functions import FunctionTime
from diagnose.failures import attempt
from diagnose.reports.words import CAUSES, WORK_NOT_RECORDED, infers, threads, why_this_rank
from diagnose.trace import kinds
from diagnose.trace.enums import HostMemory
from diagnose.trace.frames import Site
from diagnose.trace.units import clipped, duration, number, share, size, three_digits

T = TypeVar("T")

MOST_ROWS = 8  # Rows of a table in a report for people; JSON has more.
LEAST_SHARE = 0.001  # Of the step, for a row of a table that has one for everything else (our choice).
WHOLE = 0.99  # From this share on nothing is said of the rest (our choice).


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
    rows: Sequence[Row]
    note: str = ""  # A sentence below the table.
    words: bool = False  # The last column holds words, which may take several lines.


NO_SECTION = Section("", (), ())


def of_rank(diagnosis: Diagnosis) -> Iterator[Section]:
    """The tables of the shown rank, the most important first; empty ones are left out."""
    return with_rows(_TABLES, diagnosis)


def with_rows(tables: Mapping[str, Callable[[T], Section]], source: T) -> Iterator[Section]:
    """Sections with rows, in order; one that fails is left out. `tables`: how to make each of `source`, by name."""
    for name, make in tables.items():
        section = attempt(f"the table of {name}", NO_SECTION, make, source)
        if section.rows:
            yield section


def timed(label: str, ns: int, whole: int, *more: str, site: Site | None = None) -> Row:
    """A row of `ns` with its share of `whole`, as text and as a bar; then the cells `more`."""
    cells = (duration(ns), share(ns, whole), *more)
    return Row(label, cells, ns / whole if whole else 0.0, place(site) if site else "")


def total(label: str, ns: int) -> Row:
    """The row of the whole time, which is 100 %."""
    return Row(label, (duration(ns), share(1, 1)))


def place(site: Site) -> str:
    """A source line: file:line (function), or the function where the line is not known."""
    if site.line:
        return f"{site.place} ({site.function})"
    return f"{site.file}, in {site.function}()" if site.function.isidentifier() else site.file


def _is_window(diagnosis: Diagnosis) -> bool:
    return diagnosis.steps is not None and diagnosis.steps.measure == Measure.WINDOW


def _whole(diagnosis: Diagnosis) -> str:
    return "the recorded window" if _is_window(diagnosis) else "step time (mean)"


def _table(
    diagnosis: Diagnosis, title: str, rows: Sequence[Row], *columns: str, note: str = "", words: bool = False
) -> Section:
    """A section whose first cell after the label is a time: per step, or of the window where no steps are marked."""
    per = "time" if _is_window(diagnosis) else "per step"
    return Section(title, ("", per, *columns), rows, note, words)


def _count(calls: int, diagnosis: Diagnosis) -> str:
    """Calls per step as text, from `calls` in all used steps; all of them where there are no steps."""
    return number(calls / max(diagnosis.steps.used, 1)) if diagnosis.steps is not None else f"{calls:,}"


def _step_ns(diagnosis: Diagnosis) -> int:
    assert diagnosis.steps is not None
    return diagnosis.steps.step_time_ns.mean


def _base_ns(diagnosis: Diagnosis) -> int:
    return diagnosis.step_ns or _step_ns(diagnosis)


def _breakdown(diagnosis: Diagnosis) -> Section:
    whole = diagnosis.breakdown
    if whole is None:
        return NO_SECTION
    parts = {
        "compute": whole.compute_ns,
        "exposed communication": whole.exposed_communication_ns,
        "exposed copies": whole.exposed_copy_ns,
        "idle": whole.idle_ns,
    }
    if whole.work_not_recorded_ns:
        parts[WORK_NOT_RECORDED] = whole.work_not_recorded_ns
    rows = [timed(label, ns, whole.step_ns) for label, ns in parts.items()]
    rows.append(total(_whole(diagnosis), whole.step_ns))
    which = f" (rank {diagnosis.rank}, {why_this_rank(diagnosis)})" if len(diagnosis.ranks) > 1 else ""
    return _table(diagnosis, f"Where the GPU's time goes{which}", rows, "share")


def _idle(diagnosis: Diagnosis) -> Section:
    rows = [
        timed(CAUSES[one.cause], one.ns, _base_ns(diagnosis), _count(one.gaps, diagnosis), site=one.site)
        for one in (diagnosis.idle or ())[:MOST_ROWS]
        if one.ns
    ]
    return _table(diagnosis, "Why the GPU was idle", rows, "share", "gaps")


def _path(diagnosis: Diagnosis) -> Section:
    """Parts of the critical path with most time, in the order of the step; the others as one row."""
    found, step_ns = diagnosis.critical_path or (), _step_ns(diagnosis)
    shown = [part for part in found[:MOST_ROWS] if part.share >= LEAST_SHARE]
    rows = []
    for part in sorted(shown, key=lambda part: part.moment):
        mostly = f", mostly {kinds.short_name(part.mostly, 30)}" if part.mostly else ""
        rows.append(timed(CAUSES[part.kind] + mostly, part.ns, step_ns, site=part.site))
    if rest := found[len(shown) :]:
        rows.append(timed("everything else", sum(part.ns for part in rest), step_ns))
    if rows:
        rows.append(total(_whole(diagnosis), step_ns))
    note = "This is what it waits for. Work that is not on this path can get faster and save nothing."
    what = "recorded window" if _is_window(diagnosis) else "step"
    what += f" of rank {diagnosis.rank}" if diagnosis.job is not None else ""
    return _table(diagnosis, f"Critical path of the {what}, in order of time", rows, "share", note=note)


def _host(diagnosis: Diagnosis) -> Section:
    host = diagnosis.host
    if host is None:
        return NO_SECTION
    ranked = sorted(host.parts.items(), key=lambda pair: -pair[1])
    rows = [timed(CAUSES[activity], ns, host.step_ns) for activity, ns in ranked if ns]
    return _table(diagnosis, f"What the {threads(diagnosis)} did", rows, "share")


def _input_and_launches(diagnosis: Diagnosis) -> Section:
    """A sentence on each of these that was recorded: data loader, launches, driver allocation, memory per device."""
    rows, per = dict[str, str](), "" if _is_window(diagnosis) else " per step"
    if (wait := diagnosis.input) is not None:
        process = " in this process" if infers(diagnosis) else " in the training process"
        where = {True: process, False: " from workers", None: ""}[wait.in_process]
        hidden = "" if wait.exposed_ns is None else f", GPU idle for {duration(wait.exposed_ns)} of it"
        rows["data loader"] = f"{duration(wait.host_ns)}{per} fetching{where}{hidden}"
    if (launch := diagnosis.launches) is not None:
        rows["launches"] = (
            f"{launch.per_step:,}{per}, in calls that take {duration(launch.call_ns)}, some of them in the step before;"
            f" queue depth {launch.depth_median:,} (median), {share(launch.empty_queue_share, 1)} into an empty queue"
        )
        if launch.tiny_kernels:
            together = f"{duration(launch.tiny_kernel_ns)} together"
            rows["tiny kernels"] = f"{launch.tiny_kernels:,}{per} under 5 us, {together}"
    if (calls := diagnosis.allocation) is not None and calls.calls:
        rows["driver allocation"] = f"{_count(calls.calls, diagnosis)} calls, {duration(calls.host_ns)}{per}"
    for memory in diagnosis.memory or ():
        if memory.peak_allocated_bytes is not None and memory.peak_reserved_bytes is not None:
            peaks = f"peak {size(memory.peak_allocated_bytes)} used, {size(memory.peak_reserved_bytes)} reserved"
            rows[f"memory of device {memory.device}"] = peaks
    return Section("Input, launches, memory", ("", ""), [Row(label, (text,)) for label, text in rows.items()])


def _flops(diagnosis: Diagnosis) -> Section:
    """A row per data type: FLOP per step, rate, the device's peak rate, their ratio; at the end all with the MFU."""
    found = diagnosis.flops
    if found is None:
        return NO_SECTION
    rows, step_s = [], _base_ns(diagnosis) / 1e9
    for one in found.types:
        peak, achieved = one.peak_flops_per_s, one.flops / step_s
        of_peak = ("unknown", "-") if peak is None else (_flops_text(peak, "FLOP/s"), share(achieved, peak))
        cells = (_flops_text(one.flops, "FLOP"), _flops_text(achieved, "FLOP/s"), *of_peak)
        rows.append(Row(one.dtype or "type unknown", cells))
    if len(rows) > 1 or found.mfu is None:
        mfu = "-" if found.mfu is None else share(found.mfu, 1)
        rows.append(Row("all", (_flops_text(found.flops, "FLOP"), _flops_text(found.flops_per_s, "FLOP/s"), "", mfu)))
    note = " ".join(_about_flops(found))
    return _table(diagnosis, "Achieved FLOP/s and MFU", rows, "achieved", "peak", "MFU", note=note)


def _flops_text(value: float, unit: str) -> str:
    return f"{three_digits(value / 1e12)} T{unit}" if value >= 1e11 else f"{three_digits(value / 1e9)} G{unit}"


def _about_flops(found: AchievedFlops) -> Iterator[str]:
    """Sentences on what the FLOP/s count, and in which direction they may be wrong."""
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


def _kernels(diagnosis: Diagnosis) -> Section:
    def row(kernel: Kernel) -> Row:
        """A kernel's row; its last cell has its kind, data type, and whether it runs on tensor cores."""
        unit = {True: "tensor cores", False: "no tensor cores", None: ""}[kernel.tensor_cores]
        what = " ".join(filter(None, (kernel.kind.value, kernel.dtype, unit)))
        name, calls = kinds.short_name(kernel.name, 44), _count(kernel.calls, diagnosis)
        return timed(name, kernel.ns, _base_ns(diagnosis), calls, what)

    rows = list(map(row, (diagnosis.kernels or ())[:MOST_ROWS]))
    return _table(diagnosis, "Longest kernels", rows, "share", "calls", "kind")


def _groups(diagnosis: Diagnosis, title: str, groups: tuple[KernelGroup, ...] | None) -> Section:
    rows = [
        timed(group.label or "unknown", group.ns, _base_ns(diagnosis), _count(group.calls, diagnosis))
        for group in (groups or ())[:MOST_ROWS]
    ]
    return _table(diagnosis, title, rows, "share", "calls")


def _syncs(diagnosis: Diagnosis) -> Section:
    rows, step_ns = [], _step_ns(diagnosis)
    for sync in (diagnosis.syncs or ())[:MOST_ROWS]:
        label = sync.call + (f" in {sync.asked_by}" if sync.asked_by else "")
        rows.append(timed(label, sync.blocked_ns, step_ns, _count(sync.calls, diagnosis), site=sync.site))
    return _table(diagnosis, "Where the host waits for the GPU", rows, "share", "calls")


def _copies(diagnosis: Diagnosis) -> Section:
    rows = []
    for copy in (diagnosis.copies or ())[:MOST_ROWS]:
        memory = "" if copy.host_memory in (HostMemory.NONE, HostMemory.UNKNOWN) else f", {copy.host_memory.value}"
        speed = f"{size(copy.bandwidth_bytes_per_s)}/s" if copy.bandwidth_bytes_per_s else "unknown"
        moved = size(copy.bytes) if copy.bytes is not None else "unknown"
        cells = (duration(copy.ns), duration(copy.exposed_ns), _count(copy.calls, diagnosis), moved, speed)
        rows.append(Row(copy.direction.value + memory, cells))
    return _table(diagnosis, "Copies", rows, "exposed", "calls", "bytes", "speed")


def _communication(diagnosis: Diagnosis) -> Section:
    if diagnosis.communication is None:
        return NO_SECTION
    rows = [
        Row(one.operation, (duration(one.ns), duration(one.exposed_ns), _count(one.calls, diagnosis)))
        for one in diagnosis.communication.collectives[:MOST_ROWS]
    ]
    unknown = all(rank.waiting_ns is None for rank in diagnosis.ranks)
    alone = ", which one rank's trace cannot tell from transfer" * unknown
    return _table(
        diagnosis, "Communication", rows, "exposed", "calls", note=f"Includes waiting for other ranks{alone}."
    )


def _ops(diagnosis: Diagnosis) -> Section:
    """The longest ops on the CPU, where no GPU was recorded; else nothing: then kernels are shown."""
    if diagnosis.breakdown is not None:
        return NO_SECTION
    rows = [
        timed(op.name, op.self_ns, _step_ns(diagnosis), _count(op.calls, diagnosis))
        for op in (diagnosis.ops or ())[:MOST_ROWS]
    ]
    note = "Over all threads, so shares may add up to more than the step."
    title = "Longest ops on the host (without the ops inside them)"
    return _table(diagnosis, title, rows, "share", "calls", note=note)


def _functions(diagnosis: Diagnosis) -> Section:
    """Self time by the user's function; nothing if no function has a line."""
    found = [function for function in diagnosis.functions or () if function.host_ns or function.device_ns][:MOST_ROWS]
    if not any(one.site for one in found):
        return NO_SECTION
    on_device, step_ns = any(one.device_ns is not None for one in found), _step_ns(diagnosis)
    rows = []
    for one in found:
        name, line = (one.site.function, one.site.place) if one.site else ("outside your code", "")
        device = (duration(one.device_ns or 0),) * on_device
        cells = (duration(one.host_ns), share(one.host_ns, step_ns), *device, _mostly(one, step_ns))
        rows.append(Row(name, cells, place=line))
    columns = ("share", "on the GPU", "there mostly") if on_device else ("share", "mostly")
    note = "Self time by function, by line in those that ran all along, with the backward pass of their ops."
    return _table(diagnosis, "Where the time goes in your code", rows, *columns, note=note, words=True)


def _mostly(function: FunctionTime, step_ns: int) -> str:
    """The two longest ops of a function, or Python outside of ops, each with its share of the step."""
    parts = [(longest_op.ns, longest_op.name.removeprefix("aten::")) for longest_op in function.longest_ops]
    if function.device_ns is None:
        parts.append((function.python_ns, "outside ops"))
    longest = sorted(((ns, name) for ns, name in parts if ns), reverse=True)[:2]
    return ", ".join(f"{clipped(name, 30)} {share(ns, step_ns)}" for ns, name in longest)


_TABLES: dict[str, Callable[[Diagnosis], Section]] = {
    "where the GPU's time goes": _breakdown,
    "why the GPU was idle": _idle,
    "the critical path": _path,
    "what the host did": _host,
    "your functions": _functions,
    "input, launches and memory": _input_and_launches,
    "achieved FLOP/s": _flops,
    "kinds of kernels": lambda diagnosis: _groups(diagnosis, "Kernels by kind", diagnosis.kernel_kinds),
    "ops that launch kernels": lambda diagnosis: _groups(diagnosis, "Kernels by op", diagnosis.kernel_ops),
    "kernels": _kernels,
    "synchronisation": _syncs,
    "copies": _copies,
    "communication": _communication,
    "ops on the host": _ops,
}
