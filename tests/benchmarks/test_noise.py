"""What usually differs between runs is fitted from recorded truth, and pairs of recordings are judged as users' are."""

import math
import random

import pytest

from benchmarks.noise import between, gpus, tables
from benchmarks.noise.results import Recorded, Timed, published
from diagnose import statistics as usual
from diagnose.statistics import Spread


def test_the_second_derivative_of_the_logarithm_of_the_gamma_function() -> None:
    assert between.trigamma(1) == pytest.approx(math.pi**2 / 6)
    assert between.trigamma(0.5) == pytest.approx(math.pi**2 / 2)


def test_the_fit_finds_what_groups_were_drawn_with() -> None:
    draw = random.Random(0)
    groups = []
    for size in (3, 5) * 1000:
        spread = 0.03 * math.sqrt(6 / sum(draw.gauss(0, 1) ** 2 for _ in range(6)))
        groups.append([draw.gauss(5, spread) for _ in range(size)])
    found = between.fitted(groups)
    assert found.share == pytest.approx(0.03, rel=0.05)
    assert found.freedom == pytest.approx(6, abs=1)


def test_what_is_used_is_what_the_recorded_truth_gives() -> None:
    healthy, planted, ranks = map(between.fitted, (between.healthy(), between.blocks(False), between.blocks(True)))
    assert usual.CPU.share == pytest.approx(healthy.share, abs=1e-3)
    assert (planted.freedom, usual.CPU.freedom, healthy.freedom) == (3, 4, 6)
    assert Spread(pytest.approx(ranks.share, abs=1e-3), ranks.freedom) == usual.RANKS
    assert round(between.freedom_within_cases()) == usual.SESSION


def test_what_is_used_on_gpus_is_what_their_runs_give() -> None:
    for found, used in zip(gpus.fit(gpus.published()), (usual.WAITING, usual.NAMED), strict=True):
        assert Spread(pytest.approx(found.share, abs=5e-3), found.freedom) == used


def shares_of_differences(table: str) -> list[float]:
    """Of the rows on equal runs: slower and faster, in percent."""
    rows = [line.strip("| ").split(" | ") for line in table.splitlines()[2:]]
    at = [index for index, row in enumerate(rows) if row[0] == "nothing" or "run" in row[0]]
    return [sum(float(cell.rstrip("%")) for cell in rows[index][-5:-3]) for index in at]


def test_at_most_5_of_100_pairs_of_equal_runs_are_said_to_differ() -> None:
    recorded, equal = tables.table(published()), gpus.table(gpus.published())
    assert [share <= 5 for share in shares_of_differences(recorded)] == [True] * 2
    # Of several processes on two cores a few more.
    limits = (5, 6, 5, 5)
    assert [share <= limit for share, limit in zip(shares_of_differences(equal), limits, strict=True)] == [True] * 4


def timed(number: int, slowdown: float = 0.0) -> Timed:
    return Timed("control", number, slowdown, (round(1e6 * (1 + slowdown)),) * 30, (10**6,) * 5)


ROWS = Recorded(rows=(*map(timed, range(6)), *(timed(number, 0.1) for number in range(3))))


def test_each_pair_of_equal_recordings_counts_once() -> None:
    assert len(list(tables.pairs(ROWS, 0.0, 1))) == 15
    assert len(list(tables.pairs(ROWS, 0.0, 3))) == 10
    for before, after in tables.pairs(ROWS, 0.0, 3):
        assert not set(before) & set(after)


def test_slower_recordings_are_compared_with_all_that_are_not() -> None:
    assert len(list(tables.pairs(ROWS, 0.1, 1))) == 18
    assert len(list(tables.pairs(ROWS, 0.1, 3))) == 20
    assert all(one.slowdown == 0.1 for _, after in tables.pairs(ROWS, 0.1, 3) for one in after)


def test_the_table_counts_verdicts() -> None:
    rows = [line.split(" | ") for line in tables.table(ROWS).splitlines()[2:]]
    shown = {(row[0].strip("| "), row[1]): row[2:5] for row in rows}
    assert shown[("nothing", "3")] == ["10", "0.0%", "0.0%"]
    assert shown[("10%", "3")] == ["20", "100.0%", "0.0%"]


def test_nothing_was_measured_before_it_was() -> None:
    assert tables.table(Recorded()) == tables.sentence(Recorded()) == "Not measured."
