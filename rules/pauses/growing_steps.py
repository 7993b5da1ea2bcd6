"""Steps get longer from one to the next.

Each step does more than the one before: backward() also runs through the graphs of earlier steps, a list or table
grows, or every step registers another hook.

Why it costs
    The time of the whole run grows with the square of its steps, and memory grows until it is full.
How to fix
    Detach what passes from step to step: `hidden = hidden.detach()`, `total += loss.item()`. Limit the size of lists,
    queues and tables. Register hooks and wrap modules once, before the loop.
Ignore when
    steps grow by plan, for instance with sequence length.
Sources
    https://docs.pytorch.org/docs/stable/notes/faq.html
    https://github.com/pytorch/pytorch/issues/2769
"""

from diagnose.facts.core.inputs import Work
from diagnose.facts.run.growth import Grows, Growth, Kept, Measured
from diagnose.rulekit.vocabulary import *

NAMED = 3  # ops (our choice)
AGAIN = 0.5  # of what grew since the run began, that is left at low estimate (our choice)
DETACH = Fix(
    "Detach what one step passes to the next.",
    after="output, hidden = model(x, hidden.detach())  # of a tuple each\ntotal = total + loss.detach()",
    safety=Safety.NEEDS_JUDGEMENT,
    link="https://docs.pytorch.org/docs/stable/notes/faq.html",
)
ONCE = Fix(
    "Move what makes later steps run more, such as registering hooks, before the loop.",
    after="watch(model)\nfor batch in loader:\n    ...",
)
NEW = Fix(
    "Keep results of earlier steps that stay the same, and process only new data.", effort=2, safety=Safety.ROUNDING
)
BOUND = Fix(
    "Limit the growing buffer to a fixed size.",
    after="bank = torch.cat([bank, new])[-SIZE:]  # the last ones",
    effort=2,
    safety=Safety.NEEDS_JUDGEMENT,
)
TITLES = {
    Measured.TIME: "",
    Measured.OPS: "Each step runs more ops than the one before",
    Measured.WORK: "Each step runs more ops than the one before",
    Measured.SIZES: "Each step processes more data than the one before",
}


@rule("PA05")
def growing_steps(growth: Growth) -> Verdicts:
    longer = []
    if (one := growth.time) is not None:
        longer = [f"step time grows from {ms(round(one.first))} to {ms(round(one.last))}, {ms(round(one.each))}/step"]
    rises = [
        *(
            f"{count.value} grow from {one.first:,.0f} to {one.last:,.0f}, {one.each:,.3g}/step"
            for count, one in growth.counts.items()
        ),
        *longer,
        *(f"{_names(one)} {_size(one)}" for one in growth.grows if one.inputs),
    ]
    if growth.kept is not None:
        yield _graph(growth.kept, longer)
    yield from (_more(one, rises) for one in growth.grows)
    if growth.kept is None and not rises:
        yield Clean("neither the work nor the time of steps grows from step to step")
    if rises:
        yield Caution(f"steps grow: {'; '.join(rises)}", "Figures describe the recorded steps; later ones take longer.")


def _graph(kept: Kept, longer: list[str]) -> Finding:
    count, nodes, (least, most) = kept.count, kept.nodes, kept.forward
    forward = f"{least:,}" if least == most else f"{least:,} to {most:,}"
    made = f" `{kept.op.removeprefix('aten::')}` made the tensor that the last step received." * bool(kept.op)
    ns = kept.work.longest_ns
    return Finding(
        title="backward() also runs through graphs of earlier steps",
        evidence=(
            Evidence(f"Backward nodes of earlier steps take up to {ms(ns)}/step, more in each step.", ns, "ns"),
            Evidence(
                f"A backward pass grows from {nodes.first:,.0f} to {nodes.last:,.0f} nodes; the last has"
                f" {count.last:,.0f} of earlier steps. The forward pass has {forward} ops.{made}",
                count.each,
            ),
            *(Evidence(f"{one[:1].upper()}{one[1:]}.") for one in longer),
        ),
        edits=(Remove(kept.work.ids), Remove(kept.work.work_ids)),
        fixes=(DETACH,),
        confidence=Confidence(Level.HIGH, "node numbers show which step created each node"),
        site=kept.site,
    )


