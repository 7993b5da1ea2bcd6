"""Rules that say more where a manifest tells the run's settings: synthetic traces, with what was known of them."""

from __future__ import annotations

from dataclasses import replace
from math import ceil
from pathlib import Path

import msgspec
import pytest

import diagnose
from diagnose import pipeline
from diagnose.advice.rank_diagnosis import RankDiagnosis
from diagnose.contracts.finding import Confidence, Level, OutcomeKind
from diagnose.facts.core.base import Facts
from diagnose.facts.data.loading import loading
from diagnose.replay.saving import Basis
from diagnose.synthetic import notation as drawings
from diagnose.synthetic.reading import facts_of
from diagnose.trace.frames import Site
from diagnose.trace.manifest import (
    Distributed,
    Epochs,
    Flags,
    Host,
    Loader,
    Made,
    Manifest,
    Optimizer,
    PythonThread,
    RankManifest,
    SampledLine,
    Timed,
)
from diagnose.trace.model import Context
from tests.rules import built_in

MS = 1_000_000
IN_PROCESS = """
    5 steps of 100
    cpu  load 0-60 | aten::mm 60-61
    gpu  sgemm 60.01-99.99 @60
"""
STARVED = IN_PROCESS.replace("load", "next")
BUSY_HOST = """
    4 steps of 10
    cpu  aten::add 0.1-0.109 x1000 every 0.009
    gpu  pointwise 0.107-0.109 @0.1-0.106 x1000 every 0.009
"""


def said(
    rule: str, drawing: str, own: RankManifest, cpus: int | None = None, environment: dict[str, str] | None = None
) -> RankDiagnosis:
    synthetic = facts_of(drawing).rank
    known = Facts(replace(synthetic, context=Context(own, Host(cpus_allowed=cpus), 1, environment or {})))
    return pipeline.present(known, [built_in(rule)])


def timed(ns: int) -> Timed:
    return Timed(first_step=0, wall_ns=(ns,))


def loads(fetch_ms: int, workers: int = 0, **more: float) -> RankManifest:
    return RankManifest(rank=0, loaders=(Loader(dataset="D", fetch_ns=fetch_ms * MS, num_workers=workers, **more),))


def test_workers_enough_are_named() -> None:
    (found,) = said("dataloader_starvation", IN_PROCESS, loads(60), cpus=8).findings
    assert found.evidence[1].text.endswith(": 2 workers would hide loading.")
    assert found.evidence[1].value == 2
    (fix,) = found.fixes
    assert (fix.trial, "num_workers=2" in fix.after) == ("patch:DataLoader(num_workers=2)", True)


def test_no_worker_does_the_work_of_a_sampler() -> None:
    """It takes 55 of the 60 ms until a batch is there."""
    waits = loads(5, wait_ns=60 * MS)
    (outcome,) = said("dataloader_starvation", IN_PROCESS, waits, cpus=8).outcomes
    assert (outcome.outcome, "no worker" in outcome.why) == (OutcomeKind.NOT_APPLICABLE, True)
    (found,) = said("dataloader_items", IN_PROCESS, waits).findings
    assert found.evidence[0].text.startswith(
        "The sampler takes 91.7 % of the 60.0 ms a step until a batch is there: 55.0 ms."
    )
    assert (found.saving.low_ns, found.saving.likely_ns) == (0, pytest.approx(49.5 * MS, rel=0.01))
    assert found.site is None
    begins = Made(file="train.py", line=12, function="__iter__")
    (found,) = said("dataloader_items", IN_PROCESS, loads(5, wait_ns=60 * MS, sampler_at=begins)).findings
    assert found.site == Site("train.py", 12, "__iter__")


@pytest.mark.parametrize(
    "unknown", [loads(5), loads(5, workers=2, wait_ns=60 * MS), loads(5, wait_ns=60 * MS, pin_memory=True)]
)
def test_what_a_sampler_takes_is_not_always_known(unknown: RankManifest) -> None:
    (outcome,) = said("dataloader_items", IN_PROCESS, unknown).outcomes
    assert outcome.outcome is OutcomeKind.CANNOT_TELL


TURN = """
    12 steps of 100
    cpu  next 0-1 not in 6 | "_MultiProcessingDataLoaderIter._shutdown_workers" 62-72 in 5
    cpu  "_MultiProcessingDataLoaderIter.__init__" 0-40 in 6 | next 40-60 in 6 | aten::mm 60-61
    gpu  sgemm 60.5-90 @60.2
"""


def turns(workers: int = 2, **more: int | str | bool) -> RankDiagnosis:
    loader = Loader(dataset="D", fetch_ns=2 * MS, num_workers=workers, batch_size=4, **more)
    return said("dataloader_recreated", TURN, RankManifest(rank=0, world_size=2, loaders=(loader,)))


def test_a_restart_counts_as_often_as_epochs_are_long() -> None:
    """12 batches were asked for, and workers were started once: with 12 to an epoch that is what is usual."""
    (found,) = turns(dataset_length=48).findings
    assert found.evidence[0].text == "Workers were started 1 time while 12 batches were asked for; an epoch has 12."
    assert found.confidence.level is Level.MEDIUM
    (rare,) = turns(dataset_length=480).findings
    assert rare.saving.likely_ns == pytest.approx(found.saving.likely_ns / 10, rel=0.01)
    assert turns(dataset_length=40, drop_last=True).findings[0].saving == found.saving  # More often is not known to be.


@pytest.mark.parametrize(
    ("more", "batches"),
    [
        ({"dataset_length": 49}, 13),
        ({"dataset_length": 49, "drop_last": True}, 12),
        ({"dataset_length": 49, "sampler": "DistributedSampler"}, 7),
        ({"dataset_length": 3, "drop_last": True}, 1),
    ],
)
def test_batches_of_an_epoch(more: dict[str, int | str | bool], batches: int) -> None:
    assert turns(**more).findings[0].evidence[0].text.endswith(f"an epoch has {batches}.")


def test_epochs_of_unknown_length() -> None:
    (found,) = turns().findings
    assert found.evidence[0].text == "Workers were started 1 time while 12 batches were asked for."
    assert found.confidence == Confidence(Level.LOW, "how many steps an epoch has is not known from a few steps")


def test_kept_workers_are_no_fault() -> None:
    assert turns(persistent_workers=True).findings == ()


ON_CPU = """
    5 steps of 100
    cpu  {0} 0-60 | aten::mm 60-100
"""


