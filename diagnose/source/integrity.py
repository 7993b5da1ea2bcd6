"""What is missing or damaged in one recording, and what that makes unreliable."""

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
import pandas as pd

from diagnose.source.base import Damage
from diagnose.source.columns import DEVICE_WORK, is_kind, printable
from diagnose.trace import frames, kinds
from diagnose.trace.enums import LinkKind, SpanKind
from diagnose.trace.kinds import ApiKind
from diagnose.trace.model import Ground, IntegrityNote, Provenance, Severity, Step
from diagnose.trace.steps import is_cut_off
from diagnose.trace.units import duration

SHARE_WORTH_A_WARNING = 0.02  # Below this share of unpaired launches or work the figures of a step hardly move.
MOST_NAMED = 3  # Functions that a note names (our choice).
_GRAPHS_AGAIN = "Profile with a newer driver and CUPTI, or without graphs."
_RECORD_AGAIN = "Record again, and let the run end or the profiler stop before the file is used."


def _note(what: str, effect: str) -> IntegrityNote:
    return IntegrityNote(what, effect, Severity.NOTE)


def _warning(what: str, effect: str, *doubts: Ground) -> IntegrityNote:
    return IntegrityNote(what, effect, Severity.WARNING, doubts)


def _error(what: str, effect: str, *doubts: Ground) -> IntegrityNote:
    return IntegrityNote(what, effect, Severity.ERROR, doubts)


WITHOUT = {
    "shapes": _note("Input shapes were not recorded.", "FLOPs and bytes of ops are unknown. Use record_shapes=True."),
    "stacks": _note("Call stacks were not recorded.", "Source lines cannot be named. Use with_stack=True."),
}
"""What is said where one of these was not recorded."""