def _more(grows: Grows, rises: list[str]) -> Finding:
    """What it took when the run began is not recorded: at the rate of now, this is what was left of it."""
    known, work = grows.measured is not Measured.TIME, grows.work
    counted = known and not grows.inputs
    left = Between(1 - AGAIN * (1 - grows.left), grows.left, grows.left)
    edits: tuple[Edit, ...] = (Shorten(Times(grows.track, grows.times), left),) * (counted or work is None)
    if work is not None:
        edits = (Shorten(work.ids, left), *(Shorten(work.work_ids, left),) * known, *edits)
    return Finding(
        title=TITLES[grows.measured],
        evidence=_amounts(grows, work) if work and known else _times(grows, rises),
        edits=edits,
        fixes=_fixes(grows, counted),
        confidence=Confidence(Level.MEDIUM, "at this rate, it has grown since the start of the run")
        if known and grows.from_start
        else Confidence(Level.LOW, "not recorded: since when it grows, and on what data"),
        site=grows.site,
        basis=Basis.REPLAYED if known else Basis.RULE_OF_THUMB,
        host_bound=work is None,
    )


def _fixes(grows: Grows, counted: bool) -> tuple[Fix, ...]:
    if grows.inputs:
        return (BOUND, NEW)
    if counted and not grows.in_forward:
        return (DETACH,)
    return (ONCE, NEW, BOUND) if counted and not grows.in_backward else (NEW, BOUND)


def _amounts(grows: Grows, work: Work) -> tuple[Evidence, ...]:
    ns, rise = work.longest_ns, grows.rise
    run, unit = ("run", "times") if grows.measured is Measured.OPS else ("launch", grows.measured.value)
    many = f"{run} {rise.first:,.0f} {unit} per step, then {rise.last:,.0f}: {rise.each:,.3g} more in each"
    if grows.from_start:
        start = f"the number was {max(grows.at_start, 0):,.0f} when the run began"
    else:
        start = f"the growth began {rise.first / rise.each:,.0f} steps earlier, after the run's start"
    more = "process more data" if grows.inputs else "become more numerous"
    return (
        Evidence(f"Ops that {more} take up to {ms(ns)}/step, more in each step.", ns, "ns"),
        Evidence(f"{_names(grows)} {_size(grows) if grows.inputs else many}.", rise.each),
        Evidence(f"At this rate, {start}."),
    )


def _size(grows: Grows) -> str:
    first, last = (" x ".join(f"{extent:,}" for extent in grows.inputs[step]) for step in (0, -1))
    return f"processes {first}, then {last}: {grows.rise.each:,.4g} more in each step"


def _times(grows: Grows, rises: list[str]) -> tuple[Evidence, ...]:
    rise, takes = grows.rise, "take" if len(grows.names) > 1 else "takes"
    first, last, each = (ms(round(ns)) for ns in (rise.first, rise.last, rise.each))
    return (
        Evidence(f"{_names(grows)} {takes} {first}, then {last}: {each} more in each step.", rise.each, "ns"),
        *(Evidence(f"{one[:1].upper()}{one[1:]}.") for one in rises),
    )


def _names(grows: Grows) -> str:
    names = [f"`{name.rpartition(': ')[2].removeprefix('aten::')}`" for name in grows.names]
    more = f" and {len(names) - NAMED} more ops" * (len(names) > NAMED)
    return f"{', '.join(names[:NAMED])}{more}" or "Python between ops"


