"""Another Python thread holds the GIL.

Python runs one thread at a time. While another thread computes in Python, the training thread waits for the GIL each
time an op returns.

Why it costs
    A thread holds the GIL for 5 ms at a time. C calls that do not release it, as in writing JSON or sorting, hold it
    longer. No op starts in that time.
How to fix
    Move that work to another process, or do less of it. Reading from disk or network is fine in a thread. Replace
    `torch.nn.DataParallel`, which launches for all GPUs from threads of one process, by `DistributedDataParallel`.
Ignore when
    the thread computes in libraries that release the GIL, as NumPy does in large operations.
Sources
    https://docs.python.org/3/library/sys.html#sys.setswitchinterval
"""

from diagnose.facts.host.process import CompetingThreads
from diagnose.facts.host.python import PythonPause
from diagnose.rulekit.vocabulary import *

PAUSED_SHARE = 0.01  # of the step in pauses between ops, long ones on a CPU (our choice)
LEFT = Between(0.5, 0.05, 0.0)  # of these pauses: some may be the training's own (our choice)
PROCESS = Fix(
    "Move that thread's work to another process.",
    after="multiprocessing.Process(target=watch)  # in place of threading.Thread",
    effort=2,
    link="https://docs.python.org/3/library/multiprocessing.html",
)


@rule("LB06")
def gil_contention(
    competing_threads: CompetingThreads, python_pauses: tuple[PythonPause, ...], steps: Steps
) -> Verdicts:
    pauses = [pause for pause in python_pauses if not (pause.is_work and pause.is_usual)]  # that is host_work's
    paused = sum(pause.idle_ns for pause in pauses)
    pausing = f"{percent(competing_threads.share)} of the time; the training pauses {ms(paused)}/step between ops"
    if not competing_threads.busy or paused < PAUSED_SHARE * steps.mean_ns:
        yield Clean(f"other Python threads compute {pausing}")
        return
    text = f"Python threads, mainly {competing_threads.names[0]!r}, compute {pausing}."
    yield Finding(
        evidence=(Evidence(text, competing_threads.share, "cores"),),
        edits=tuple(Shorten(Times(*times), LEFT) for pause in pauses for times in pause.times),
        fixes=(PROCESS,),
        confidence=Confidence(Level.LOW, "whether the thread releases the GIL while it computes is not recorded"),
        basis=Basis.RULE_OF_THUMB,
        host_bound=True,
        after=frozenset({"LB10"}),  # lines whose time is recorded
    )


EXAMPLES = [
    # 20 of 100 ms
    Fires("4 steps of 100\n2 threads, 4 cores\nrival watch 0.7\ncpu  aten::mm 0-40 | aten::mm 50-90"),
    # the training's own thread is at a line whose time is recorded
    Silent("""
        4 steps of 100
        2 threads, 4 cores
        rival watch 0.7
        cpu  aten::mm 0-40 | "train.py(21): main" 40-100 | "torch/utils/tensorboard/writer.py(9): add_histogram" 40-90
        cpu  aten::mm 90-100
    """),
    # the thread hardly computes
    Silent("4 steps of 100\n2 threads, 4 cores\nrival watch 0.02\ncpu  aten::mm 0-40 | aten::mm 50-90"),
    CannotTell("4 steps of 100\ncpu  aten::mm 0-40 | aten::mm 50-90", because="DataLoader options"),
]
