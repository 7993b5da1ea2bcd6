"""Unexplained time in the step.

A tenth of the step or more goes to one thing that computes nothing: exposed communication of one kind, exposed copies,
or idle time of one cause. Or a fifth goes to one line or function of yours, beside layers, optimizer and loader. No
other finding covers it.

Why it costs
    The step would be shorter by at most this time. How much can go is not recorded.
How to fix
    See what the step waits for, and where. Record what the finding asks for: the cause may then get its own finding.
Ignore when
    the work is needed and nothing could overlap with it.
Sources
    https://docs.pytorch.org/tutorials/recipes/recipes/tuning_guide.html
"""

from diagnose.facts.core.breakdown import TimeCause
from diagnose.facts.device.lost_time import Lost, together
from diagnose.facts.host.functions import Dominant
from diagnose.facts.run.quality import Distortion
from diagnose.rulekit.vocabulary import *

LOST_SHARE = 0.1  # of the step, from which on a loss needs a reason (our choice)
MOSTLY = 0.5  # of a loss that one rank is waited for (our choice)
MORE = "diagnose profile train.py"

CAUSES = {
    TimeCause.GARBAGE_COLLECTION: ("Python collects garbage", "Create fewer reference cycles."),
    TimeCause.COMPILE: ("torch.compile compiles", "Record later steps, after compilation."),
    TimeCause.CHECKPOINT: ("a checkpoint is saved", "Save less often, or on another thread."),
    TimeCause.ALLOCATION: ("the CPU allocates or frees memory", "Keep memory, and reuse it."),
    TimeCause.SYNC: ("the CPU launches again after a sync", "Sync only where the CPU needs a result."),
    TimeCause.LOADER: ("the next batch is fetched", "Record with diagnose profile, which times the DataLoader."),
    TimeCause.OTHER_RANK: ("the CPU waits for other ranks", "Record all ranks at once."),
    TimeCause.HOST_COPY: ("the CPU is in copy calls", "Copy from pinned memory, and less often."),
    TimeCause.LAUNCH: ("the CPU is in launch calls", "Launch fewer and longer kernels."),
    TimeCause.HOST_COMPUTE: ("the CPU computes", "Compute on the GPU, or in DataLoader workers."),
    TimeCause.OPTIMIZER: ("the CPU runs the optimizer's step", "Use a fused optimizer with few parameter groups."),
    TimeCause.BLOCKED: ("the CPU waits in the OS", "Find the thread, file or timer that it waits for."),
    TimeCause.OPS: ("the CPU dispatches ops", "Run fewer and larger ops."),
    TimeCause.PYTHON: ("Python runs between ops", "Find the function in the HTML timeline (--html)."),
    TimeCause.DEVICE_WAIT: ("work waits for another stream", "Find the event or stream that the work waits for."),
}
"""The cause, and what to do about it."""

NOT_TOLD = (TimeCause.UNKNOWN, TimeCause.HOST_NOT_RECORDED)


@rule("UX01")
def unexplained_time(
    lost_time: tuple[Lost, ...],
    distortion: Distortion,
    steps: Steps,
    dominant_lines: tuple[Dominant, ...] | None = None,
) -> Verdicts:
    told = [one for one in lost_time if one.recurs or steps.count > 1]
    once = max(
        (one.share for one in lost_time if not (one.recurs or steps.count > 1) and one.share >= LOST_SHARE), default=0.0
    )
    large = [one for one in told if one.share >= LOST_SHARE] + whole_of_small(told)
    large = [one for one in large if one.ns > one.chance_ns]
    stacks = "stacks" in distortion.options
    for one in large:
        if one.cause is TimeCause.COMMUNICATION:
            yield communicated(one, steps)
        elif one.cause is TimeCause.COPY:
            yield copied(one, steps)
        elif one.cause in CAUSES:
            yield idle(one, steps, stacks)
    for line in dominant_lines or ():
        yield dominated(line)
    if once and not large:
        raise Missing(f"whether a loss of {percent(once)} of the only step recurs", "Record three steps.")
    hidden = sum(one.share for one in lost_time if one.cause in NOT_TOLD)
    if hidden >= LOST_SHARE and not large:
        raise Missing(f"why nothing runs for {percent(hidden)} of the step", "Record CPU calls and ops as well.")
    if not large and not dominant_lines:
        most = f"{percent(lost_time[0].share)} of the step" if lost_time else "nothing"
        yield Clean(f"the largest unexplained loss takes {most}")


def whole_of_small(losses: list[Lost]) -> list[Lost]:
    """Kinds of communication that are small alone, together, if that is much."""
    every = together(one for one in losses if one.cause is TimeCause.COMMUNICATION and one.share < LOST_SHARE)
    return [] if every is None or every.share < LOST_SHARE else [every]