EXAMPLES = [
    Fires(  # in step n the nodes of step n and of all before it: in steps 1 to 3 those of others take 5, 10, 15 ms
        """
        4 steps of 100
        2 threads, 4 cores
        cpu  aten::mm 0-1 sequence=0 in 0 | aten::mm 0-1 sequence=1 in 1 | aten::mm 0-1 sequence=2 in 2
        cpu  aten::mm 0-1 sequence=3 in 3
        cpu  "autograd::engine::evaluate_function: MmBackward0" 5-10 sequence=0 "Fwd thread id"=1
        cpu  "autograd::engine::evaluate_function: MmBackward0" 10-15 sequence=1 "Fwd thread id"=1 not in 0
        cpu  "autograd::engine::evaluate_function: MmBackward0" 15-20 sequence=2 "Fwd thread id"=1 not in 0,1
        cpu  "autograd::engine::evaluate_function: MmBackward0" 20-25 sequence=3 "Fwd thread id"=1 in 3
        """,
        saving_ms=(10, 10),  # and more, as what is left gets faster
    ),
    Fires(  # in step n so many more of 10 ms: 4 on average in steps 1 to 5, of which there was 1 when the run began
        """
        6 steps of 100
        2 threads, 4 cores
        cpu  aten::std 10-20 in 0 | aten::std 10-20 x2 in 1 | aten::std 10-20 x3 in 2 | aten::std 10-20 x4 in 3
        cpu  aten::std 10-20 x5 in 4 | aten::std 10-20 x6 in 5
        cpu  aten::mm 0-1 sequence=0 | "autograd::engine::evaluate_function: MmBackward0" 80-90 "Fwd thread id"=1
        """,
        saving_ms=(15, 30),  # 30, and more, as what is left gets faster
    ),
    Fires(  # 40 ms; in steps 1 to 5 there are 32 rows on average, of which there were 8 in step 0
        """
        6 steps of 100
        2 threads, 4 cores
        cpu  aten::cat 10-50 shapes=[[[8,4],[8,4]]] in 0 | aten::cat 10-50 shapes=[[[16,4],[8,4]]] in 1
        cpu  aten::cat 10-50 shapes=[[[24,4],[8,4]]] in 2 | aten::cat 10-50 shapes=[[[32,4],[8,4]]] in 3
        cpu  aten::cat 10-50 shapes=[[[40,4],[8,4]]] in 4 | aten::cat 10-50 shapes=[[[48,4],[8,4]]] in 5
        """,
        saving_ms=(15, 30),  # 30, and more, as what is left gets faster
    ),
    # batches of other sizes
    Silent("""
        6 steps of 100
        2 threads, 4 cores
        cpu  aten::mm 10-50 shapes=[[8,4],[4,4]] in 0 | aten::mm 10-50 shapes=[[12,4],[4,4]] in 1
        cpu  aten::mm 10-50 shapes=[[16,4],[4,4]] in 2 | aten::mm 10-50 shapes=[[8,4],[4,4]] in 3
        cpu  aten::mm 10-50 shapes=[[24,4],[4,4]] in 4 | aten::mm 10-50 shapes=[[32,4],[4,4]] in 5
    """),
    # the node of one step before, as where a step ends between forward and backward pass
    Silent("""
        4 steps of 100
        2 threads, 4 cores
        cpu  aten::mm 0-1 sequence=1 in 0 | aten::mm 0-1 sequence=2 in 1 | aten::mm 0-1 sequence=3 in 2
        cpu  aten::mm 0-1 sequence=4 in 3
        cpu  "autograd::engine::evaluate_function: MmBackward0" 5-10 sequence=0 in 0 "Fwd thread id"=1
        cpu  "autograd::engine::evaluate_function: MmBackward0" 5-10 sequence=1 in 1 "Fwd thread id"=1
        cpu  "autograd::engine::evaluate_function: MmBackward0" 5-10 sequence=2 in 2 "Fwd thread id"=1
        cpu  "autograd::engine::evaluate_function: MmBackward0" 5-10 sequence=3 in 3 "Fwd thread id"=1
    """),
    Silent("4 steps of 100\n2 threads, 4 cores\ncpu  aten::mm 0-50"),
    CannotTell("2 steps of 100\n2 threads, 4 cores\ncpu  aten::mm 0-50", because="active"),
]