_MISSING = (Ground.HOST_TIMES, Ground.DEVICE_IDLE, Ground.LAUNCHES)  # Where nobody knows what is missing.
_IDLE, _TIMES = (Ground.DEVICE_IDLE,), (Ground.DEVICE_TIMES, Ground.DEVICE_IDLE)
_AS_IDLE = "Times they took count as idle."
_COUNTS = {
    "lost_events": _error("could not be read and were left out", _AS_IDLE, *_MISSING),
    "without_time": _warning("had no usable time and were left out", _AS_IDLE, *_IDLE),
    "implausible_times": _warning("lie more than a day away from the rest and were left out", _AS_IDLE, *_IDLE),
    "unclassified": _warning(
        "have no category, and no name that tells what they are", "They are in no figure.", Ground.HOST_TIMES
    ),
    "negative_durations": _warning("had no duration or a negative one, taken as 0", "Busy time may be low.", *_TIMES),
    "clipped": _warning(
        "last longer than they can and were cut where the next on their row begins",
        "Their durations are upper bounds.",
        *_TIMES,
    ),
    "joined": _note("name no call, and were joined by op or by order", "Launch delays may be off."),
    "outside_window": _note(
        "start outside the window in which the profiler says it recorded",
        "Recording was starting or stopping there: what surrounds them may be incomplete.",
    ),
    "duplicates": _note("were exact repeats and were dropped", "None, if the file was merged from parts."),
    "repaired_events": _note(
        "were not valid JSON and were repaired", "None on times; names may differ in a character."
    ),
}
"""Counts of `Damage`, and what they say of so many events.

The doubts given here hold unless only host spans are counted. Where host spans are counted, host times are doubtful.
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
    found = [*_damage(damage), *_shifts(damage), *_pairs(damage, spans, links)]
    found += [*_unequal_replays(spans, tables, links, steps), *_steps(spans, steps)]
    found += [*_absent(spans, tables, provenance), *_lines(spans)]
    gravity = list(Severity)
    return tuple(sorted(found, key=lambda note: -gravity.index(note.severity)))


def _damage(damage: Damage) -> Iterator[IntegrityNote]:
    """Notes on what the reader could not read, left out or repaired."""
    if damage.compressed_data_broken:
        missing = f"Whatever came after that point is missing. {_RECORD_AGAIN}"
        yield _error("The gzip file is damaged or ends early.", missing, *_MISSING)
    if damage.cut_off:
        missing = "Events and header values after that point are missing; the last step may be incomplete."
        yield _error("The file ends in the middle.", f"{missing} {_RECORD_AGAIN}", *_MISSING)
    if damage.text_after_end:
        effect = "It is left out. If several traces were joined into one file, give each its own file."
        yield _warning("More text follows the end of the trace.", effect)
    for name, said in _COUNTS.items():
        if count := getattr(damage, name):
            of_device = said.doubts if name in damage.on_device or name not in damage.on_host else ()
            of_host = (Ground.HOST_TIMES,) if name in damage.on_host else ()
            doubts = tuple(dict.fromkeys((*of_device, *of_host)))
            yield IntegrityNote(f"{count:,} events {said.what}.", said.effect, said.severity, doubts)
    for sentence in damage.told:
        yield _warning(f"The recorder says: {sentence.rstrip('.')}.", "", *_MISSING)
    if damage.unread_tables:
        named = printable(", ".join(damage.unread_tables[:MOST_NAMED]))
        yield _warning(
            f"Tables that are not known were left out: {named}.", "Their events are missing here.", *_MISSING
        )
    for key in damage.header_values_lost:
        yield _warning(f"The header value {key} could not be read.", "It is taken as not recorded.")


def _pairs(damage: Damage, spans: pd.DataFrame, links: pd.DataFrame) -> Iterator[IntegrityNote]:
    """Notes on device work without a launch or before it, and on launches without device work."""
    work = spans[_is_work(spans)]
    calls = _calls(spans)
    launch = links[links["kind"] == LinkKind.LAUNCH.value]
    if not len(calls) or not len(work):
        return
    if unlaunched := len(work) - len(launch):
        early = int((~work.index.isin(launch["to_id"]) & (work["start_ns"] < calls["start_ns"].min() + 1)).sum())
        yield IntegrityNote(
            f"{unlaunched:,} of {len(work):,} device operations have no launch in the file.",
            "They were launched before recording began, or records were dropped: they count as busy time, "
            "but belong to no step and no op.",
            *_if(unlaunched - early > SHARE_WORTH_A_WARNING * len(work), Ground.LAUNCHES),
        )
    without_work = ~np.isin(calls.index, launch["from_id"])
    launching, graphs = (_are_of_kind(calls, kind) for kind in (ApiKind.KERNEL_LAUNCH, ApiKind.GRAPH_LAUNCH))
    timeless = damage.without_time if "without_time" in damage.on_device else 0
    empty = int((launching & without_work).sum()) - timeless  # Of these a note of its own tells.
    if empty > SHARE_WORTH_A_WARNING * max(int(launching.sum()), 1):
        yield _warning(
            f"{empty:,} of {int(launching.sum()):,} kernel launches have no kernel in the file.",
            "Device records were dropped, or recording stopped before the device did: busy time is too low there.",
            *_IDLE,
        )
    if without := int((graphs & without_work).sum()):
        what = f"{without:,} of {int(graphs.sum()):,} graph launches have no kernels in the file."
        yield _error(what, f"The device looks idle while those graphs ran. {_GRAPHS_AGAIN}", *_IDLE)
    yield from _causality(spans, launch)


def _is_work(spans: pd.DataFrame) -> npt.NDArray[np.bool_]:
    return is_kind(spans["kind"].cat.codes.to_numpy(), DEVICE_WORK)


def _calls(spans: pd.DataFrame) -> pd.DataFrame:
    return spans[is_kind(spans["kind"].cat.codes.to_numpy(), (SpanKind.RUNTIME, SpanKind.DRIVER))]


def _are_of_kind(calls: pd.DataFrame, kind: ApiKind) -> npt.NDArray[np.bool_]:
    name = calls["name"].cat.remove_unused_categories().cat
    found: npt.NDArray[np.bool_] = np.array([kinds.api_kind(one) is kind for one in name.categories], bool)[name.codes]
    return found


def _unequal_replays(
    spans: pd.DataFrame, tables: dict[str, pd.DataFrame], links: pd.DataFrame, steps: tuple[Step, ...]
) -> Iterator[IntegrityNote]:
    """A warning if graph launches in steps have fewer kernels in the file than other launches of the same graph.
    Without graph ids, the k-th launches of all steps are of one graph, if all steps launch equally many."""
    launch = links[links["kind"] == LinkKind.LAUNCH.value].set_index("to_id")["from_id"]
    calls = _calls(spans)
    replays = calls.loc[_are_of_kind(calls, ApiKind.GRAPH_LAUNCH), ["step"]]
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
        what = f"{fewer:,} of {len(replays):,} graph launches have fewer kernels than others of the same graph."
        yield _warning(what, f"Device records were dropped: busy time is too low there. {_GRAPHS_AGAIN}", *_IDLE)


def _shifts(damage: Damage) -> Iterator[IntegrityNote]:
    """A warning for each device whose clock disagrees with the host's, on how far its times were moved."""
    for shift in damage.shifts:
        moved = f"{duration(abs(shift.by_ns))} {'later' if shift.by_ns > 0 else 'earlier'}"
        if shift.drifts:
            sure = "No one shift puts all in order, as clocks drift: launch delays are not known."
        elif shift.sure_ns is None:
            sure = "They may lie later still: no recorded wait shows by how much."
        else:
            sure = f"Launch delays and causes of short gaps are known to within {duration(shift.sure_ns)}."
        early = f"{shift.early:,} operations start before their launching call"
        late = "calls return before what they wait for has ended"
        what = f"The clocks of the host and of device {shift.device} disagree: {early if shift.by_ns > 0 else late}."
        yield _warning(what, f"Times of the device are taken as {moved}. {sure}", Ground.CLOCKS)


