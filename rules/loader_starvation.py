"""Loader workers do not keep up.

Worker processes make the batches, and still the training finds none ready when it asks.

Why it costs
    While the next batch is made, nothing can be launched, and the GPU runs dry.

How to fix
    More workers, up to the cores there are for each GPU; a deeper queue if only some batches are late; cheaper
    transforms.

Ignore when
    the loop waits on purpose, as for an environment or a rate limit.

Sources
    https://docs.pytorch.org/docs/stable/data.html
    https://arxiv.org/abs/2007.06775
"""

from diagnose.rule import (
    Between,
    Clean,
    Confidence,
    Evidence,
    Fetches,
    Finding,
    Fires,
    Fix,
    Input,
    Level,
    Move,
    NotApplicable,
    Safety,
    Silent,
    Steps,
    Verdicts,
    WaitPattern,
    ms,
    percent,
    rule,
)  # fmt: skip

WORTH_SHARE = 0.05  # of the step waiting for batches (TensorBoard's threshold)
FASTER = Between(
    1.25, 2.0, 1e6
)  # how much faster the workers get: with a quarter more, twice as many, or enough of them


@rule("DL02")
def loader_starvation(fetches: Fetches, input_wait: Input, steps: Steps) -> Verdicts:
    waited = input_wait.host_ns if input_wait.exposed_ns is None else input_wait.exposed_ns
    if fetches.in_process is not False:
        yield NotApplicable("no worker processes load")
    elif waited < WORTH_SHARE * steps.mean_ns:
        yield Clean(f"the training waits {ms(waited)} a step for batches, {percent(waited / steps.mean_ns)}")
    else:
        why = {
            WaitPattern.PERIODIC: f"Every {fetches.every} batches one is late: each worker is too slow.",
            WaitPattern.HEAVY_TAIL: "Few batches are very late: storage or another pause, rather than too few workers.",
            WaitPattern.UNIFORM: "All batches are late alike.",
            None: "",
        }[fetches.pattern]
        who = "The training" if input_wait.exposed_ns is None else "The GPU"
        yield Finding(
            evidence=(
                Evidence(
                    f"{who} waits {ms(waited)} a step for batches from worker processes. {why}".strip(), waited, "ns"
                ),
            ),
            edits=(Move(fetches.ids[~fetches.first], FASTER, fetches.ready_ns),),
            fixes=(
                Fix(
                    "Raise the number of workers, up to the cores there are for this GPU.",
                    before="DataLoader(dataset, batch_size, num_workers=2)",
                    after="DataLoader(dataset, batch_size, num_workers=8, prefetch_factor=4, persistent_workers=True)",
                    safety=Safety.SAME_NUMBERS,
                    link="https://docs.pytorch.org/docs/stable/data.html",
                    trial="patch:DataLoader(num_workers=8)",
                ),
            ),
            confidence=Confidence(Level.MEDIUM, "the waits are recorded; how the workers scale is not"),
        )


EXAMPLES = [
    Fires(  # a batch every 100 ms, of which the GPU computes 40
        """
        5 steps of 100
        cpu  next 0-60
        gpu  sgemm 60.01-100 @60
        """
    ),
    Silent(
        """
        5 steps of 100
        cpu  next 0-0.4 | sync 1-99.51
        gpu  sgemm 0.51-99.5 @0.5
        """
    ),
    Silent(  # this process loads
        """
        5 steps of 100
        cpu  load 0-60
        gpu  sgemm 60.01-100 @60
        """
    ),
]
