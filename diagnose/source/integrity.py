"""What is missing or damaged in one recording, and what that makes unreliable."""

from collections.abc import Iterator

import numpy as np
import pandas as pd

from diagnose.source.base import Damage
from diagnose.source.columns import printable
from diagnose.trace import frames, kinds
from diagnose.trace.enums import LinkKind, SpanKind
from diagnose.trace.model import Ground, IntegrityNote, Provenance, Severity, Step
from diagnose.trace.steps import is_cut_off
from diagnose.trace.units import duration

SHARE_WORTH_A_WARNING = 0.02  # Below this share of unpaired launches or work the figures of a step hardly move.
_GRAPHS_AGAIN = "Profile with a newer driver and CUPTI, or without graphs."
_RECORD_AGAIN = "Record again, and let the run end or the profiler stop before the file is used."

_CPU_TOO = "Profile with ProfilerActivity.CPU as well."
_CALLS_TOO = "Waits for it count as work. torch.profiler records calls since PyTorch 1.8."

MOST_NAMED = 3  # Functions that a note names (our choice).

WITHOUT = {
    "shapes": IntegrityNote(
        "Input shapes were not recorded.", "FLOPs and bytes of ops are unknown. Use record_shapes=True.", Severity.NOTE
    ),
    "stacks": IntegrityNote(
        "Call stacks were not recorded.", "Source lines cannot be named. Use with_stack=True.", Severity.NOTE
    ),
}
"""What is said where one of these was not recorded."""

_MISSING = (Ground.HOST_TIMES, Ground.DEVICE_IDLE, Ground.LAUNCHES)
"""What is doubtful where events are missing, and nobody knows which."""

_IDLE, _TIMES = (Ground.DEVICE_IDLE,), (Ground.DEVICE_TIMES, Ground.DEVICE_IDLE)
_COUNTS = (
    ("lost_events", "could not be read and were left out", "Times they took count as idle.", Severity.ERROR, _MISSING),
    ("without_time", "had no usable time and were left out", "Times they took count as idle.", Severity.WARNING, _IDLE),
    (
        "implausible_times",
        "lie more than a day away from the rest and were left out",
        "Times they took count as idle.",
        Severity.WARNING,
        _IDLE,
    ),
    (
        "unclassified",
        "have no category, and no name that tells what they are",
        "They are in no figure.",
        Severity.WARNING,
        (Ground.HOST_TIMES,),
    ),
    (
        "negative_durations",
        "had no duration or a negative one, taken as 0",
        "Busy time may be low.",
        Severity.WARNING,
        _TIMES,
    ),
    (
        "clipped",
        "last longer than they can and were cut where the next on their row begins",
        "Their durations are upper bounds.",
        Severity.WARNING,
        _TIMES,
    ),
    ("joined", "name no call, and were joined by op or by order", "Launch delays may be off.", Severity.NOTE, ()),
    (
        "outside_window",
        "start outside the window in which the profiler says it recorded",
        "Recording was starting or stopping there: what surrounds them may be incomplete.",
        Severity.NOTE,
        (),
    ),
    (
        "duplicates",
        "were exact repeats and were dropped",
        "None, if the file was merged from parts.",
        Severity.NOTE,
        (),
    ),
    (
        "repaired_events",
        "were not valid JSON and were repaired",
        "None on times; names may differ in a character.",
        Severity.NOTE,
        (),
    ),
)
"""Counts of `Damage`: what they say, what that makes unreliable, how grave it is, and what is doubtful then.

The last is of device work, or of what nobody knows; where only host spans are counted it is what the host did.
"""


def notes(
    damage: Damage,
    spans: pd.DataFrame,
    tables: dict[str, pd.DataFrame],
    links: pd.DataFrame,
    steps: tuple[Step, ...],
    provenance: Provenance,
) -> tuple[IntegrityNote, ...]:
    """All notes on a recording, the gravest first."""
    found = [
        *_damage(damage),
        *_shifts(damage),
        *_pairs(damage, spans, links),
        *_unequal_replays(spans, tables, links, steps),
    ]
    found += [*_steps(spans, steps), *_absent(spans, tables, provenance), *_lines(spans)]
    gravity = list(Severity)
    return tuple(sorted(found, key=lambda note: -gravity.index(note.severity)))


