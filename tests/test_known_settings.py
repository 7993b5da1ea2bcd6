"""Rules that say more where a manifest tells the run's settings: drawn traces, with what was known of them."""

from __future__ import annotations

from dataclasses import replace

import msgspec
import pytest

from diagnose import engine, one_rank, page
from diagnose.diagnosis import RankDiagnosis
from diagnose.facts.base import Facts
from diagnose.finding import OutcomeKind
from diagnose.testing import facts_of
from diagnose.trace.manifest import Flags, Host, Loader, RankManifest, Timed
from diagnose.trace.model import Context

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


def said(rule: str, drawing: str, own: RankManifest, cpus: int | None = None) -> RankDiagnosis:
    drawn = facts_of(drawing).rank
    known = Facts(replace(drawn, context=Context(own, Host(cpus_allowed=cpus), 1)))
    return one_rank.diagnose(known, [engine.load_file(page.built_in_rules() / f"{rule}.py")])


def timed(ns: int) -> Timed:
    return Timed(first_step=0, wall_ns=(ns,))


def loads(fetch_ms: int, workers: int = 0, **more: int) -> RankManifest:
    return RankManifest(rank=0, loaders=(Loader(dataset="D", fetch_ns=fetch_ms * MS, num_workers=workers, **more),))


def test_workers_enough_are_named() -> None:
    (found,) = said("loader_without_workers", IN_PROCESS, loads(60), cpus=8).findings
    assert found.evidence[1].text.endswith(": 2 workers would hide loading.")
    assert found.evidence[1].value == 2
    (fix,) = found.fixes
    assert (fix.trial, "num_workers=2" in fix.after) == ("patch:DataLoader(num_workers=2)", True)


ON_CPU = """
    5 steps of 100
    cpu  {0} 0-60 | aten::mm 60-100
"""


@pytest.mark.parametrize(
    ("rule", "span", "workers"), [("loader_without_workers", "load", 0), ("loader_starvation", "next", 1)]
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
    assert said(rule, ON_CPU.format(span), own, cpus).outcomes[0].outcome is outcome


def test_without_cores_items_have_to_get_cheaper() -> None:
    own = loads(300, items_ns=250 * MS, collate_ns=20 * MS)
    (found,) = said("loader_without_workers", IN_PROCESS, own, cpus=4).findings
    assert found.evidence[1].text.endswith("no number of workers hides loading, which needs 8 cores of 4.")
    assert found.fixes[0].do.startswith("Make the data set's items cheaper")
    assert found.fixes[1].trial == "patch:DataLoader(num_workers=4)"


def test_starving_workers_get_more() -> None:
    (found,) = said("loader_starvation", STARVED, loads(120, workers=1), cpus=8).findings
    assert found.evidence[1].text.endswith(": 3 workers would hide loading.")
    assert [(fix.before, fix.trial) for fix in found.fixes] == [
        ("DataLoader(dataset, batch_size, num_workers=1)", "patch:DataLoader(num_workers=3)")
    ]


def test_workers_on_all_cores_need_cheaper_collation() -> None:
    own = loads(300, workers=4, items_ns=20 * MS, collate_ns=250 * MS)
    (found,) = said("loader_starvation", STARVED, own, cpus=4).findings
    assert [fix.do.partition(":")[0] for fix in found.fixes] == ["Make collation cheaper"]


def test_workers_that_are_fast_enough_need_a_deeper_queue() -> None:
    (found,) = said("loader_starvation", STARVED, loads(60, workers=4), cpus=8).findings
    assert [fix.do.partition(":")[0] for fix in found.fixes] == ["Keep more batches ready"]


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
    assert [(one.outcome, one.why) for one in found.outcomes] == [(kind, why)]
    notes = [note.what for note in found.digest.integrity]
    measured = "Recorded steps take 1.40 times as long as without the profiler."
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
    assert "Recorded steps take 0.80 times as long as those without the profiler." in notes
    nearly = said(
        "profiler_distortion", BUSY_HOST, RankManifest(rank=0, unprofiled=timed(10 * MS), timing=timed(9 * MS))
    )
    assert nearly.outcomes[0].outcome is OutcomeKind.CLEAN
