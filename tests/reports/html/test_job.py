"""The first screen of many ranks: what it says, and how large it is for very many."""

from collections.abc import Sequence
from functools import cache

import numpy as np
import pytest
from msgspec.structs import replace

from diagnose.advice.assembly import summarised
from diagnose.contracts.diagnosis import Diagnosis, RankFinding, RankSummary
from diagnose.facts.communication.matching import join as joined_job
from diagnose.facts.core.breakdown import TimeCause
from diagnose.facts.core.host import HostTime
from diagnose.replay.job import join
from diagnose.replay.job_path import JobPathKind
from diagnose.reports import job_tables, markdown, sections, terminal
from diagnose.reports.html import job_figures, page
from diagnose.trace.frames import Site
from diagnose.trace.job import CollectiveSequence
from tests.replay.playing import MS, Meet, NextStep, Own, Program, play
from tests.reports.test_reports import of, training


def diagnosed(sequences: Sequence[CollectiveSequence]) -> Diagnosis:
    """Any rank's Diagnosis as that of one of these ranks."""
    found = joined_job(sequences)
    assert found is not None
    alone = of(training())
    (one,) = alone.ranks
    ranks = tuple(RankSummary(rank.rank, one.step_time_ns, one.breakdown, one.times_ns) for rank in sequences)
    return replace(alone, job=summarised(found, join(found)), ranks=ranks)


