"""More CPU threads are running than there are cores.

OMP_NUM_THREADS or torch.set_num_threads is too high, or several processes share the machine. A container often has
fewer cores than the machine reports.

Why it costs
    The threads of a large op wait for each other at its end. Waiting threads spin and take cores from those that still
    compute.
How to fix
    Give each process as many threads as it has cores.
Ignore when
    the other processes are idle.
Sources
    https://docs.pytorch.org/docs/stable/notes/multiprocessing.html
    https://docs.pytorch.org/tutorials/recipes/recipes/tuning_guide.html
"""

from diagnose.facts.data.loading import Loading
from diagnose.facts.host.process import CpuThreads
from diagnose.rulekit.vocabulary import *

TIMES = 1.5  # threads for each core: a few more do little harm (our choice)
LEAST = 0.25  # of the share that is left if ops take as often longer as there are more threads (our choice)


@rule("DL04")
def cpu_oversubscription(cpu_threads: CpuThreads | None, loading: Loading | None = None) -> Verdicts:
    found = cpu_threads
    if found is None:
        yield NotApplicable("the training does not compute on the CPU")
    elif found.threads <= TIMES * found.cpus:
        yield Clean(f"{found.threads} threads for {found.cpus} cores")
    else:
        cores = found.cpus if loading is None else loading.model.cores_left
        left = cores / found.threads
        text = f"{found.threads} threads per process on {found.cpus} cores; ops take {ms(found.ops_ns)}/step."
        yield Finding(
            evidence=(Evidence(text, found.threads),),
            edits=(Shorten(found.op_ids, Between(1.0, left, LEAST * left)),),
            fixes=(
                Fix.of(
                    fixes.Threads(value=cores),
                    before=f"torch.set_num_threads({found.threads})",
                    after=f"torch.set_num_threads({cores})",
                ),
            ),
            confidence=Confidence(Level.MEDIUM, "how long threads spin is not recorded"),
            basis=Basis.RULE_OF_THUMB,
            host_bound=True,
        )


EXAMPLES = [
    # 80 ms of ops with four threads for each core
    Fires("4 steps of 100\n8 threads, 2 cores\ncpu  aten::mm 0-80", saving_ms=(0, 75)),
    # one thread for each core
    Silent("4 steps of 100\n2 threads, 2 cores\ncpu  aten::mm 0-80"),
    # the GPU computes
    Silent("4 steps of 100\n8 threads, 2 cores\ncpu  aten::mm 0-80\ngpu  sgemm 1-90 @0.5"),
    # a trace alone says nothing of cores
    CannotTell("4 steps of 100\ncpu  aten::mm 0-80", because="DataLoader options"),
]
