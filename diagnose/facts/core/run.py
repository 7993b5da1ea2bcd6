"""What is known of the run besides its trace, where `diagnose profile` recorded it."""

from diagnose.facts.core.base import Facts, Missing, fact, once, optional
from diagnose.facts.core.device import device_work
from diagnose.trace.manifest import RankManifest
from diagnose.trace.model import Context

HOW = "Record with diagnose profile, and analyse the recording's folder."


def context(facts: Facts) -> Context:
    """All that is known besides the trace. Raises Missing if that is nothing."""
    if facts.rank.context is None:
        raise Missing("environment variables and DataLoader options", HOW)
    return facts.rank.context


@fact
def manifest(facts: Facts) -> RankManifest:
    """What the process knew of itself: settings, loaders, optimizers, step times. Raises Missing if that is nothing."""
    return context(facts).rank


def marked_ranges(facts: Facts) -> tuple[str, ...]:
    """Values of `Activity` that the recorder marks with a range whenever they happen; () if that is not known."""
    return () if facts.rank.context is None else facts.rank.context.rank.marked


@fact
def environment(facts: Facts) -> dict[str, str]:
    """Variables of the run's environment that change speed. Raises Missing if they were not recorded.

    Of variables that `diagnose profile` does not record, such as ROCm's, it cannot say whether they are set.
    """
    if not context(facts).environment:
        raise Missing("the run's environment", HOW)
    return context(facts).environment


@fact
def launch_blocking(facts: Facts) -> bool:
    """Whether CUDA_LAUNCH_BLOCKING was on. Raises Missing like environment, and on ROCm, which has other variables."""
    if facts.rank.provenance.backend == "rocm":
        raise Missing("whether launches block", "Check HIP_LAUNCH_BLOCKING and AMD_SERIALIZE_KERNEL.")
    return environment(facts).get("CUDA_LAUNCH_BLOCKING", "") not in ("", "0")


@once
def trains_on_cpu(facts: Facts) -> bool:
    """Whether the steps are known to use no device: they were timed on the host alone, or torch is built without CUDA.

    Devices other than GPUs of NVIDIA and AMD are neither timed nor recorded: then it is not known.
    """
    run = facts.rank.context
    timed = None if run is None else run.rank.unprofiled
    on_host = timed is not None and timed.device_ns is None
    if run is None or not (on_host or run.versions.get("torch", "").endswith("+cpu")):
        return False
    used = {device for optimizer in run.rank.optimizers for device in optimizer.devices}
    return used <= {"cpu", "meta"} and not len(device_work(facts).ids)


def is_of_no_use(missing: Missing, facts: Facts) -> bool:
    """Whether only a recording of a GPU has what is missing, and the training uses no GPU."""
    return "ProfilerActivity.CUDA" in missing.how_to_record_it and bool(optional(trains_on_cpu, facts))


@once
def busy_share(facts: Facts) -> float:
    """Share of a step in which a training on the CPU keeps a core busy, at most 1; 0 if it is not known to train there.

    In the rest of the step it sleeps or waits for other ranks. 1 in recordings that do not say.
    """
    if not trains_on_cpu(facts):
        return 0.0
    alone = manifest(facts).unprofiled
    busy = None if alone is None else alone.busy_cores
    return 1.0 if busy is None else min(busy, 1.0)