def slow_among(count: int, slow: int, group: int, steps: int = 4) -> list[Program]:
    """Ranks in groups that meet twice, and once with all others; one computes for 30 ms and not 10."""
    programs: list[Program] = []
    for rank in range(count):
        first = rank - rank % group
        near, ms = tuple(range(first, first + group)), 30 if rank == slow else 10
        half: Program = [Own(ms * MS // 2), Meet(near, MS)]
        programs.append([*half, *half, Meet(tuple(range(count)), 3 * MS), NextStep()] * steps)
    return programs


@cache
def eight() -> Diagnosis:
    return diagnosed(play(slow_among(8, 5, 2)))


@cache
def thousand() -> Diagnosis:
    return diagnosed(play(slow_among(1024, 700, 8)))


def test_the_first_screen_names_whom_the_step_waits_for_and_why() -> None:
    diagnosis = eight()
    # The slow rank's 30 ms, its group's 2 ms and 3 ms of all; seven wait for it, its neighbour in their group.
    assert diagnosis.job.step_ns == 35 * MS
    assert job_tables.lead(diagnosis.job) == [
        "A rank waits 17.5 ms of 35.0 ms for others, on average (50.0 %).",
        "The step waits 30.0 ms for rank 5's compute, 3.00 ms for the all-reduce of all ranks"
        " and 2.00 ms for the all-reduce of ranks 4, 5.",
        "Rank 5 computes 30.0 ms a step, the others 10.0 ms (median).",
    ]
    text = page.render(diagnosis)
    first = text[text.index('<section id="job">') : text.index('<h2 id="rank">')]
    assert first.index("Rank 5") < first.index("Critical path of its step") < first.index("process groups")
    assert "the step waits 30.0 ms for its compute" in first
    assert f"Rank {diagnosis.rank} in detail" in text
    assert text.index('id="fixes"') < text.index('<section id="job">')
    assert text.index('<h2 id="rank">') < text.index('<section id="timeline"')


def test_a_rank_that_comes_late_is_named_before_the_compute_of_all() -> None:
    """Three ranks compute for 20 ms; one is on its host for 10 ms besides."""
    usual: Program = [Own(20 * MS), Meet((0, 1, 2), MS), NextStep()] * 4
    sequences = play([usual, [Own(30 * MS), Meet((0, 1, 2), MS), NextStep()] * 4, usual])
    late = sequences[1]
    computed = np.where(late.lane.own_ns > 0, 20 * MS, 0)
    sequences[1] = replace(late, lane=replace(late.lane, compute_ns=computed), compute_ns=np.full(4, 20 * MS))
    found = diagnosed(sequences).job
    assert job_tables.lead(found) == [
        "A rank waits 6.67 ms of 31.0 ms for others, on average (21.5 %).",
        "The step waits 10.0 ms for rank 1's host, 20.0 ms for compute in which no rank stands out"
        " and 1.00 ms for the all-reduce of all ranks.",
        "Rank 1 is on its host, without computing, for 10.0 ms a step, the others 0 (median).",
    ]
    labels = {row.label: row.ns for row in job_tables.path_rows(found)}
    assert labels == {
        "compute, no rank stands out (1 rank)": 20 * MS,
        "rank 1: host": 10 * MS,
        "all-reduce of all ranks": MS,
    }


def test_of_ranks_that_take_alike_none_is_named() -> None:
    found = diagnosed(play([[Own(20 * MS), Meet((0, 1, 2), MS), NextStep()] * 4] * 3)).job
    assert job_tables.culprit(found) is None
    assert job_tables.awaited(found) == (
        "The step waits 20.0 ms for compute in which no rank stands out and 1.00 ms for the all-reduce of all ranks."
    )


def in_turn(more_ms: int) -> list[CollectiveSequence]:
    """Each of four ranks computes for 40 ms in one step of four, else for 20; the last for longer in all of them."""
    meet = Meet((0, 1, 2, 3), MS)
    programs: list[Program] = []
    for rank in range(4):
        own = [(40 if step == rank else 20) + more_ms * (rank == 3) for step in range(4)]
        programs.append([one for ms in own for one in (Own(ms * MS), meet, NextStep())])
    return play(programs)


def test_a_rank_that_explains_little_of_the_waiting_is_not_named() -> None:
    """It takes 3 ms more than the others' 25. The ranks wait for 15: mostly for the one whose turn it is."""
    found = diagnosed(in_turn(3)).job
    assert job_tables.lead(found) == [
        "A rank waits 15.0 ms of 41.8 ms for others, on average (35.9 %).",
        "The step waits 40.8 ms for compute in which no rank stands out and 1.00 ms for the all-reduce of all ranks.",
    ]


def test_a_rank_that_explains_much_of_the_waiting_is_named() -> None:
    found = diagnosed(in_turn(15)).job
    assert job_tables.why(found) == "Rank 3 computes 40.0 ms a step, the others 25.0 ms (median)."


def test_a_rank_that_takes_no_more_than_equal_ranks_do_by_chance_is_not_named() -> None:
    """It takes 22 ms, the others 20: much on GPUs, and nothing on a CPU, where the rules do not speak of it either."""
    sequences = play([[Own(ms * MS), Meet((0, 1, 2), MS), NextStep()] * 4 for ms in (20, 22, 20)])
    on_gpu, on_cpu = (
        diagnosed([replace(sequence, on_cpu=is_cpu) for sequence in sequences]).job for is_cpu in (False, True)
    )
    assert list(job_tables.standing_out(on_gpu)) == [(1, JobPathKind.COMPUTE)]
    assert job_tables.standing_out(on_cpu) == {}


def test_where_nobody_waits_no_rank_stands_out() -> None:
    """Ranks that meet nowhere: one takes longer, and holds nobody up."""
    found = diagnosed(play([[Own(ms * MS), NextStep()] * 4 for ms in (20, 24, 20)])).job
    assert job_tables.standing_out(found) == {}


@pytest.mark.parametrize("render", [terminal.render, markdown.render])
def test_texts_have_the_job_before_the_ranks(render: object) -> None:
    assert callable(render)
    text = render(eight(), details=True)
    assert render(eight()).count("\n") <= terminal.MOST_JOB_LINES
    assert text.index("The job: critical path of its step") < text.index("Ranks\n")
    assert "rank 5: compute" in text


def test_the_tables_add_up_to_the_step() -> None:
    found = thousand().job
    assert sum(row.ns for row in job_tables.path_rows(found)) == found.step_ns


def test_of_very_many_ranks_tables_show_those_to_look_at_and_say_so() -> None:
    tables = {job_section.title: job_section for job_section in sections.job_sections(thousand())}
    assert len(tables["Ranks"].rows) == job_tables.MOST_RANKS
    assert "rank 700" in [row.label for row in tables["Ranks"].rows]
    assert "16 of 1,024 ranks" in tables["Ranks"].note
    groups = tables["The job's process groups and links"]
    assert len(groups.rows) == job_tables.MOST_GROUPS
    assert "The 8 of 129" in groups.note
    assert "ranks 696 to 703" in [row.place for row in groups.rows]


def test_the_heat_map_of_very_many_ranks_keeps_those_that_stand_out() -> None:
    compute, waiting = job_figures.job_heat(thousand()).data
    assert np.shape(compute.z) == np.shape(waiting.z) == (4, 128)
    (stands_out,) = np.flatnonzero((np.array(compute.z) > 20).all(axis=0))
    assert compute.x[stands_out] == "696 to 703"
    assert np.array(waiting.z)[:, stands_out].tolist() == [0.0] * 4
    assert "A column shows 8 ranks" in job_figures.job_heat_sentence(thousand())
    assert [bool(one.visible) for one in (compute, waiting)] == [True, False]


def test_the_heat_map_of_few_ranks_shows_each() -> None:
    compute, waiting = job_figures.job_heat(eight()).data
    assert list(compute.x) == list("01234567")
    assert np.array(compute.z)[0].tolist() == [10.0] * 5 + [30.0] + [10.0] * 2
    assert np.array(waiting.z)[0].tolist() == [20.0] * 5 + [0.0] + [20.0] * 2


def test_the_path_is_drawn_on_the_ranks_that_hold_it() -> None:
    made = job_figures.job_path(eight())
    drawn = {one.name: list(zip(one.base, one.x, one.y, strict=True)) for one in made.data}
    assert drawn == {
        "compute": [(0, 15, "rank 5"), (16, 15, "rank 5")],
        "transfers": [(15, 1, "between ranks"), (31, 1, "between ranks"), (32, 3, "between ranks")],
    }
    assert list(made.layout.yaxis.categoryarray) == ["between ranks", "rank 5"]
    assert job_figures.job_path_sentence(eight()) == (
        "The critical path of the last recorded step, from left to right: it stays on one rank."
    )


def test_ranks_that_hold_the_path_for_a_moment_share_a_lane() -> None:
    """Of 14 ranks each computes before the next one may: the last one for longest."""
    hops: list[Program] = [[] for _ in range(14)]
    for first in range(13):
        for rank in (first, first + 1):
            hops[rank] += [Own((10 + first) * MS)] * (rank == first) + [Meet((first, first + 1), MS)]
    found = diagnosed(play([[*hop, Meet(tuple(range(14))), NextStep()] * 2 for hop in hops]))
    lanes = job_figures.path_lanes(found.job)
    assert lanes == [*(f"rank {rank}" for rank in range(1, 13)), "other ranks", "between ranks"]


def test_the_page_of_very_many_ranks_is_no_larger_than_five_megabytes() -> None:
    assert len(page.render(thousand()).encode()) < 5_000_000


def test_of_each_rank_it_is_told_how_it_spends_its_step_and_what_is_found_on_it() -> None:
    found = eight()
    said = RankFinding("scalar_syncs", "SY01", "It <waits>", Site("train.py", 12, "step"))
    host = HostTime(200, {TimeCause.OPS: 150, TimeCause.PYTHON: 50, TimeCause.SYNC: 0})
    ranks = [replace(rank, findings=(said,) * (rank.rank == 5), host=host) for rank in found.ranks]
    views = list(job_figures.each_rank(replace(found, ranks=tuple(ranks)), found.job))
    assert [view.number for view in views] == list(range(8))
    assert views[5].times == (
        ("compute", "30.0 ms"),
        ("host", "0"),
        ("waiting", "0"),
        ("transfer", "5.00 ms"),
        ("others wait for it", "20.0 ms"),  # Its neighbour, for which the six others wait then.
    )
    assert views[5].host == "op dispatch 75.0 %, Python overhead 25.0 %"
    assert views[5].findings == (("It <waits>", "train.py:12 (step)"),)
    assert views[4].findings == ()
    text = page.render(replace(found, ranks=tuple(ranks)))
    assert text.count("<template id=") == 8
    assert "It &lt;waits&gt;" in text


def test_one_rank_alone_is_no_job() -> None:
    text = page.render(of(training()))
    assert 'id="job"' not in text
    assert 'id="rank"' not in text