@pytest.mark.parametrize(
    ("rule", "span", "workers"), [("dataloader_starvation", "load", 0), ("dataloader_starvation", "next", 1)]
)
@pytest.mark.parametrize(
    ("cpus", "threads", "outcome"),
    [
        # Two workers make a batch of 60 ms in 40 while one thread computes: three cores, or six that may be half.
        (6, 1, OutcomeKind.FOUND),
        (5, 1, OutcomeKind.NOT_APPLICABLE),
        (6, 2, OutcomeKind.NOT_APPLICABLE),
        (6, None, OutcomeKind.CANNOT_TELL),
        (None, 1, OutcomeKind.CANNOT_TELL),
    ],
)
def test_a_training_on_the_cpu_needs_its_cores_itself(
    rule: str, span: str, workers: int, cpus: int | None, threads: int | None, outcome: OutcomeKind
) -> None:
    own = msgspec.structs.replace(loads(60, workers=workers), flags=Flags(threads=threads))
    found = said(rule, ON_CPU.format(span), own, cpus)
    if workers or outcome is not OutcomeKind.NOT_APPLICABLE:
        assert found.outcomes[0].outcome is outcome
        assert [finding.fixes[-1].trial is None for finding in found.findings] in ([], [False])
    else:
        assert [finding.title for finding in found.findings] == ["Making batches takes time from computing"]


def test_batches_that_no_worker_can_take_over_can_be_cheaper() -> None:
    """60 of 100 ms. Of items nothing, half or nine tenths can go; of collation by the script half, 90 % or 98 %."""
    flags = Flags(threads=2)
    items = msgspec.structs.replace(loads(60, items_ns=58 * MS, collate_ns=2 * MS), flags=flags)
    (found,) = said("dataloader_starvation", ON_CPU.format("load"), items, cpus=2).findings
    assert (found.saving.low_ns, found.saving.likely_ns, found.saving.high_ns) == (0, 30 * MS, 54 * MS)
    assert found.confidence.level is Level.LOW
    loader = Loader(dataset="D", collate="by_hand", fetch_ns=60 * MS, items_ns=15 * MS, collate_ns=45 * MS)
    (found,) = said(
        "dataloader_starvation", ON_CPU.format("load"), RankManifest(rank=0, loaders=(loader,), flags=flags), cpus=2
    ).findings
    assert found.evidence[1].text == "`by_hand` takes 75.0 % of that."
    assert found.saving.low_ns == 22.5 * MS
    assert found.saving.likely_ns == pytest.approx((7.5 + 40.5) * MS, abs=2)
    assert found.confidence.level is Level.MEDIUM


def test_few_batches_are_not_worth_it_where_no_worker_can_take_them_over() -> None:
    """4 of 100 ms are less than a twentieth."""
    own = msgspec.structs.replace(loads(4), flags=Flags(threads=2))
    (outcome,) = said("dataloader_starvation", ON_CPU.format("load").replace("0-60", "0-4"), own, cpus=2).outcomes
    assert outcome.outcome is OutcomeKind.NOT_APPLICABLE


@pytest.mark.parametrize(("fetch_ns", "in_vain"), [(900_000, True), (1_100_000, False)])
def test_workers_do_not_hand_over_faster_than_quick_batches_are_made(fetch_ns: int, in_vain: bool) -> None:
    """A batch takes 1 of 10 ms. A worker would find a core, but hands over no faster."""
    own = RankManifest(
        rank=0, loaders=(Loader(dataset="D", fetch_ns=fetch_ns, fetch_cpu_ns=10_000),), flags=Flags(threads=1)
    )
    quick = "5 steps of 10\ncpu  load 0-1.3 | aten::mm 1.3-10"
    titles = [finding.title for finding in said("dataloader_starvation", quick, own, cpus=8).findings]
    assert (titles == ["Making batches takes time from computing"]) is in_vain
    (outcome,) = said("dataloader_starvation", quick.replace("1.3", "0.4"), own, cpus=8).outcomes
    assert outcome.outcome is OutcomeKind.CLEAN