def _damage(damage: Damage) -> Iterator[IntegrityNote]:
    if damage.compressed_data_broken:
        yield IntegrityNote(
            "The gzip file is damaged or ends early.",
            f"Whatever came after that point is missing. {_RECORD_AGAIN}",
            Severity.ERROR,
            _MISSING,
        )
    if damage.cut_off:
        yield IntegrityNote(
            "The file ends in the middle.",
            f"Events and header values after that point are missing; the last step may be incomplete. {_RECORD_AGAIN}",
            Severity.ERROR,
            _MISSING,
        )
    if damage.text_after_end:
        yield IntegrityNote(
            "More text follows the end of the trace.",
            "It is left out. If several traces were joined into one file, give each its own file.",
            Severity.WARNING,
        )
    for name, what, effect, severity, doubts in _COUNTS:
        if count := getattr(damage, name):
            of_device = doubts if name in damage.on_device or name not in damage.on_host else ()
            of_host = (Ground.HOST_TIMES,) if name in damage.on_host else ()
            yield IntegrityNote(f"{count:,} events {what}.", effect, severity, tuple({*of_device, *of_host}))
    for sentence in damage.told:
        yield IntegrityNote(f"The recorder says: {sentence.rstrip('.')}.", "", Severity.WARNING, _MISSING)
    if damage.unread_tables:
        named = printable(", ".join(damage.unread_tables[:MOST_NAMED]))
        yield IntegrityNote(
            f"Tables that are not known were left out: {named}.",
            "Their events are missing here.",
            Severity.WARNING,
            _MISSING,
        )
    for key in damage.header_values_lost:
        yield IntegrityNote(
            f"The header value {key} could not be read.", "It is taken as not recorded.", Severity.WARNING
        )


def _pairs(damage: Damage, spans: pd.DataFrame, links: pd.DataFrame) -> Iterator[IntegrityNote]:
    kind = spans["kind"]
    work = spans[kind.isin([SpanKind.KERNEL.value, SpanKind.MEMCPY.value, SpanKind.MEMSET.value])]
    calls = spans[kind.isin([SpanKind.RUNTIME.value, SpanKind.DRIVER.value])]
    launch = links[links["kind"] == LinkKind.LAUNCH.value]
    if not len(calls) or not len(work):
        return
    unlaunched = len(work) - len(launch)
    if unlaunched:
        early = int((~work.index.isin(launch["to_id"]) & (work["start_ns"] < calls["start_ns"].min() + 1)).sum())
        grave = unlaunched - early > SHARE_WORTH_A_WARNING * len(work)
        yield IntegrityNote(
            f"{unlaunched:,} of {len(work):,} device operations have no launch in the file.",
            "They were launched before recording began, or records were dropped: they count as busy time, "
            "but belong to no step and no op.",
            *_if(grave, Ground.LAUNCHES),
        )
    without_work = ~np.isin(calls.index, launch["from_id"])
    api = calls["name"].cat
    by_code = [kinds.api_kind(name) for name in api.categories]
    launching = np.isin(api.codes, [k for k, one in enumerate(by_code) if one == kinds.ApiKind.KERNEL_LAUNCH])
    timeless = damage.without_time if "without_time" in damage.on_device else 0
    empty = int((launching & without_work).sum()) - timeless  # Of these a note of its own tells.
    if empty > SHARE_WORTH_A_WARNING * max(int(launching.sum()), 1):
        yield IntegrityNote(
            f"{empty:,} of {int(launching.sum()):,} kernel launches have no kernel in the file.",
            "Device records were dropped, or recording stopped before the device did: busy time is too low there.",
            Severity.WARNING,
            _IDLE,
        )
    graphs = np.isin(api.codes, [k for k, one in enumerate(by_code) if one == kinds.ApiKind.GRAPH_LAUNCH])
    without = int((graphs & without_work).sum())
    if without:
        yield IntegrityNote(
            f"{without:,} of {int(graphs.sum()):,} graph launches have no kernels in the file.",
            f"The device looks idle while those graphs ran. {_GRAPHS_AGAIN}",
            Severity.ERROR,
            _IDLE,
        )
    yield from _causality(spans, launch)


