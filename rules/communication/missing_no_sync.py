"""Gradients are reduced after every micro-batch (no no_sync()).

The script accumulates gradients over several backward passes before the optimizer steps. DistributedDataParallel
reduces them after each pass, though only the sum of all passes is used.

Why it costs
    Each reduction carries all gradients. All but the last before the optimizer step are unnecessary.
How to fix
    Run all passes but the last, forward and backward, under `no_sync()`. Accelerate's `accumulate()` and Lightning's
    `accumulate_grad_batches` do so.
Ignore when
    the passes are of different models, or the script reads the gradients between passes.
Sources
    https://docs.pytorch.org/docs/stable/generated/torch.nn.parallel.DistributedDataParallel.html
"""

from diagnose.facts.communication.ddp import Accumulation
from diagnose.rulekit.vocabulary import *

WAITS_LEFT = Between(0.6, 0.3, 0.0)  # of the waiting for these collectives: ranks that differ meet later (our choice)
NO_SYNC = Fix.of(fixes.NoSync())


@rule("CO04")
def missing_no_sync(accumulation: Accumulation) -> Verdicts:
    rounds = accumulation.rounds
    if not rounds:
        yield NotApplicable("DistributedDataParallel reduces no gradients")
    elif rounds < 2 or not accumulation.alike:
        yield Clean(f"{rounds} gradient reductions per optimizer step, none repeated")
    else:
        text = f"{rounds} gradient reductions per optimizer step: all but the last take {ms(accumulation.ns)}/step."
        yield Finding(
            evidence=(Evidence(text, rounds, "reductions"),),
            edits=(
                Remove(accumulation.op_ids),
                Remove(accumulation.ids),
                Shorten(Times(accumulation.track, accumulation.waits), WAITS_LEFT),
            ),
            fixes=(NO_SYNC,),
            confidence=Confidence(Level.MEDIUM, "all passes reduce equally often; the intent is not recorded"),
        )


EXAMPLES = [
    Fires(  # two reductions of 30 ms, which end before the step does
        """
        4 steps of 100
        cpu     DistributedDataParallel.forward 0-1 | MmBackward0 1-2 | c10d::allreduce_ 2-2.1
        cpu     DistributedDataParallel.forward 3-4 | MmBackward0 4-5 | c10d::allreduce_ 5-5.1
        cpu     optimizer 6-7 | device_sync 8-99.9
        gpu     sgemm 1.1-20 @1.05 | sgemm 50.01-69 @4.05
        gpu 20  allreduce 20.01-50 @2.05 | allreduce 69.01-99 @5.05
        """,
        saving_ms=(30, 30),
    ),
    # one reduction for two passes
    Silent("""
        4 steps of 100
        cpu     DistributedDataParallel.forward 0-1 | MmBackward0 1-2
        cpu     DistributedDataParallel.forward 3-4 | MmBackward0 4-5 | c10d::allreduce_ 5-5.1
        cpu     optimizer 6-7 | device_sync 8-99.9
        gpu     sgemm 1.1-20 @1.05 | sgemm 20.01-69 @4.05
        gpu 20  allreduce 69.01-99 @5.05
    """),
    CannotTell("gpu 20  allreduce 20-50", because="framework ops"),
]