def _causality(spans: pd.DataFrame, launch: pd.DataFrame) -> Iterator[IntegrityNote]:
    """A note if device work starts over 1 us before its launching call; a warning if a notable share does."""
    start = spans["start_ns"].to_numpy()
    early = start[launch["from_id"].to_numpy()] - start[launch["to_id"].to_numpy()]
    if count := int((early > 1000).sum()):
        yield IntegrityNote(
            f"{count:,} device operations start before their launching call, by up to {early.max() // 1000:,} us.",
            "The host's and the device's clock disagree: launch delays and causes of short gaps are off by as much.",
            *_if(count > SHARE_WORTH_A_WARNING * len(launch), Ground.CLOCKS),
        )


def _if(grave: bool, *doubts: Ground) -> tuple[Severity, tuple[Ground, ...]]:
    """The severity and doubts of a note: a warning with these doubts if `grave`, else a note without any."""
    return (Severity.WARNING, doubts) if grave else (Severity.NOTE, ())


def _steps(spans: pd.DataFrame, steps: tuple[Step, ...]) -> Iterator[IntegrityNote]:
    """Notes on steps: none is marked, only one was recorded, or the first or last is incomplete."""
    if not steps:
        again = "Call prof.step() after each step, or let diagnose profile find the steps."
        yield _warning("No training steps are marked.", f"All figures are for the whole recorded window. {again}")
        return
    if len(steps) == 1:
        yield _warning("Only one step was recorded.", "Its time includes filling and draining the device's queue.")
    step_of_work = spans["step"].to_numpy()[_is_work(spans)]
    counts = np.bincount(step_of_work[step_of_work >= 0], minlength=len(steps))
    for position in (one for one in (0, len(steps) - 1) if is_cut_off(counts, one)):
        what = f"The {'last' if position else 'first'} recorded step ({steps[position].number}) is incomplete."
        yield _note(what, "It is not used for step times.")


def _absent(spans: pd.DataFrame, tables: dict[str, pd.DataFrame], provenance: Provenance) -> Iterator[IntegrityNote]:
    """Notes on what was not recorded, and on what makes times coarse or too long."""
    recorded = provenance.recorded
    cpu_too = "Profile with ProfilerActivity.CPU as well."
    if "device" not in recorded:
        effect = "Nothing can be said about a GPU. If the run used one, profile with ProfilerActivity.CUDA."
        yield _note("No device work was recorded.", effect)
    elif "launches" not in recorded:
        calls_too = "Waits for it count as work. torch.profiler records calls since PyTorch 1.8."
        again = calls_too if "ops" in recorded else cpu_too
        yield _warning("No runtime calls were recorded.", f"Why the device was idle cannot be told. {again}")
    elif "ops" not in recorded:
        effect = "Kernels cannot be traced to ops, and all that the host does between calls counts as Python."
        yield _warning("No framework ops were recorded.", f"{effect} {cpu_too}")
    yield from (note for option, note in WITHOUT.items() if not provenance.knows(option))
    if "samples" in recorded:
        effect = (
            "Calls and pauses shorter than the time between two samples may have none, or that of their neighbours."
        )
        yield _note("Source lines are known from samples.", effect)
    if "device" in recorded and "sync_events" not in recorded and provenance.backend == "cuda":
        again = "Use experimental_config=_ExperimentalConfig(enable_cuda_sync_events=True)."
        effect = f"Which event a stream waits for has to be inferred. {again}"
        yield _note("Synchronisation events were not recorded.", effect)
    if unfinished := int((~tables["ops"]["finished"]).sum()):
        yield _note(f"{unfinished:,} ops were still running when recording ended.", "Their durations are lower bounds.")
    if provenance.resolution_ns > 1:
        yield _note("Times are in whole microseconds.", "Shorter gaps and operations cannot be told apart.")
    distorting = spans.loc[spans["kind"] == SpanKind.OVERHEAD.value, "dur_ns"]
    if (total := int(distorting.sum())) > 1_000_000:
        what = f"The profiler's own work took {total / 1e6:,.1f} ms ({len(distorting):,} events)."
        yield _note(what, "Steps it falls into are slower than they are without the profiler.")


def _lines(spans: pd.DataFrame) -> Iterator[IntegrityNote]:
    """A note on user functions that ran when recording began, so that their current line is not known."""
    names = spans.loc[spans["kind"] == SpanKind.PYTHON.value, "name"].unique()
    sites = (frames.frame_site(str(name)) for name in names if frames.is_user_frame(str(name)))
    found = list(dict.fromkeys(site.function for site in sites if site is not None and not site.line))
    if found:
        more = f" and {len(found) - MOST_NAMED} more" if len(found) > MOST_NAMED else ""
        yield _note(
            f"Which line ran is not known in {', '.join(found[:MOST_NAMED])}{more}.",
            "They ran when recording began: torch.profiler tells one line. `diagnose profile` records all.",
        )