def _unequal_replays(
    spans: pd.DataFrame, tables: dict[str, pd.DataFrame], links: pd.DataFrame, steps: tuple[Step, ...]
) -> Iterator[IntegrityNote]:
    """Replays of which fewer kernels are recorded than of others of the same graph.

    Where graphs have no id, it is the same at the same place of steps that all replay as many.
    """
    launch = links[links["kind"] == LinkKind.LAUNCH.value].set_index("to_id")["from_id"]
    is_replay = [kinds.api_kind(name) is kinds.ApiKind.GRAPH_LAUNCH for name in spans["name"].cat.categories]
    replays = pd.DataFrame({"step": spans["step"]}).loc[np.array(is_replay, dtype=bool)[spans["name"].cat.codes]]
    work = pd.DataFrame({"call": launch, "graph": tables["kernels"]["graph_id"].reindex(launch.index, fill_value=0)})
    of_call = work[work["call"].isin(replays.index)].groupby("call")
    replays = replays.assign(kernels=of_call.size(), graph=of_call["graph"].max()).dropna()
    replays = replays[replays["step"] >= 0]
    place = replays.groupby("step").cumcount()
    per_step = replays.groupby("step").size()
    alike = len(per_step) == len(steps) and per_step.nunique() == 1
    known = replays[(replays["graph"] > 0) | alike]
    most = known.groupby([known["graph"], place.where(known["graph"] == 0, 0)])["kernels"].transform("max")
    fewer = int((known["kernels"] < most).sum())
    if fewer > SHARE_WORTH_A_WARNING * len(replays):
        yield IntegrityNote(
            f"{fewer:,} of {len(replays):,} graph launches have fewer kernels than others of the same graph.",
            f"Device records were dropped: busy time is too low there. {_GRAPHS_AGAIN}",
            Severity.WARNING,
            _IDLE,
        )


def _shifts(damage: Damage) -> Iterator[IntegrityNote]:
    for shift in damage.shifts:
        moved = f"{duration(abs(shift.by_ns))} {'later' if shift.by_ns > 0 else 'earlier'}"
        if shift.drifts:
            sure = "No one shift puts all in order, as clocks drift: launch delays are not known."
        elif shift.sure_ns is None:
            sure = "They may lie later still: no call that waits was recorded."
        else:
            sure = f"Launch delays and causes of short gaps are known to within {duration(shift.sure_ns)}."
        early = f"{shift.early:,} operations start before their launching call"
        late = "calls return before what they wait for has ended"
        yield IntegrityNote(
            f"The clocks of the host and of device {shift.device} disagree: {early if shift.by_ns > 0 else late}.",
            f"Times of the device are taken as {moved}. {sure}",
            Severity.WARNING,
            (Ground.CLOCKS,),
        )


def _causality(spans: pd.DataFrame, launch: pd.DataFrame) -> Iterator[IntegrityNote]:
    start = spans["start_ns"].to_numpy()
    early = start[launch["from_id"].to_numpy()] - start[launch["to_id"].to_numpy()]
    count = int((early > 1000).sum())
    if count:
        yield IntegrityNote(
            f"{count:,} device operations start before their launching call, by up to {early.max() // 1000:,} us.",
            "The host's and the device's clock disagree: launch delays and causes of short gaps are off by as much.",
            *_if(count > SHARE_WORTH_A_WARNING * len(launch), Ground.CLOCKS),
        )


def _if(grave: bool, *doubts: Ground) -> tuple[Severity, tuple[Ground, ...]]:
    """A warning that makes this doubtful if it is grave, else a note."""
    return (Severity.WARNING, doubts) if grave else (Severity.NOTE, ())


