"""A line of your code is on the critical path.

A line of the loop calls a library or computes in Python, and no other op starts. Ops that a logger, a metric or a copy
of the model starts belong to the call.

Why it costs
    The GPU idles until the line is done. On the CPU, nothing else is computed.
How to fix
    Write logs, plots, metrics and files every 100 steps, or on another thread. Read files once, or in DataLoader
    workers. Vectorise NumPy and loops, compute them once, or move them to the GPU.
Ignore when
    the work is the point, as when stepping an environment for the next observation.
Sources
    https://docs.pytorch.org/tutorials/recipes/recipes/tuning_guide.html
"""

from diagnose.facts.host.process import CompetingThreads
from diagnose.facts.host.python import PythonPause
from diagnose.rulekit.vocabulary import *

WORTH_SHARE = 0.05  # of the step, at one line (our choice)
GAPS = 3  # pauses in the used steps: one or two may be start-up, not a loop (our choice)
LEFT = Between(0.8, 0.5, 0.0)  # of the time: half of it likely goes, at best all (our choice)
LEFT_OF_SELDOM = Between(0.5, 0.01, 0.0)  # of what is done in every hundredth step, as advised
LEFT_OF_CALL = Between(0.5, 0.1, 0.0)  # of a call that need not be in each step: planted ones went as a whole

SELDOM = Fix("Do this every 100 steps only, or on another thread.", after="if step % 100 == 0: ...")
ADVICE = {
    CalleeKind.LOG: (SELDOM, LEFT_OF_SELDOM),
    CalleeKind.METRIC: (SELDOM, LEFT_OF_SELDOM),
    CalleeKind.SAVE: (SELDOM, LEFT_OF_SELDOM),
    CalleeKind.GARBAGE_COLLECTION: (Fix.of(fixes.SeldomCollect()), LEFT_OF_SELDOM),
    CalleeKind.READ: (
        Fix("Read all numbers at once, and less often: each read converts a tensor to Python numbers.", effort=2),
        LEFT,
    ),
    CalleeKind.CONVERT: (
        Fix(
            "Keep the data in tensors or arrays: Python numbers are converted one by one.",
            after="x = torch.from_numpy(np.stack(rows))",
            effort=2,
        ),
        LEFT_OF_CALL,
    ),
    CalleeKind.LOAD: (Fix("Read the data once before the loop, or in DataLoader workers.", effort=2), LEFT_OF_CALL),
    CalleeKind.WAIT: (Fix("Move this wait to another thread.", effort=2), LEFT_OF_CALL),
    CalleeKind.COPY: (
        Fix(
            "Copy the weights into a preallocated copy, or copy less often.",
            after="torch._foreach_copy_(list(old.parameters()), list(model.parameters()))  # under no_grad",
            effort=2,
        ),
        LEFT_OF_CALL,
    ),
    CalleeKind.NUMERIC: (
        Fix(
            "Compute this with torch (on the GPU if there is one), once, or in DataLoader workers.",
            safety=Safety.ROUNDING,
            effort=2,
        ),
        LEFT,
    ),
}
LOOK = (Fix("Move this to another thread, compute it once, or vectorise it.", safety=Safety.ROUNDING, effort=2), LEFT)
AGAIN = "Record three steps or more."