def dominated(one: Dominant) -> Finding:
    name, often = one.op.removeprefix("aten::"), f"{one.calls:,.3g} call{'s' * (one.calls != 1)}"
    place = one.site.place.rpartition("/")[2]
    sizes = " and ".join(" x ".join(f"{size:,}" for size in tensor.shape) for tensor in one.takes[:2] if tensor.shape)
    takes = f"`{name}`{f' on {sizes}' * bool(sizes)} takes {ms(one.op_ns)}/step, in {often}"
    takes += "; its result looks the same as in the step before." if one.repeats else "."
    said = [Evidence(takes, one.op_ns, "ns")]
    if one.whole:
        all_of_it = f"All ops of `{one.site.function}` take {ms(one.ns)}/step ({percent(one.share)})."
        said.insert(0, Evidence(all_of_it, one.ns, "ns"))
    once = "Compute this only when what it depends on changes, and keep the result."
    return found(
        one.site,
        f"`{one.site.function if one.whole else name}` ({place}) takes {percent(one.share)} of the step",
        tuple(said),
        (Shorten(one.work.ids, 0.0), Shorten(one.work.work_ids, 0.0)),
        Fix(once if one.repeats else "Compute this less often, on less data, or in another way.", effort=2),
    )


def found(site: Site | None, title: str, evidence: tuple[Evidence, ...], edits: tuple[Edit, ...], fix: Fix) -> Finding:
    return Finding(
        title=title,
        evidence=evidence,
        edits=edits,
        fixes=(fix,),
        confidence=Confidence(Level.LOW, "upper bound (cost goes to zero); no fix is known"),
        site=site,
        kind=Kind.WHERE_TO_LOOK,
        basis=Basis.AT_MOST,
        unless_above=True,
    )


def communicated(one: Lost, steps: Steps) -> Finding:
    named = f"`{one.what}` ({one.role.value})" if one.role else "communication of several kinds"
    group = f", group {one.group}" if one.group else ""
    calls = one.calls / steps.count
    waits = sum(ns for _, ns in one.awaited)
    rank, most = one.awaited[0] if one.awaited else (-1, 0)
    if most >= MOSTLY * one.ns:
        who = f"This rank waits {ms(most)} of this for rank {rank}."
        fix = Fix(f"Find out why rank {rank} arrives late.")
    elif waits >= MOSTLY * one.ns:
        ranks = ", ".join(str(rank) for rank, _ in one.awaited[:4])
        who = f"This rank waits {ms(waits)} of this for other ranks: {ranks}."
        fix = Fix("Find out why ranks arrive at different times: the schedule, or uneven work.")
    elif one.awaited:
        who = f"Waiting for other ranks is only {ms(waits)} of this; the rest is transfer."
        fix = Fix("Start the communication earlier, and wait where its result is used, to overlap it with compute.")
    else:
        who = "Not recorded: how much of this is transfer, and how much waiting for other ranks."
        fix = Fix("Record all ranks at once, to see which rank waits for which.", after=MORE)
    return found(
        one.site,
        f"Exposed communication: {one.what or 'several kinds'}",
        (
            Evidence(
                f"{named[0].upper()}{named[1:]}{group} is exposed for {ms(one.ns)}/step ({percent(one.share)}), in"
                f" {calls:.3g} call{'s' * (calls != 1)}.",
                one.ns,
                "ns",
            ),
            Evidence(who, waits, "ns"),
        ),
        (Remove(one.ids), *(Shorten(Times(*time), 0.0) for time in one.times)),
        fix,
    )


def copied(one: Lost, steps: Steps) -> Finding:
    return found(
        one.site,
        "Exposed copies",
        (
            Evidence(
                f"{one.calls / steps.count:.3g} copies per step are exposed for {ms(one.ns)}/step"
                f" ({percent(one.share)}).",
                one.ns,
                "ns",
            ),
        ),
        (Remove(one.ids),),
        Fix("Copy less, or overlap copies with compute: pinned memory, non_blocking=True."),
    )


def idle(one: Lost, steps: Steps, stacks: bool) -> Finding:
    says, do = CAUSES[one.cause]
    often = one.calls / steps.count
    fixes = do if one.site or stacks else f"{do} Record with stacks to see the line."
    edits = (Shorten(Times(*time), 0.0) for time in one.times)
    return found(
        one.site,
        f"Unexplained: idle while {says}",
        (
            Evidence(
                f"Nothing computes for {ms(one.ns)}/step ({percent(one.share)}) while {says}, in {often:.3g}"
                f" gap{'s' * (often != 1)}.",
                one.ns,
                "ns",
            ),
        ),
        (*edits, Detach(one.ids)),
        Fix(fixes),
    )


EXAMPLES = [
    Fires(  # a stage waits 40 of 100 ms for what it receives, and no other rank was recorded: at most these go
        """
        4 steps of 100
        cpu     aten::mm 0-0.1 | c10d::recv_ 0.2-0.4 | device_sync 1-99.9
        gpu     sgemm 0.1-59.8 @0.05
        gpu 20  nccl 59.8-99.8 @0.3 operation=recv
        """,
        saving_ms=(40, 40.3),
    ),
    Fires(  # a line of yours takes 38 of 100 ms: at most these go
        """
        4 steps of 100
        1 threads, 2 cores
        cpu  "train.py(9): main" 0-100 | aten::linear 0-40 | "train.py(30): ends" 41-80 | aten::nonzero 42-80
        cpu  aten::linear 81-99
        """,
        saving_ms=(38, 38),
    ),
    # 5 ms of it are no tenth of the step
    Silent("""
        4 steps of 100
        cpu     aten::mm 0-0.1 | c10d::recv_ 0.2-0.4 | device_sync 1-99.9
        gpu     sgemm 0.1-94.8 @0.05
        gpu 20  nccl 94.8-99.8 @0.3 operation=recv
    """),
    CannotTell("gpu  sgemm 0-10 | sgemm 50-60", because="host activity"),
]