def _steps(spans: pd.DataFrame, steps: tuple[Step, ...]) -> Iterator[IntegrityNote]:
    if not steps:
        yield IntegrityNote(
            "No training steps are marked.",
            "All figures are for the whole recorded window. Call prof.step() after each step, or let diagnose profile "
            "find the steps.",
            Severity.WARNING,
        )
        return
    if len(steps) == 1:
        yield IntegrityNote(
            "Only one step was recorded.",
            "Its time includes filling and draining the device's queue.",
            Severity.WARNING,
        )
    for position in _incomplete_border_steps(spans, steps):
        which = "first" if position == 0 else "last"
        yield IntegrityNote(
            f"The {which} recorded step ({steps[position].number}) is incomplete.",
            "It is not used for step times.",
            Severity.NOTE,
        )


def _incomplete_border_steps(spans: pd.DataFrame, steps: tuple[Step, ...]) -> list[int]:
    work = spans["kind"].isin([SpanKind.KERNEL.value, SpanKind.MEMCPY.value, SpanKind.MEMSET.value]).to_numpy()
    own = spans["step"].to_numpy()[work]
    counts = np.bincount(own[own >= 0], minlength=len(steps))
    return [position for position in (0, len(steps) - 1) if is_cut_off(counts, position)]


def _absent(spans: pd.DataFrame, tables: dict[str, pd.DataFrame], provenance: Provenance) -> Iterator[IntegrityNote]:
    recorded = provenance.recorded
    if "device" not in recorded:
        yield IntegrityNote(
            "No device work was recorded.",
            "Nothing can be said about a GPU. If the run used one, profile with ProfilerActivity.CUDA.",
            Severity.NOTE,
        )
    elif "launches" not in recorded:
        yield IntegrityNote(
            "No runtime calls were recorded.",
            f"Why the device was idle cannot be told. {_CALLS_TOO if 'ops' in recorded else _CPU_TOO}",
            Severity.WARNING,
        )
    elif "ops" not in recorded:
        yield IntegrityNote(
            "No framework ops were recorded.",
            f"Kernels cannot be traced to ops, and all that the host does between calls counts as Python. {_CPU_TOO}",
            Severity.WARNING,
        )
    yield from (note for option, note in WITHOUT.items() if not provenance.knows(option))
    if "samples" in recorded:
        yield IntegrityNote(
            "Source lines are known from samples.",
            "Calls and pauses shorter than the time between two samples may have none, or that of their neighbours.",
            Severity.NOTE,
        )
    if "device" in recorded and "sync_events" not in recorded and provenance.backend == "cuda":
        yield IntegrityNote(
            "Synchronisation events were not recorded.",
            "Which event a stream waits for has to be inferred. Use "
            "experimental_config=_ExperimentalConfig(enable_cuda_sync_events=True).",
            Severity.NOTE,
        )
    unfinished = int((~tables["ops"]["finished"]).sum()) if len(tables["ops"]) else 0
    if unfinished:
        yield IntegrityNote(
            f"{unfinished:,} ops were still running when recording ended.",
            "Their durations are lower bounds.",
            Severity.NOTE,
        )
    distorting = spans[spans["kind"] == SpanKind.OVERHEAD.value]
    if provenance.resolution_ns > 1:
        yield IntegrityNote(
            "Times are in whole microseconds.", "Shorter gaps and operations cannot be told apart.", Severity.NOTE
        )
    if len(distorting) and (total := int(distorting["dur_ns"].sum())) > 1_000_000:
        yield IntegrityNote(
            f"The profiler's own work took {total / 1e6:,.1f} ms ({len(distorting):,} events).",
            "Steps it falls into are slower than they are without the profiler.",
            Severity.NOTE,
        )


def _lines(spans: pd.DataFrame) -> Iterator[IntegrityNote]:
    names = spans.loc[spans["kind"] == SpanKind.PYTHON.value, "name"].unique()
    sites = (frames.frame_site(str(name)) for name in names if frames.is_user_frame(str(name)))
    found = list(dict.fromkeys(site.function for site in sites if site is not None and not site.line))
    if found:
        more = f" and {len(found) - MOST_NAMED} more" if len(found) > MOST_NAMED else ""
        yield IntegrityNote(
            f"Which line ran is not known in {', '.join(found[:MOST_NAMED])}{more}.",
            "They ran when recording began: torch.profiler tells one line. `diagnose profile` records all.",
            Severity.NOTE,
        )
