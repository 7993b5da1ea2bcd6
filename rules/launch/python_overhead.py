"""Host-bound: Python between ops stalls the GPU.

The launching thread runs Python, in modules, hooks or unrecorded lines, until the GPU is out of work. LB10 finds slow
lines of your own.

Why it costs
    The GPU idles until Python launches the next op.
How to fix
    `torch.compile` runs less Python; so do fewer and larger modules. If no line is shown, record with stacks.
Ignore when
    the recording has call stacks: they slow Python down, so compare with a recording without them.
Sources
    https://docs.pytorch.org/tutorials/recipes/recipes/tuning_guide.html
"""

from diagnose.facts.host.compiling import Compiling
from diagnose.facts.host.process import CompetingThreads
from diagnose.facts.host.python import SHORT_NS, PythonPause
from diagnose.facts.run.quality import Distortion
from diagnose.rulekit.vocabulary import *

WORTH_SHARE = 0.01  # of the step idle for Python, all places together (our choice)
PLACE_SHARE = 0.01  # at one place, to be named by itself (our choice)
GAPS = 3  # in the used steps: one or two may be start-up, not a loop (our choice)
AGAIN = "Record three steps or more."
LEFT = Between(0.8, 0.3, 0.1)  # of calls of modules and hooks: compiled code runs few of them (our choice)
LEFT_OF_WORK = Between(0.8, 0.1, 0.0)  # of a long pause, which is a piece of work: planted ones went as a whole

COMPILE = Fix.of(fixes.Compile(), "Compile the model, or call fewer and larger modules.")
LARGER_PIECES = Fix(
    "Compile a larger part of the model, and remove graph breaks.",
    after="TORCH_LOGS=graph_breaks python train.py",
    safety=Safety.ROUNDING,
    link="https://docs.pytorch.org/docs/stable/torch.compiler.html",
)


@rule("LB02")
def python_overhead(
    python_pauses: tuple[PythonPause, ...],
    distortion: Distortion,
    steps: Steps,
    competing_threads: CompetingThreads | None = None,
    compiling: Compiling | None = None,
) -> Verdicts:
    if competing_threads and competing_threads.busy:
        share = percent(competing_threads.share)
        yield NotApplicable(f"{competing_threads.names[0]!r} and other threads compute for {share} of the time")
        return
    pauses = [pause for pause in python_pauses if pause.is_usual and not pause.is_work]
    usual = [pause for pause in pauses if pause.site is None or not pause.on_cpu]
    total = sum(pause.share for pause in usual)
    if total >= WORTH_SHARE and steps.count == 1 and sum(pause.gaps for pause in usual) < GAPS:
        raise Missing(f"whether Python between ops ({percent(total)} of the step) recurs", AGAIN)
    if total < WORTH_SHARE:
        yield Clean(f"recurring Python between ops takes {percent(total)} of the step")
        return
    for pause in [pause for pause in usual if pause.share >= PLACE_SHARE] or usual:
        ns, often = pause.idle_ns, pause.gaps / steps.count
        calls = pause.site is not None or (pause.each_ns < SHORT_NS and not pause.on_cpu)
        left = LEFT if calls else LEFT_OF_WORK
        outside = " outside your files" * ("stacks" in distortion.options)
        where = f" in `{pause.site.function}`" if pause.site else outside
        waits = f"; {ms(pause.waiting_ns)}/step is waiting in the operating system" * bool(pause.waiting_ns)
        gaps = f"{often:,.3g} gap{'s' * (often != 1)}"
        idle = "No op runs for" if pause.on_cpu else "The GPU idles"
        yield Finding(
            title="Host-bound: Python runs between ops" if pause.on_cpu else "",
            evidence=(
                Evidence(f"{idle} {ms(ns)}/step while Python runs between ops{where}.", ns, "ns"),
                Evidence(f"{gaps} of {ms(pause.each_ns)} per step{waits}.", pause.each_ns, "ns"),
            ),
            edits=tuple(Shorten(Times(*time), left) for time in pause.times),
            fixes=(
                (LARGER_PIECES if compiling is not None and compiling.used else COMPILE)
                if calls
                else Fix("Zoom into these gaps in the HTML timeline (--html).")
                if where
                else Fix("Record once with stacks, to see which lines run.", after="profile(with_stack=True)"),
            ),
            confidence=Confidence(Level.MEDIUM, "how much of this Python can go is not recorded")
            if pause.site and pause.gaps >= GAPS
            else Confidence(Level.LOW, "no source line was found")
            if pause.gaps >= GAPS
            else Confidence(Level.LOW, "few gaps were recorded: it may be start-up"),
            site=pause.site,
            kind=Kind.OPTION if calls else Kind.WHERE_TO_LOOK,
            basis=Basis.RULE_OF_THUMB,
            host_bound=True,
        )


EXAMPLES = [
    Fires(  # 3.62 ms in 38 pauses: a fifth to nine tenths go
        """
        4 steps of 4
        cpu  aten::mm 0.1-0.11 x38 every 0.1
        gpu  sgemm 0.106-0.107 @0.105 x38 every 0.1
        """,
        saving_ms=(0.724, 3.258),
    ),
    # while the GPU works
    Silent("""
        4 steps of 100
        cpu  aten::mm 0-1 | "train.py(30): make_mask" 2-40 | sync 42-99.51
        gpu  sgemm 0.02-99.5 @0.01
    """),
    CannotTell("4 steps of 100\ngpu  sgemm 40.5-99.9 @40.2", because="ProfilerActivity.CPU"),
]