def test_workers_hide_what_waits_whatever_the_cores_do() -> None:
    """A batch takes 60 ms. The 9 or 30 that compute stay: 51 or 30 of 100 ms go, at most 55.5 or 45."""
    for cpu_ms, low_ms, most_ms in ((9, 51, 55.5), (30, 30, 45)):
        own = msgspec.structs.replace(loads(60, fetch_cpu_ns=cpu_ms * MS), flags=Flags(threads=2))
        (found,) = said("dataloader_starvation", ON_CPU.format("load"), own, cpus=2).findings
        assert found.title == "DataLoader loads in the training process (num_workers=0)"
        saving = found.saving
        assert (saving.low_ns, saving.likely_ns, saving.high_ns) == (low_ms * MS, low_ms * MS, most_ms * MS)
        assert (
            found.evidence[1].text
            == f"Of the 60.0 ms to make a batch, {60 - cpu_ms}.0 ms wait for storage or a network."
        )
    busy = msgspec.structs.replace(loads(60, fetch_cpu_ns=119 * MS // 2), flags=Flags(threads=2))
    (found,) = said("dataloader_starvation", ON_CPU.format("load"), busy, cpus=2).findings
    assert found.title == "Making batches takes time from computing"


BETWEEN_OPS = """
    5 steps of 100
    cpu  "/home/me/train.py(30): prepare" 0-100 | aten::mm 60-100
"""


def test_python_between_ops_is_lost_where_the_cpu_computes() -> None:
    """60 of 100 ms, of which a fifth, half, or all can go. The other 70 or 40 get faster by 0.3, 0.9 x 30 %."""
    own = RankManifest(rank=0, unprofiled=timed(100 * MS))
    (found,) = said("host_work", BETWEEN_OPS, own).findings
    assert found.title == "The training waits for work at train.py:30"
    assert found.evidence[0].text == "60.0 % of the step is work at train.py:30 in `prepare`: 60.0 ms."
    assert found.evidence[0].value == 60 * MS
    assert found.site is not None
    assert (found.site.file, found.site.line) == ("/home/me/train.py", 30)
    saving = found.saving
    assert (saving.low_ns, saving.likely_ns, saving.high_ns) == (12 * MS, 30 * MS + 6_300_000, 60 * MS + 10_800_000)


def test_a_collection_of_garbage_does_not_interrupt_python() -> None:
    """Pauses of 0.5 ms between collections of 0.5 ms are one of 30 ms. A fifth of both can go at least, as it is this
    line that makes what is collected; where no line is known, of the pauses alone.
    """
    own = RankManifest(rank=0, unprofiled=timed(100 * MS))
    drawing = BETWEEN_OPS.replace("\n    cpu", '\n    cpu  "Python GC" 0.5-1 x60 every 1 |')
    (found,) = said("host_work", drawing, own).findings
    assert found.evidence[0].value == 30 * MS
    assert found.evidence[1].text.endswith("Garbage of what is made is collected for 30.0 ms more.")
    assert found.evidence[1].text.startswith("Nothing else is computed for 30.0 ms at a time, 1 time a step.")
    assert found.saving.low_ns == 12 * MS
    unknown = drawing.replace('"/home/me/train.py(30): prepare" 0-100 |', "")
    assert said("python_overhead", unknown, own).findings[0].saving.low_ns == 6 * MS


def test_python_of_modules_and_ops_comes_with_computing_on_the_cpu() -> None:
    """Pauses of 0.1 ms each take half of the step, and belong to the ops beside them."""
    drawing = """
        5 steps of 20
        cpu  aten::mm 0.1-0.2 x99 every 0.2
    """
    (outcome,) = said("python_overhead", drawing, RankManifest(rank=0, unprofiled=timed(20 * MS))).outcomes
    assert outcome.outcome is OutcomeKind.CLEAN


def test_python_between_ops_is_no_loss_where_a_device_may_be_busy() -> None:
    on_device = Timed(first_step=0, wall_ns=(100 * MS,), device_ns=(100 * MS,))
    for own in (RankManifest(rank=0), RankManifest(rank=0, unprofiled=on_device)):
        (outcome,) = said("host_work", BETWEEN_OPS, own).outcomes
        assert (outcome.outcome, outcome.why) == (OutcomeKind.CANNOT_TELL, "device work")


@pytest.mark.parametrize(("op", "first"), [("aten::mul", "Run the loop's ops once"), ("aten::gru_cell", "If an")])
def test_cells_are_not_batched_over_time(op: str, first: str) -> None:
    drawing = f"""
        4 steps of 40
        cpu  {op} 1-1.8 x10 every 1
        cpu  "autograd::engine::evaluate_function: MulBackward0" 11-12.8 x10 every 2 | device_sync 32-39.9
        gpu  pointwise 1.5-1.503 @1.4 x10 every 1 | pointwise 12.5-12.503 @12.4 x10 every 2
    """
    (found,) = said("looped_ops", drawing, RankManifest(rank=0)).findings
    assert found.fixes[0].do.startswith(first)


def test_without_cores_items_have_to_get_cheaper() -> None:
    own = loads(300, items_ns=250 * MS, collate_ns=20 * MS)
    (found,) = said("dataloader_starvation", IN_PROCESS, own, cpus=4).findings
    assert [one.text for one in found.evidence[1:]] == [
        "A batch takes 300 ms to make, and a step without the wait 40.0 ms: hiding it takes 8 workers, and there are 4"
        " cores.",
        "With a worker on each core loading takes 75.0 ms a step at best.",
    ]
    assert found.fixes[0].do.startswith("Make the data set's items cheaper")
    assert found.fixes[1].trial == "patch:DataLoader(num_workers=4)"


def test_starving_workers_get_more() -> None:
    (found,) = said("dataloader_starvation", STARVED, loads(120, workers=1), cpus=8).findings
    assert found.evidence[1].text.endswith(": 3 workers would hide loading.")
    assert [(fix.before, fix.trial) for fix in found.fixes] == [
        ("DataLoader(dataset, batch_size, num_workers=1)", "patch:DataLoader(num_workers=3)")
    ]


def test_workers_on_all_cores_need_cheaper_collation() -> None:
    own = loads(300, workers=4, items_ns=20 * MS, collate_ns=250 * MS)
    (found,) = said("dataloader_starvation", STARVED, own, cpus=4).findings
    assert [fix.do.partition(":")[0] for fix in found.fixes] == ["Make collation cheaper"]


@pytest.mark.parametrize(
    ("cpu_ms", "cpus", "text"),
    [
        # Two workers that compute for a tenth of their time, and the training, keep 1.2 of 16 cores busy.
        (20, 16, "For 180 ms of making it a worker waits for storage or a network."),
        (80, 16, "For 120 ms of making it a worker waits for storage or a network."),
        (90, 16, ""),  # both: neither is most of it
        (20, 2, ""),  # it may have waited for a core
        (120, 2, "That takes 120 ms of CPU time, mostly to read, decode and transform items."),
        (120, 16, ""),  # more workers do it
        (None, 16, ""),
    ],
)
def test_what_workers_do_while_they_make_a_batch(cpu_ms: int | None, cpus: int, text: str) -> None:
    known = {} if cpu_ms is None else {"fetch_cpu_ns": cpu_ms * MS}
    own = loads(200, workers=2, items_ns=190 * MS, collate_ns=10 * MS, **known)
    (found,) = said("dataloader_starvation", STARVED, own, cpus=cpus).findings
    assert [one.text for one in found.evidence if one.text.startswith(("For", "That"))] == [text] * bool(text)
    assert any("nearer storage" in fix.do for fix in found.fixes) is ("storage" in text)


def test_transforms_that_keep_all_cores_busy_can_run_on_the_gpu() -> None:
    own = loads(200, workers=2, items_ns=190 * MS, collate_ns=10 * MS, fetch_cpu_ns=190 * MS)
    (found,) = said("dataloader_starvation", STARVED, own, cpus=2).findings
    assert [fix.do.partition(":")[0] for fix in found.fixes] == [
        "Decode and augment on the GPU",
        "Make the data set's items cheaper, or store them as they are used",
    ]


def test_workers_that_are_fast_enough_need_a_deeper_queue() -> None:
    """Only where batches lie ready most times: else workers are late for a reason that a queue does not fix."""
    (found,) = said("dataloader_starvation", STARVED, loads(60, workers=4, empty_share=0.2), cpus=8).findings
    assert [fix.do.partition(":")[0] for fix in found.fixes] == ["Keep more batches ready"]
    assert [one.text for one in found.evidence[1:]] == [
        "A batch takes 60.0 ms to make, and a step without the wait 40.0 ms: 4 workers, with a core each, would be"
        " enough.",
        "Batches lie ready most times, and some are late.",
    ]
    for more in ({}, {"empty_share": 0.6}):
        (found,) = said("dataloader_starvation", STARVED, loads(60, workers=4, **more), cpus=8).findings
        assert [fix.do.partition(":")[0] for fix in found.fixes] == ["Make batches cheaper"]


@pytest.mark.parametrize(
    ("own", "cpus", "epochs", "why"),
    [
        ({"empty_share": 0.9}, 8, None, "Why batches are late all the same cannot be told from this recording."),
        ({"empty_share": 0.9}, 1, None, "They do not have a core each."),
        (  # With 40 ms in line a batch comes each (60 + 140) / 4 = 50 ms.
            {"empty_share": 0.9, "fetch_ns": 200 * MS, "fetch_cpu_ns": 60 * MS, "fetch_queued_ns": 140 * MS},
            8,
            None,
            "They do not have a core each, for which they wait 140 ms a batch.",
        ),
        (  # Of 300 - 40 ms that a step waits 1,600 of 8 steps are 200.
            {"empty_share": 0.9},
            8,
            Epochs(began=(0,), steps=8, timed=8, step_ns=300 * MS, first_step_ns=2_100 * MS, starting_ns=1_600 * MS),
            "Most of the wait is for workers that start: 1.60 s an epoch, 66.7 % of it.",
        ),
    ],
)
def test_workers_that_would_be_enough_are_late_for_a_reason(
    own: dict[str, float], cpus: int, epochs: Epochs | None, why: str
) -> None:
    """Four workers that take 60 ms for a batch give one each 15 ms, and a step takes 40."""
    loader = Loader(**{"dataset": "D", "fetch_ns": 60 * MS, "num_workers": 4, **own})  # type: ignore[arg-type]
    known = RankManifest(rank=0, loaders=(loader,), epochs=epochs)
    (found,) = said("dataloader_starvation", STARVED, known, cpus=cpus).findings
    assert found.evidence[2].text == why
    assert not any("hide" in one.text or one.unit == "workers" for one in found.evidence)


def epochs_of(step_ms: int) -> Epochs:
    return Epochs(began=(0,), steps=32, timed=32, step_ns=step_ms * MS)


@pytest.mark.parametrize(
    ("epochs", "told"),
    [
        (None, ": steps of 100 ms use up batches that were made before."),
        (epochs_of(187), "."),
        (epochs_of(95), ": steps of 95.0 ms use up batches that were made before."),
    ],
)
def test_what_workers_can_do_is_compared_with_the_epoch(epochs: Epochs | None, told: str) -> None:
    """Four that take 502 ms for a batch give one each 125.5 ms; the drawn steps take 100."""
    loader = Loader(dataset="D", fetch_ns=502 * MS, num_workers=4)
    known = RankManifest(rank=0, loaders=(loader,), epochs=epochs)
    (found,) = said("dataloader_starvation", STARVED, known, cpus=16).findings
    assert [one.text for one in found.evidence[1:]] == [
        "A batch takes 502 ms to make, and a step without the wait 40.0 ms: 13 workers would hide loading.",
        f"The 4 that are there make those of a step in 126 ms at best{told}",
    ]


def test_a_step_without_the_wait_is_of_steps_without_the_profiler() -> None:
    """They take 50 ms but for the wait; 40 ms of the drawn ones are the device's work."""
    alone = Timed(first_step=0, wall_ns=(60 * MS, 90 * MS), phases_ns={"loader": (10 * MS, 40 * MS)})
    loader = Loader(dataset="D", fetch_ns=502 * MS, num_workers=4)
    known = RankManifest(rank=0, loaders=(loader,), unprofiled=alone)
    (found,) = said("dataloader_starvation", STARVED, known, cpus=16).findings
    assert found.evidence[1].text.endswith("a step without the wait 50.0 ms: 11 workers would hide loading.")


@pytest.mark.parametrize(("workers", "cpus", "count"), [(1, 2, 2), (1, 8, 6), (2, 2, None), (6, 8, None), (8, 4, None)])
def test_no_more_workers_are_asked_for_than_there_are_cores(workers: int, cpus: int, count: int | None) -> None:
    """220 ms for a batch and 40 ms a step take six, if they wait for storage as well. That is said where none are."""
    own = loads(220, workers=workers, fetch_cpu_ns=10 * MS)
    (found,) = said("dataloader_starvation", STARVED, own, cpus=cpus).findings
    trials = [fix.trial for fix in found.fixes if fix.trial]
    assert trials == [f"patch:DataLoader(num_workers={count})"] * (count is not None)
    hidden = [one.text for one in found.evidence if one.text.endswith("workers would hide loading.")]
    assert bool(hidden) is (count == 6)


def test_time_spent_waiting_for_a_core_is_not_spent_on_a_batch() -> None:
    own = loads(220, workers=1, fetch_cpu_ns=60 * MS, fetch_queued_ns=160 * MS)
    (found,) = said("dataloader_starvation", STARVED, own, cpus=8).findings
    assert found.evidence[1].text == (
        "A batch takes 60.0 ms to make, and a step without the wait 40.0 ms: 2 workers would hide loading."
    )


def test_a_step_that_begins_outside_of_the_recorded_ones_takes_its_batch_too() -> None:
    """Four fetches in five steps are a batch each: 463 ms take seven workers, where a step takes 70.6 without."""
    drawing = """
        5 steps of 100
        cpu  next 0-29.4 not in 3 | aten::mm 60-61
        gpu  sgemm 29.4-99.99 @29
    """
    facts = Facts(replace(facts_of(drawing).rank, context=Context(loads(463, workers=1), Host(cpus_allowed=16), 1, {})))
    known = loading(facts)
    assert (known.batches, known.workers) == (1.0, ceil(463 / (known.step_ns / MS)))


HANDED = {"handed_ns": 60 * MS, "handing_share": 1.0, "empty_share": 0.0}


@pytest.mark.parametrize(
    ("more", "left", "fixes"),
    [
        # 8 of 80 tensors may stay: a tenth of 60 ms.
        ({"tensors": 80, "objects": 100}, 0.1, ["Stack small tensors", "Or load without workers"]),
        ({"tensors": 1, "objects": 2, "batch_bytes": 1 << 20}, 0.05, ["Hand over less", "Or load without workers"]),
    ],
)
def test_what_handing_over_costs(more: dict[str, int], left: float, fixes: list[str]) -> None:
    """A batch takes 3 ms to make, and 60 ms until the training has it."""
    own = loads(3, workers=2, **HANDED, **more)
    (found,) = said("dataloader_items", STARVED, own, cpus=8).findings
    assert found.saving.likely_ns == pytest.approx((1 - left) * 60 * MS, rel=0.03)
    assert [fix.do.startswith(begin) for fix, begin in zip(found.fixes, fixes, strict=True)] == [True, True]
    assert [fix.trial for fix in found.fixes] == [None, None]
    kind, _ = outcome(said("dataloader_starvation", STARVED, own, cpus=8))
    assert kind is OutcomeKind.CLEAN


def test_small_batches_that_are_dear_to_make_cannot_be_handed_over_for_less() -> None:
    """A worker that waits for a core hands over late, whatever it hands over."""
    own = loads(200, workers=2, handed_ns=60 * MS, handing_share=0.9, tensors=2, objects=3, batch_bytes=2048)
    assert outcome(said("dataloader_items", STARVED, own, cpus=8))[0] is OutcomeKind.CLEAN
    unknown = loads(200, workers=2, handed_ns=60 * MS, handing_share=0.9)
    (found,) = said("dataloader_items", STARVED, unknown, cpus=8).findings
    assert found.confidence.level is Level.LOW


def test_workers_that_hand_over_hundreds_of_tensors_are_not_recommended() -> None:
    """70 tensors take 7 ms at least."""
    assert said("dataloader_starvation", IN_PROCESS, loads(6), cpus=8).findings[0].fixes[0].trial is not None
    (found,) = said("dataloader_starvation", IN_PROCESS, loads(6, tensors=70), cpus=8).findings
    assert found.title == "Making batches takes time from computing"


def line(number: int, share: float, calls: str = "") -> SampledLine:
    return SampledLine(file="train.py", line=number, function="__getitem__", calls=calls, share=share)


def test_the_line_that_takes_most_of_an_item_in_a_worker() -> None:
    """Two calls of one function count as one, at the line that takes more. No other workers find cores."""
    lines = (line(8, 0.4, "numpy.load"), line(11, 0.35), line(7, 0.2, "numpy.load"))
    loader = Loader(dataset="D", fetch_ns=200 * MS, num_workers=2, handing_share=0.0, lines=lines, sampled=4)
    own = RankManifest(rank=0, loaders=(loader,))
    (found,) = said("dataloader_items", STARVED, own, cpus=2).findings
    assert found.title == "`numpy.load` takes most of making a batch in a worker"
    assert found.site == Site("train.py", 8, "__getitem__")
    assert found.evidence[0].text == (
        "`numpy.load`, which `__getitem__` calls, takes 60.0 % of making a batch: 120 ms."
    )
    # 46 % of a period of 100 ms are left of it where a tenth of the reading is.
    assert found.saving.likely_ns == pytest.approx(54 * MS, rel=0.02)
    assert outcome(said("dataloader_starvation", STARVED, own, cpus=2))[0] is OutcomeKind.NOT_APPLICABLE
    own = RankManifest(rank=0, loaders=(msgspec.structs.replace(loader, lines=lines[1:2]),))
    (found,) = said("dataloader_items", STARVED, own, cpus=2).findings
    assert (found.title, found.confidence.level) == (
        "One line of `__getitem__` takes most of making a batch in a worker",
        Level.LOW,
    )


@pytest.mark.parametrize(
    ("recorded", "kind", "why"),
    [
        (13 * MS, OutcomeKind.CLEAN, "recorded steps take 1.30 times as long as others"),
        (14 * MS, OutcomeKind.FOUND, "1 found"),
    ],
)
def test_what_recording_costs_is_measured_not_guessed(recorded: int, kind: OutcomeKind, why: str) -> None:
    """A thousand ops a step would be guessed to cost 7 %."""
    own = RankManifest(rank=0, unprofiled=timed(10 * MS), timing=timed(recorded))
    found = said("profiler_distortion", BUSY_HOST, own)
    assert [(outcome.outcome, outcome.why) for outcome in found.outcomes] == [(kind, why)]
    notes = [note.what for note in found.digest.integrity]
    measured = "Recording makes steps over 1.3 times as long."
    assert (measured in notes) == (kind is OutcomeKind.FOUND)


def test_without_a_ratio_it_is_guessed() -> None:
    found = said("profiler_distortion", BUSY_HOST, RankManifest(rank=0, unprofiled=timed(10 * MS)))
    assert any(note.what.startswith("Recording took the host") for note in found.digest.integrity)


def test_recorded_steps_that_are_shorter_mean_a_busy_machine() -> None:
    quicker = said(
        "profiler_distortion", BUSY_HOST, RankManifest(rank=0, unprofiled=timed(10 * MS), timing=timed(8 * MS))
    )
    assert quicker.outcomes[0].outcome is OutcomeKind.FOUND
    notes = [note.what for note in quicker.digest.integrity]
    assert "The median recorded step takes less time than that without the profiler." in notes
    nearly = said(
        "profiler_distortion", BUSY_HOST, RankManifest(rank=0, unprofiled=timed(10 * MS), timing=timed(9 * MS))
    )
    assert nearly.outcomes[0].outcome is OutcomeKind.CLEAN


def outcome(found: RankDiagnosis) -> tuple[OutcomeKind, str]:
    (only,) = found.outcomes
    return only.outcome, only.why


BLOCKING = """
    4 steps of 100
    cpu  aten::mm 0-4.5 x20 every 5
    gpu  sgemm 0.11-4 @0.1-4.01 x20 every 5
"""
UNKNOWN = RankManifest(rank=0)


@pytest.mark.parametrize(
    ("environment", "why"),
    [
        ({"CUDA_LAUNCH_BLOCKING": "1"}, "CUDA_LAUNCH_BLOCKING is on, launches and kernels take the same time, and"),
        ({}, "launches and kernels take the same time, and"),
    ],
)
def test_launches_that_are_known_to_block(environment: dict[str, str], why: str) -> None:
    (found,) = said("blocking_launches", BLOCKING, UNKNOWN, environment=environment).findings
    assert found.confidence == Confidence(Level.HIGH, f"{why} nothing is queued")
    assert [fix.do for fix in found.fixes] == ["Unset CUDA_LAUNCH_BLOCKING."]


OFF = "100.0 % of the launches of long kernels take as long as their kernel, with CUDA_LAUNCH_BLOCKING off"


@pytest.mark.parametrize("environment", [{"CUDA_LAUNCH_BLOCKING": "0"}, {"RANK": "0"}])
def test_launches_that_are_known_not_to_block(environment: dict[str, str]) -> None:
    assert outcome(said("blocking_launches", BLOCKING, UNKNOWN, environment=environment)) == (OutcomeKind.CLEAN, OFF)


def test_rocm_has_other_variables() -> None:
    amd = said("blocking_launches", f"device MI300X{BLOCKING}", UNKNOWN, environment={"RANK": "0"})
    assert amd.outcomes[0].outcome is OutcomeKind.FOUND


def test_the_environment_is_read_from_the_recording(tmp_path: Path) -> None:
    (tmp_path / "rank0.trace.json").write_bytes(drawings.trace(BLOCKING))
    known = Manifest(complete=True, environment={"RANK": "0"}, ranks=(UNKNOWN,))
    (tmp_path / "manifest.json").write_bytes(msgspec.json.encode(known))
    whys = {outcome.rule: outcome.why for outcome in diagnose.analyze(tmp_path).outcomes}
    assert whys["blocking_launches"] == OFF


# 58 of 100 ms in the check of one gradient.
CHECKED = """
    4 steps of 100
    cpu  "{0}" 40-99.95 | aten::mm 40-41 | aten::isnan 41.9-42 | aten::item 42-99.9 | sync 43-99
    gpu  sgemm 40.01-98 @40 | pointwise 98.1-98.2 @41.95 | d2h 98.5-98.51 @42.5 8B
"""
NODE = "autograd::engine::evaluate_function: MmBackward0"


@pytest.mark.parametrize(
    ("on", "title", "level", "fix"),
    [
        (True, "Anomaly detection is on", Level.HIGH, "Switch off anomaly detection."),
        (None, "Anomaly detection checks every gradient for NaN", Level.MEDIUM, "Switch off anomaly detection."),
        (False, "Hooks check every gradient for NaN", Level.HIGH, "Take out the hooks, or check the loss alone."),
    ],
)
def test_gradients_are_checked(on: bool | None, title: str, level: Level, fix: str) -> None:
    (found,) = said("anomaly_detection", CHECKED.format(NODE), with_flags(anomaly_mode=on)).findings
    assert (found.title, found.confidence.level) == (title, level)
    assert found.evidence[0].text == "The backward pass checks 1 gradients a step for NaN, which takes 58.0 ms."
    assert [one.do for one in found.fixes] == [fix]
    # Without the wait the host goes on at once, and the GPU's own 58 ms decide.
    assert found.saving.likely_ns == pytest.approx(42 * MS, rel=0.02)


@pytest.mark.parametrize(
    ("drawing", "nodes"), [(CHECKED.format("Mine"), 3), (CHECKED.replace("isnan", "neg").format(NODE), 6)]
)
def test_checks_of_an_own_function_and_other_reads_are_none_of_anomaly_detection(drawing: str, nodes: int) -> None:
    """In three used steps."""
    marked = drawing.replace("\n    gpu", f' | "{NODE}" 99.96-99.97\n    gpu')
    found = said("anomaly_detection", marked, with_flags(anomaly_mode=True))
    assert outcome(found) == (OutcomeKind.CLEAN, f"0 checks for NaN between {nodes} nodes of the backward pass")


def with_flags(**flags: object) -> RankManifest:
    return RankManifest(rank=0, flags=msgspec.convert(flags, Flags))


SELDOM = """
    8 steps of 100
    cpu  aten::mm 0-40 | "{0}" 40-99 in 4
"""


@pytest.mark.parametrize(("again", "outcome"), [(0, OutcomeKind.CLEAN), (1, OutcomeKind.CLEAN), (2, OutcomeKind.FOUND)])
def test_collections_now_and_then_are_no_remedy_if_they_come_again(again: int, outcome: OutcomeKind) -> None:
    """59 ms in one of seven used steps; of 30 steps without the profiler so many take 30 ms more than usual."""
    unprofiled = Timed(first_step=0, wall_ns=(50 * MS,) * (30 - again) + (80 * MS,) * again)
    own = RankManifest(rank=0, unprofiled=unprofiled, marked=("garbage_collection", "checkpoint"))
    assert said("garbage_collection", SELDOM.format("<built-in function collect>"), own).outcomes[0].outcome is outcome


def test_steps_that_differ_anyway_do_not_show_collections_again() -> None:
    """30 ms do not stand out of steps between 30 and 80 ms, a quarter of which take 20 ms less than the median one."""
    uneven = Timed(first_step=0, wall_ns=(30 * MS, 50 * MS, 50 * MS, 80 * MS) * 8)
    own = RankManifest(rank=0, unprofiled=uneven, marked=("garbage_collection",))
    (outcome,) = said("garbage_collection", SELDOM.format("<built-in function collect>"), own).outcomes
    assert outcome.outcome is OutcomeKind.CLEAN


def test_a_save_that_comes_again_is_known_to() -> None:
    own = RankManifest(
        rank=0, unprofiled=Timed(first_step=0, wall_ns=(50 * MS,) * 27 + (120 * MS,) * 3), marked=("checkpoint",)
    )
    (found,) = said("checkpoint_stalls", SELDOM.format("torch.save (checkpoint)"), own).findings
    assert found.evidence[0].text.endswith("seen once in 7 steps, and 3 of 30 steps without the profiler are as long.")
    assert found.confidence.level is Level.HIGH
    unseen = msgspec.structs.replace(own, unprofiled=timed(50 * MS))
    (found,) = said("checkpoint_stalls", SELDOM.format("torch.save (checkpoint)"), unseen).findings
    assert found.confidence.level is Level.LOW


def test_what_is_marked_and_did_not_happen_is_clean() -> None:
    """Without a word on what is marked, it cannot be told."""
    own = RankManifest(rank=0, unprofiled=timed(100 * MS), marked=("garbage_collection", "checkpoint"))
    for rule in ("garbage_collection", "checkpoint_stalls"):
        assert (
            said(rule, BETWEEN_OPS.replace("/home/me/train.py(30): prepare", "mine"), own).outcomes[0].outcome
            is OutcomeKind.CLEAN
        )
        unmarked = msgspec.structs.replace(own, marked=())
        assert (
            said(rule, BETWEEN_OPS.replace("/home/me/train.py(30): prepare", "mine"), unmarked).outcomes[0].outcome
            is OutcomeKind.CANNOT_TELL
        )


UPDATES_ON_CPU = """
    5 steps of 100
    cpu  aten::mm 0-20 | "Optimizer.zero_grad#{0}.zero_grad" 20-40 | aten::zero_ 20-30 x2 every 10
    cpu  "Optimizer.step#{0}.step" 60-100 | aten::addcdiv_ 60-64 x10 every 4
"""


def test_an_optimizer_in_many_passes_on_the_cpu() -> None:
    """40 of 100 ms, of which 50, 20 or 10 % are left; the other 68 or 64 get faster by 0.3 or 0.9 x 32 %."""
    own = RankManifest(rank=0, unprofiled=timed(100 * MS))
    (found,) = said("unfused_optimizer", UPDATES_ON_CPU.format("Adam"), own).findings
    assert found.evidence[0].text == "Adam calls 10 ops a step for one parameter at a time: 40.0 ms."
    assert (found.saving.low_ns, found.saving.likely_ns, found.saving.high_ns) == (
        20 * MS,
        32 * MS + 6_528_000,
        36 * MS + 18_432_000,
    )
    (outcome,) = said("unfused_optimizer", UPDATES_ON_CPU.format("SGD"), own).outcomes
    assert outcome.why == "SGD is single_tensor, 0 launches"
    (outcome,) = said("unfused_optimizer", UPDATES_ON_CPU.format("Adam"), RankManifest(rank=0)).outcomes
    assert outcome.outcome is OutcomeKind.CANNOT_TELL


def test_zeroing_gradients_on_the_cpu() -> None:
    """20 of 100 ms, of which a fifth, a twentieth or nothing is left; the other 81 or 80 by 0.3, 0.9 x 19 % less."""
    own = RankManifest(rank=0, unprofiled=timed(100 * MS))
    (found,) = said("zero_grad_memset", UPDATES_ON_CPU.format("SGD"), own).findings
    assert found.evidence[0].text == "Zeroing gradients takes 2 ops a step: 20.0 ms."
    assert (found.saving.low_ns, found.saving.likely_ns, found.saving.high_ns) == (
        16 * MS,
        19 * MS + 4_617_000,
        20 * MS + 13_680_000,
    )
    to_none = UPDATES_ON_CPU.format("SGD").replace(" | aten::zero_ 20-30 x2 every 10", "")
    (outcome,) = said("zero_grad_memset", to_none, own).outcomes
    assert outcome.outcome is OutcomeKind.CLEAN


PER_PARAMETER = """
    4 steps of 40
    cpu  aten::mm 0-0.1 | optimizer 1-31 | aten::addcmul_ 1-1.09 x300 every 0.1
    gpu  bf16_gemm 0.1-0.9 @0.05 | pointwise 1.05-1.06 @1.03 x300 every 0.1
"""


def with_optimizers(*optimizers: Optimizer) -> RankManifest:
    return RankManifest(rank=0, optimizers=optimizers)


@pytest.mark.parametrize(
    ("settings", "evidence", "before"),
    [
        ({"foreach": False}, ["It was made with foreach=False."], ", foreach=False"),
        (
            {"foreach": True, "fused": False},
            ["It was made with foreach=True and fused=False."],
            ", foreach=True, fused=False",
        ),
        ({}, [], ""),
    ],
)
def test_how_the_optimizer_was_made(settings: dict[str, bool], evidence: list[str], before: str) -> None:
    (found,) = said("unfused_optimizer", PER_PARAMETER, with_optimizers(Optimizer(name="AdamW", **settings))).findings
    assert [one.text for one in found.evidence[1:]] == evidence
    assert [(fix.do, fix.before, fix.after) for fix in found.fixes] == [
        (
            "Use the fused AdamW.",
            f"torch.optim.AdamW(model.parameters(){before})",
            "torch.optim.AdamW(model.parameters(), fused=True)",
        )
    ]


def test_an_optimizer_that_is_fused_already() -> None:
    fused = Optimizer(name="AdamW", fused=True)
    found = said("unfused_optimizer", PER_PARAMETER, with_optimizers(fused, Optimizer(name="SGD")))
    assert outcome(found) == (OutcomeKind.CLEAN, "AdamW is single_tensor, fused=True, 300 launches")
    # Of two of one class the other may be the one that is not.
    assert said("unfused_optimizer", PER_PARAMETER, with_optimizers(fused, Optimizer(name="AdamW"))).findings


PAGEABLE = """
    4 steps of 100
    cpu  aten::to 0-20.05 | sync 15.1-20.03 | aten::mm 21-22 | sync 23-99.01
    gpu  h2d 0.1-20 @0.05-15 pageable 100MB | sgemm 21.1-99 @21.05
"""
PINS = Loader(dataset="Photos", pin_memory=True, asked=9)
PLAIN = Loader(dataset="Scans", asked=5)
PIN = "Pin the batches in the DataLoader, and do not wait for the copy."
PIN_SCANS = "Set pin_memory=True on the DataLoader of Scans, and do not wait for the copy."
REACH = (
    "The DataLoader pins already: give a batch type of your own pin_memory(), or pin what is made outside the loader."
)


@pytest.mark.parametrize(
    ("loaders", "do", "trial", "known"),
    [
        ((), PIN, True, ""),
        ((PLAIN,), PIN_SCANS, True, ", and that loader does not pin"),
        ((msgspec.structs.replace(PINS, asked=2), PLAIN), PIN_SCANS, True, ", and that loader does not pin"),
        ((PINS,), REACH, False, ", and every DataLoader has pin_memory=True"),
        # Which of them the copies come from is not known.
        ((PINS, PLAIN), PIN, True, ""),
    ],
)
def test_what_to_pin(loaders: tuple[Loader, ...], do: str, trial: bool, known: str) -> None:
    (found,) = said("pageable_copies", PAGEABLE, RankManifest(rank=0, loaders=loaders)).findings
    (fix,) = found.fixes
    assert (fix.do, fix.trial) == (do, "patch:DataLoader(pin_memory=True)" if trial else None)
    assert found.confidence == Confidence(Level.HIGH, f"the recorder names the kind of memory{known}")


RESTARTED = """
    12 steps of 1000
    cpu  next 0-1 not in 6 | next 0-700 in 6 | aten::mm 701-702
    gpu  sgemm 702.01-999 @702
"""


@pytest.mark.parametrize(
    ("persistent", "kind", "why"),
    [
        ([True], OutcomeKind.NOT_APPLICABLE, "persistent_workers=True: workers are kept from epoch to epoch already"),
        ([True, False], OutcomeKind.FOUND, "1 found"),
        ([False], OutcomeKind.FOUND, "1 found"),
        ([], OutcomeKind.FOUND, "1 found"),
    ],
)
def test_workers_that_are_kept(persistent: list[bool], kind: OutcomeKind, why: str) -> None:
    """A loader without workers, as one for validation, has none to keep."""
    loaders = [Loader(dataset="D", num_workers=2, persistent_workers=keeps) for keeps in persistent]
    own = RankManifest(rank=0, loaders=(*loaders, Loader(dataset="V")))
    assert outcome(said("dataloader_recreated", RESTARTED, own)) == (kind, why)


ANEW = """
    5 steps of 100
    cpu  aten::random_ 0-1 | aten::item 1-2 | load 2-42 | aten::mm 42-43
    gpu  sgemm 42.01-100 @42
"""


def test_an_iterator_for_every_batch_costs_what_a_batch_does_not_take() -> None:
    """Of 40 ms; the low estimate is half of it. The workers that would hide it all would be started as often."""
    (found,) = said("dataloader_recreated", ANEW, loads(10)).findings
    assert (found.saving.low_ns, found.saving.likely_ns) == (15 * MS, 30 * MS)
    assert found.saving.basis is Basis.REPLAYED
    (unknown,) = said("dataloader_recreated", ANEW, RankManifest(rank=0)).findings
    assert (unknown.saving.low_ns, unknown.saving.likely_ns) == (0, 20 * MS)
    kind, _ = outcome(said("dataloader_starvation", ANEW, loads(10)))
    assert kind is OutcomeKind.NOT_APPLICABLE


def test_an_epoch_of_one_batch_has_an_iterator_for_every_batch() -> None:
    own = RankManifest(rank=0, loaders=(Loader(dataset="D", dataset_length=64, batch_size=64),))
    assert outcome(said("dataloader_recreated", ANEW, own)) == (OutcomeKind.NOT_APPLICABLE, "an epoch is one batch")


REDUCER = """
    4 steps of 50
    cpu  aten::mm 0-0.1 | torch.distributed.ddp.reducer::{0} 1-11 | aten::mm 11-11.1
    cpu  device_sync 12-49.9
    gpu  sgemm 0.1-1 @0.05 | sgemm 11.1-49.8 @11.05
"""
SEARCH, COPY = REDUCER.format("search_unused_parameters"), REDUCER.format("copy_bucket_to_grad")


def with_ddp(*options: dict[str, bool | int | str | None]) -> RankManifest:
    return RankManifest(rank=0, distributed=Distributed(backend="nccl", ddp=options))


@pytest.mark.parametrize(
    ("drawing", "option", "why"),
    [
        (SEARCH, {"find_unused_parameters": False}, "searches for unused parameters, but find_unused_parameters=False"),
        (
            COPY,
            {"gradient_as_bucket_view": True},
            "copies gradients out of its buckets, but gradient_as_bucket_view=True",
        ),
    ],
)
def test_options_of_ddp_that_are_set_already(
    drawing: str, option: dict[str, bool | int | str | None], why: str
) -> None:
    assert outcome(said("ddp_overheads", drawing, with_ddp(option))) == (OutcomeKind.CLEAN, f"DDP {why} is set already")
    (name,) = option
    other = {name: not option[name]}
    for some in ((option, other), (option, {}), (other,)):
        assert len(said("ddp_overheads", drawing, with_ddp(*some)).findings) == 1


def test_a_search_that_ddp_was_asked_for() -> None:
    asked = with_ddp({"find_unused_parameters": True, "static_graph": False})
    (found,) = said("ddp_overheads", SEARCH, asked).findings
    why = "DDP was made with find_unused_parameters=True and without static_graph"
    assert found.confidence == Confidence(Level.HIGH, why)
    assert [fix.after for fix in found.fixes] == [
        "DistributedDataParallel(model, find_unused_parameters=False)",
        "DistributedDataParallel(model, find_unused_parameters=True, static_graph=True)",
    ]
    (unsure,) = said("ddp_overheads", SEARCH, with_ddp({"find_unused_parameters": True})).findings
    assert (unsure.confidence.level, len(unsure.fixes)) == (Level.MEDIUM, 1)


FULL = """
    4 steps of 100
    device A100
    cpu  aten::mm 0-1 shapes=[[8192,8192],[8192,8192]] types=["float","float"] | sync 1.1-99.9
    gpu  sgemm 0.02-60.02 @0.01 | pointwise 60.1-99.8 @0.5
"""
FORBIDDEN = {"NVIDIA_TF32_OVERRIDE": "0"}
UNSET, ALLOW = "Unset NVIDIA_TF32_OVERRIDE: 0 forbids TF32.", "Allow TF32."


@pytest.mark.parametrize(
    "flags",
    [
        {"cuda_matmul_allow_tf32": True},
        {"cuda_matmul_allow_tf32": True, "float32_matmul_precision": "highest"},
        {"float32_matmul_precision": "high"},
        {"float32_matmul_precision": "medium"},
    ],
)
def test_tf32_that_is_allowed_already(flags: dict[str, object]) -> None:
    allowed = said("tf32_off", FULL, with_flags(**flags))
    why = "TF32 is allowed already: fp32 kernels take 60.0 ms a step for another reason"
    assert outcome(allowed) == (OutcomeKind.CLEAN, why)
    (found,) = said("tf32_off", FULL, with_flags(**flags), environment=FORBIDDEN).findings
    assert [fix.do for fix in found.fixes] == [UNSET]


@pytest.mark.parametrize(
    ("flags", "environment", "known", "fixes"),
    [
        ({"cuda_matmul_allow_tf32": False}, {}, "TF32 is not allowed, and ", [ALLOW]),
        ({"float32_matmul_precision": "highest"}, {}, "TF32 is not allowed, and ", [ALLOW]),
        ({"cuda_matmul_allow_tf32": False}, FORBIDDEN, "NVIDIA_TF32_OVERRIDE=0 forbids TF32, and ", [UNSET, ALLOW]),
        ({}, {}, "", [ALLOW]),
    ],
)
def test_tf32_that_is_not_allowed(
    flags: dict[str, object], environment: dict[str, str], known: str, fixes: list[str]
) -> None:
    (found,) = said("tf32_off", FULL, with_flags(**flags), environment=environment).findings
    assert [fix.do for fix in found.fixes] == fixes
    assert found.confidence == Confidence(Level.HIGH, f"{known}the kernels' names say in what they multiply")


TRAINED = FULL.replace("| sync 1.1", "| Optimizer.step#SGD.step 1-1.05 | sync 1.1")
OUTSIDE = ["Autocast to {} is entered: this work runs outside of it."]


@pytest.mark.parametrize(
    ("device", "autocast", "evidence", "dtype", "scaled"),
    [
        ("A100", {"cuda": "bfloat16"}, OUTSIDE, "bfloat16", False),
        ("A100", {"cuda": "float16"}, OUTSIDE, "float16", True),
        ("A100", {"cpu": "bfloat16"}, [], "bfloat16", False),
        ("A100", {}, [], "bfloat16", False),
        # It has no units for bfloat16: autocast to that gains nothing.
        ("V100", {"cuda": "bfloat16"}, [], "float16", True),
    ],
)
def test_autocast_that_is_entered(
    device: str, autocast: dict[str, str], evidence: list[str], dtype: str, scaled: bool
) -> None:
    (found,) = said("no_mixed_precision", TRAINED.replace("A100", device), with_flags(autocast=autocast)).findings
    assert [one.text for one in found.evidence[2:]] == [one.format(dtype) for one in evidence]
    (fix,) = found.fixes
    assert fix.do.startswith("Run all of the forward" if evidence else "Run the forward")
    assert (f"dtype=torch.{dtype})" in fix.after, "scaler" in fix.after) == (True, scaled)


def test_pauses_that_another_thread_may_cause_are_not_called_the_training_s_own() -> None:
    competing_threads = (PythonThread(name="watch", cpu_share=0.6), PythonThread(name="log", cpu_share=0.1))
    own = RankManifest(rank=0, unprofiled=timed(100 * MS), python_threads=competing_threads)
    assert outcome(said("host_work", BETWEEN_OPS, own)) == (
        OutcomeKind.NOT_APPLICABLE,
        "'watch' and other threads compute for 70.0 % of the time",
    )
    (found,) = said("gil_contention", BETWEEN_OPS, own).findings
    assert [one.text for one in found.evidence] == [
        "Threads of Python beside the training compute for 70.0 % of the time, most of all 'watch'.",
        "The training pauses between ops for 60.0 ms a step.",
    ]
    assert len(said("host_work", BETWEEN_OPS, msgspec.structs.replace(own, python_threads=())).findings) == 1


@pytest.mark.parametrize(("benchmark", "fixes"), [(None, 2), (False, 1), (True, 1)])
def test_convolutions_are_to_be_tried_out_where_it_is_not_known_whether_they_are(
    benchmark: bool | None, fixes: int
) -> None:
    drawing = """
        4 steps of 20
        cpu  aten::convolution_backward 0-2 shapes=[[64,256,56,56],[64,256,56,56],[256,256,3,3],[]] {types}
        cpu  sync 2.5-19.5
        gpu  bf16_gemm 0.02-16 @0.01 | pointwise 16.1-19 @1.5
    """.format(types='types=["c10::BFloat16","c10::BFloat16","c10::BFloat16"]')
    own = RankManifest(rank=0, flags=Flags(cudnn_benchmark=benchmark))
    (found,) = said("slow_matmul", drawing, own).findings
    assert found.title == "Convolutions run far below what the GPU can do"
    assert len(found.fixes) == fixes
    assert found.fixes[0].after.startswith("torch.backends.cudnn.benchmark = True") is (fixes == 2)
