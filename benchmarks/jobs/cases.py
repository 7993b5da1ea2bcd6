"""Jobs of sample_traces/jobs with a fault, and healthy ones."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.planted_cases import REMADE, SAMPLES

FOLDER = SAMPLES / "jobs"


@dataclass(frozen=True)
class Case:
    """A job with a fault, or a healthy one."""

    name: str
    kind: str
    """Of the job, as sample_traces.jobs.run knows it."""
    ranks: int
    title: str
    """What is planted."""
    bad: str = ""
    """Options of the job as recorded."""
    fixed: str = ""
    """Options without the fault."""
    rules: tuple[str, ...] = ()
    """Codes of rules any of which names the fault. Empty: the job is healthy."""
    says: str = ""
    """What else the title of a finding that names it has: the rank, or which of a rule's faults it is."""
    steps: int = 4
    """Recorded. Fewer where a step has many ops."""

    @property
    def healthy(self) -> bool:
        """Whether nothing is planted."""
        return not self.rules

    @property
    def kept(self) -> Path:
        """Where its recording is, if the repository keeps it."""
        return FOLDER / self.name

    @property
    def recording(self) -> Path:
        """Where its recording is: kept, or made on this machine."""
        return self.kept if self.kept.is_dir() else REMADE / "jobs" / self.name

    def arguments(self, fixed: bool) -> Sequence[str]:
        """Of sample_traces.jobs.run, without the number of steps."""
        return [self.kind, *(self.fixed if fixed else self.bad).split()]


CASES = (
    Case(
        "slow_device",
        "data_parallel",
        4,
        "DDP: one device is twice as slow",
        "slow=2",
        "",
        ("ST01",),
        says="Rank 3",
    ),
    Case(
        "more_samples",
        "data_parallel",
        4,
        "DDP: one rank gets 20 samples, the others 8",
        "samples=(8,8,8,20)",
        "samples=(11,11,11,11)",
        ("ST01",),
        says="Rank 3",
    ),
    Case(
        "slow_in_turn",
        "data_parallel",
        3,
        "DDP: in turn, one rank computes 2.5 times as long",
        "in_turn=2.5",
        "ms=6",
        ("ST02",),
    ),
    Case(
        "slow_loader",
        "data_parallel",
        3,
        "DDP: one rank loads 50 ms a batch, the others 10 ms",
        "load=10 slow_load=5",
        "load=10",
        ("ST01", "ST03", "DL02"),
    ),
    Case(
        "logging_rank",
        "data_parallel",
        3,
        "DDP: rank 0 logs to a slow server",
        "logging=50",
        "",
        ("ST01", "LB02", "LB10"),
    ),
    Case(
        "saving_rank",
        "data_parallel",
        3,
        "DDP: rank 0 saves the model in every step",
        "saving=40",
        "",
        ("ST01", "PA01"),
    ),
    Case(
        "collecting_rank",
        "data_parallel",
        2,
        "DDP: rank 0 runs gc.collect() in every step",
        "garbage=400_000",
        "",
        ("ST01", "PA02"),
    ),
    Case(
        "reduced_every_batch",
        "accumulation",
        2,
        "DDP: gradients of 4 micro-batches without no_sync()",
        "",
        "no_sync=True",
        ("CO04",),
        steps=3,
    ),
    Case(
        "fp32_wire",
        "slow_wire",
        2,
        "DDP: fp32 gradients on a slow wire",
        "ms_per_mb=60",
        "ms_per_mb=60 half=True",
        ("CO07",),
    ),
    Case(
        "replicated_optimizer",
        "replicated_optimizer",
        4,
        "DDP: every rank updates all parameters",
        "",
        "zero=True",
        ("OP03",),
        steps=3,
    ),
    Case(
        "recomputed_blocks",
        "recompute",
        2,
        "DDP: every layer is computed again in the backward pass",
        "",
        "every=0",
        ("ME04",),
        steps=3,
    ),
    Case(
        "resharded",
        "sharded",
        2,
        "FSDP2: parameters are gathered again for the backward pass",
        "",
        "reshard=False",
        ("CO09",),
        says="again",
        steps=3,
    ),
    Case(
        "sharded_finely",
        "sharded_finely",
        2,
        "FSDP2: each small layer is a unit",
        "",
        "fine=False",
        ("CO09", "CO06"),
        steps=3,
    ),
    Case(
        "scattered_every_batch",
        "sharded",
        2,
        "FSDP2: gradients of 3 micro-batches are reduced each time",
        "batches=3 layers=2 width=768 ms=2 reshard=False",
        "batches=3 layers=2 width=768 ms=2 reshard=False sync_last=True",
        ("CO09", "CO04"),
        steps=3,
    ),
    Case(
        "slow_tensor_rank",
        "tensor_parallel",
        3,
        "TP: one device is 1.8 times as slow",
        "slow=1.8",
        "",
        ("ST01",),
        says="Rank 2",
        steps=3,
    ),
    Case(
        "uneven_stages",
        "pipeline",
        3,
        "1F1B: stages of 2, 1 and 3 layers",
        "split=(2,1,3) ms=24",
        "split=(2,2,2) ms=24",
        ("CO12",),
        says="computes longer",
        steps=3,
    ),
    Case(
        "few_micro_batches",
        "pipeline",
        3,
        "1F1B: 3 micro-batches for 3 stages",
        "batches=3 ms=30",
        "batches=8 ms=30",
        ("CO12",),
        says="micro-batches",
        steps=3,
    ),
    Case(
        "loading_stage",
        "pipeline",
        3,
        "1F1B: the first stage loads for 60 ms in every step",
        "load=60",
        "",
        ("ST01", "ST03", "DL02"),
        steps=3,
    ),
    Case(
        "slow_replica",
        "pipeline_of_replicas",
        4,
        "PP x DP: one device is 1.8 times as slow",
        "slow=1.8 ms=14",
        "ms=14",
        ("ST01",),
        says="Rank 3",
        steps=3,
    ),
    Case(
        "uneven_experts",
        "experts",
        4,
        "MoE: half of the tokens go to one of 4 experts",
        "first=0.5",
        "",
        ("CO13",),
        says="Rank 0",
        steps=3,
    ),
    Case("healthy_ddp", "data_parallel", 4, "DDP"),
    Case("healthy_fsdp", "sharded", 2, "FSDP2", "width=128 ms=12 reshard=False layers=3", steps=3),
    Case("healthy_tensor", "tensor_parallel", 2, "TP", "ms=16 layers=2", steps=3),
    Case(
        "healthy_pipeline",
        "pipeline",
        2,
        "1F1B: 12 micro-batches for 2 stages",
        "split=(1,1) batches=12 ms=60",
        steps=3,
    ),
    Case("healthy_experts", "experts", 3, "MoE", "us=100", steps=3),
    Case(
        "healthy_replicas",
        "pipeline_of_replicas",
        4,
        "PP x DP: 10 micro-batches for 2 stages",
        "batches=10 ms=30",
        steps=3,
    ),
    Case("healthy_zero", "replicated_optimizer", 4, "DDP with a sharded optimizer", "zero=True layers=4 ms=8", steps=3),
)