@rule("LB10")
def host_work(
    python_pauses: tuple[PythonPause, ...], steps: Steps, competing_threads: CompetingThreads | None = None
) -> Verdicts:
    works = [pause for pause in python_pauses if pause.is_work and pause.is_usual]
    large = [pause for pause in works if pause.share >= WORTH_SHARE]
    if large and steps.count == 1 and sum(pause.gaps for pause in large) < GAPS:
        raise Missing("whether your code's work between ops recurs", AGAIN)
    if not large:
        most = max((pause.share for pause in works), default=0.0)
        yield Clean(f"no line of your code stalls the training for more than {percent(most)} of the step")
    beside = [
        Evidence(f"The Python thread {some.names[0]!r} may hold the GIL in these gaps (LB06).", some.share)
        for some in [competing_threads]
        if some and some.busy
    ]
    for pause in large:
        fix, left = ADVICE.get(pause.callee.kind, LOOK) if pause.callee else LOOK
        if fix is SELDOM and pause.callee:
            fix = Fix(SELDOM.do, after=SELDOM.after.replace("...", f"{pause.callee.name.rpartition('.')[2]}(...)"))
        yield Finding(
            title=f"{_what(pause)} is on the critical path",
            evidence=(*_evidence(pause, steps), *beside),
            edits=(*(Shorten(Times(*time), left) for time in pause.times), Shorten(pause.collections, left)),
            fixes=(fix,),
            confidence=Confidence(Level.MEDIUM, "how much of this work can go is not recorded")
            if pause.gaps >= GAPS
            else Confidence(Level.LOW, "few gaps were recorded: it may be start-up"),
            site=pause.site,
            basis=Basis.RULE_OF_THUMB,
            host_bound=True,
            unless_above=True,
        )


def _what(pause: PythonPause) -> str:
    place = pause.site.place.rpartition("/")[2] if pause.site else "an unknown line"
    function = pause.site.function if pause.site and pause.site.line else ""
    name = pause.callee.name if pause.callee else function
    return f"`{name}` ({place})" if name else f"Work in {place}"


def _count(a_step: float) -> str:
    return f"{a_step:,.0f}" if a_step >= 100 else f"{a_step:.3g}"


def _evidence(pause: PythonPause, steps: Steps) -> tuple[Evidence, ...]:
    ns, often = pause.idle_ns, pause.gaps / steps.count
    many = pause.callee.calls if pause.callee else 0
    calls = f" ({_count(many)} calls)" * (many > 1)
    stalls = f"{_what(pause)} stalls the {'training' if pause.on_cpu else 'GPU'} {ms(ns)}/step"
    gaps = f"{_count(often)} gap{'s' * (often != 1)} of {ms(pause.each_ns)}{calls}"
    parts = (
        ("of this waits in the operating system", pause.waiting_ns),
        ("more goes to garbage collection", pause.collecting_ns),
    )
    return (
        Evidence(f"{stalls}, in {gaps}.", ns, "ns"),
        *(Evidence(f"{ms(part_ns)}/step {what}.", part_ns, "ns") for what, part_ns in parts if part_ns),
    )


EXAMPLES = [
    # another thread computes as well: what the training's own does is recorded
    Fires("""
        4 steps of 100
        2 threads, 4 cores
        rival watch 0.7
        cpu  aten::mm 0-40 | "train.py(21): main" 40-100 | "torch/utils/tensorboard/writer.py(9): add_histogram" 40-90
        cpu  aten::mm 90-100
    """),
    Fires(  # 99 ms of Python a step: a fifth to all of it can go, until the GPU's 20 ms limit it
        """
        4 steps of 100
        cpu  "train.py(30): make_mask" 0-99 | aten::mm 40-41
        gpu  sgemm 40.02-60 @40.01
        """,
        saving_ms=(19.8, 80),
    ),
    # the device waits for 40 ms of a call that asks for an op itself
    Fires("""
        4 steps of 100
        cpu  aten::mm 0-1 | "train.py(9): main" 2-100 | "wandb/sdk/run.py(70): log" 40-80 | aten::mm 80-81
        gpu  sgemm 1-40 @0.5 | sgemm 80.5-100 @80.2
    """),
    # while the GPU works
    Silent("""
        4 steps of 100
        cpu  aten::mm 0-1 | "train.py(30): make_mask" 2-40 | sync 42-99.51
        gpu  sgemm 0.02-99.5 @0.01
    """),
    CannotTell("4 steps of 100\ngpu  sgemm 40.5-99.9 @40.2", because="ProfilerActivity.CPU"),
]
