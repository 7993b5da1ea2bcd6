"""Jobs with one fault, and healthy ones of each kind. A fault's truth is the same job without it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from benchmarks.simulated_jobs.layout import Layout
from benchmarks.simulated_jobs.model import Model
from benchmarks.simulated_jobs.training import Training


@dataclass(frozen=True)
class Case:
    """A job as it should be, and what is changed for the worse."""

    name: str
    family: str
    good: Training
    fault: Mapping[str, Any] = field(default_factory=dict)  # Fields of Training; none of a healthy job.
    codes: tuple[str, ...] = ()  # Rules whose advice mends it.
    says: str = ""  # What else the title has of a finding by the first of these rules, which has several kinds.
    recorded: int = 3  # Steps.

    @property
    def bad(self) -> Training:
        """With the fault."""
        return replace(self.good, **self.fault)

    def followed(self, code: str) -> Training | None:
        """The job after the advice of a rule; None where that cannot be simulated."""
        if code != "CO12" or self.bad.micro < 2:
            return None
        model = replace(self.bad.model, tokens=self.bad.model.tokens // 2)
        return replace(self.bad, micro=2 * self.bad.micro, model=model)


SMALL = Model(blocks=3)
WIDE = Model(hidden=8_192, blocks=2, tokens=4_096)
TALL = Model(blocks=8, tokens=4_096, vocabulary=1_024)
DDP = Training(Layout({"dp": 8}), SMALL)
FSDP = Training(Layout({"dp": 8}), replace(SMALL, blocks=5), "fsdp")
HYBRID = Training(Layout({"dp_replicate": 2, "dp_shard": 4}, gpus=4), SMALL, "fsdp")
SPLIT = Training(Layout({"dp": 4, "tp": 2}), WIDE)
STAGES = Training(Layout({"pp": 4, "dp": 2}), TALL, micro=8, schedule="1f1b")
LONG = Training(Layout({"pp": 8}), TALL, "none", 8, "1f1b")
GPIPE = replace(STAGES, schedule="gpipe")
INTERLEAVED = replace(STAGES, schedule="interleaved", stages_each=2)
EXPERTS = Training(Layout({"ep": 8}), Model(hidden=4_096, blocks=3, tokens=4_096), "none", experts=True)
CUBE_MODEL = Model(hidden=4_096, blocks=4, tokens=4_096, vocabulary=1_024)
CUBE = Training(Layout({"dp": 2, "pp": 2, "tp": 2}), CUBE_MODEL, "ddp", 4, "1f1b")
NETWORK = Layout({"dp": 8}, gpus=4, nic_gb_s=6.0)  # Two hosts with cards of 50 Gb/s.


def cases() -> Sequence[Case]:
    """All of them."""
    return (*_ranks(), *_links(), *_pipelines(), *_shards(), *_experts(), *_gradients(), *_healthy())


def _ranks() -> list[Case]:
    family = "one rank holds up the others"
    hot = {"slow_devices": {5: 1.3}}
    loads, pauses = {"loads_ms": {2: 25.0}}, {"pauses_ms": {6: 20.0}}
    late = ("ST03", "ST01", "DL02", "LB02", "LB10", "PA01", "PA02", "PA03")
    return [
        Case("ddp_slow_device", family, DDP, hot, ("ST01",)),
        Case("fsdp_slow_device", family, FSDP, hot, ("ST01",)),
        Case("hybrid_slow_device", family, HYBRID, hot, ("ST01",)),
        Case("split_slow_device", family, SPLIT, hot, ("ST01",)),
        Case("stages_slow_device", family, STAGES, hot, ("ST01",)),
        Case("interleaved_slow_device", family, INTERLEAVED, hot, ("ST01",)),
        Case("cube_slow_device", family, CUBE, hot, ("ST01",)),
        Case("ddp_slow_loader", family, DDP, loads, late),
        Case("fsdp_pauses_of_python", family, FSDP, pauses, late),
        Case("stages_slow_loader", family, STAGES, {"loads_ms": {0: 25.0}}, late),
        Case("ddp_slow_host", family, DDP, {"slow_hosts": {3: 25.0}}, ("ST01", "ST03", "LB01", "LB02", "LB10", "MQ06")),
        Case("ddp_uneven_batches", family, DDP, {"skew": 0.5}, ("ST02",), recorded=8),
    ]


def _links() -> list[Case]:
    family = "links"
    apart = replace(DDP, layout=Layout({"dp": 8}, gpus=4))
    wide = replace(
        SPLIT,
        layout=Layout({"dp": 2, "tp": 4}, gpus=4, nic_gb_s=12.0),
        model=Model(hidden=4_096, blocks=2, tokens=8_192),
        micro=3,
    )
    return [
        Case(
            "slow_link_of_a_host",
            family,
            apart,
            {"layout": replace(apart.layout, slow={1: 0.1})},
            ("ST04", "CO08", "CO01"),
        ),
        Case(
            "split_over_hosts",
            family,
            wide,
            {"layout": Layout({"tp": 4, "dp": 2}, gpus=4, nic_gb_s=12.0)},
            ("CO11", "CO21", "CO08"),
        ),
        Case(
            "experts_over_hosts",
            family,
            replace(EXPERTS, layout=Layout({"dp": 2, "ep": 4}, gpus=4, nic_gb_s=20.0)),
            {"layout": Layout({"ep": 4, "dp": 2}, gpus=4, nic_gb_s=20.0)},
            ("CO13", "CO21", "CO08"),
        ),
    ]


def _pipelines() -> list[Case]:
    family = "pipelines"
    return [
        Case("stages_uneven", family, STAGES, {"blocks_of_stages": (2, 1, 4, 1)}, ("CO12",)),
        Case("gpipe_uneven", family, GPIPE, {"blocks_of_stages": (2, 4, 1, 1)}, ("CO12",)),
        Case("long_uneven", family, LONG, {"blocks_of_stages": (1, 1, 1, 2, 1, 1, 1, 0)}, ("CO12",)),
        _few("stages_few_micro_batches", STAGES),
        _few("gpipe_few_micro_batches", GPIPE),
    ]


def _few(name: str, good: Training) -> Case:
    model = replace(good.model, tokens=2 * good.model.tokens)
    return Case(name, "pipelines", good, {"micro": good.micro // 2, "model": model}, ("CO12",))


def _shards() -> list[Case]:
    family = "sharding"
    synced = replace(FSDP, synchronises_blocks=True, prefetch=True, layout=replace(NETWORK, nic_gb_s=15.0))
    slow = replace(FSDP, layout=replace(NETWORK, nic_gb_s=12.0), model=replace(FSDP.model, tokens=16_384))
    return [
        Case("gathers_not_prefetched", family, synced, {"prefetch": False}, ("CO09", "SY01")),
        Case("one_unit", family, FSDP, {"unit": "model"}, ("CO09",)),
        Case(
            "units_of_single_layers",
            family,
            replace(slow, model=FSDP.model),
            {"unit": "linear"},
            ("CO09", "CO06"),
            says="begin too late",
        ),
        Case(
            "sharded_without_need", family, replace(FSDP, layout=NETWORK, reshard=False), {"reshard": True}, ("CO09",)
        ),
        Case(
            "sharded_over_hosts",
            family,
            replace(FSDP, layout=Layout({"dp_replicate": 2, "dp_shard": 4}, gpus=4, nic_gb_s=6.0)),
            {"layout": NETWORK},
            ("CO09",),
        ),
        Case(
            "gradients_scattered_each_time",
            family,
            replace(slow, micro=4),
            {"no_sync": False},
            ("CO09",),
            says="micro-batch",
        ),
        Case(
            "optimizer_on_all_ranks",
            family,
            replace(DDP, sharded_optimizer=True, model=replace(SMALL, tokens=2_048)),
            {"sharded_optimizer": False},
            ("OP03",),
        ),
        Case("recompute", family, DDP, {"recompute": True}, ("ME02", "ME04")),
    ]


def _experts() -> list[Case]:
    family = "experts"
    return [Case("experts_uneven", family, EXPERTS, {"hot_share": 0.15}, ("CO13", "ST01"))]


def _gradients() -> list[Case]:
    family = "gradients"
    network = replace(DDP, layout=replace(NETWORK, nic_gb_s=20.0), micro=4, model=replace(SMALL, tokens=4_096))
    return [
        Case("reduced_each_time", family, network, {"no_sync": False}, ("CO04",)),
        Case("reduced_by_hand", family, DDP, {"parallel": "by_hand"}, ("CO01", "CO19", "CO06")),
    ]


def _healthy() -> list[Case]:
    family = "healthy"
    late = {rank: 90.0 * (rank % 3) for rank in range(64)}
    clocks = {host: 7.0 * host for host in range(16)}
    odd: dict[str, Any] = {"starts_late_ms": late, "clocks_ms": clocks}
    two = Layout({"dp": 8}, gpus=4)
    older: dict[str, Any] = {"numbers_kept": False, "coalesces_all": True}
    jobs = {
        "ddp": DDP,
        "ddp_on_two_hosts_started_late": replace(DDP, layout=two, **odd),
        "ddp_with_a_second_group": replace(DDP, second_group=True, numbers_kept=False),
        "fsdp": FSDP,
        "fsdp_started_late": replace(FSDP, layout=two, **odd),
        "hybrid_started_late": replace(HYBRID, **odd),
        "split": SPLIT,
        "stages": replace(STAGES, micro=12),
        "stages_older": replace(STAGES, micro=12, **older),
        "stages_on_hosts_started_late": replace(STAGES, micro=12, layout=replace(STAGES.layout, gpus=2), **odd),
        "gpipe": replace(GPIPE, micro=12),
        "interleaved": replace(INTERLEAVED, micro=8),
        "interleaved_older": replace(INTERLEAVED, micro=8, **older),
        "long": replace(LONG, micro=16),
        "experts": EXPERTS,
        "experts_started_late": replace(EXPERTS, layout=Layout({"ep": 8}, gpus=4), **odd),
        "cube": replace(CUBE, micro=8),
        "cube_of_32_started_late": replace(CUBE, layout=Layout({"dp": 4, "pp": 4, "tp": 2}), micro=4, **odd),
    }
    return [Case(name, family, job, recorded=3) for name, job in jobs.items()]
