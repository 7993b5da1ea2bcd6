"""Savings by measured ops against what is true: the table, and what is published."""

from benchmarks.changed_ops import Published, Row, Said, published, table, trainings
from benchmarks.planted_cases import Machine
from benchmarks.verdicts import Figure

MACHINE = Machine("a processor", 2, 0.0, "2.9")
UNNAMED = Said(None, False)


def row(name: str, true: Figure, by_measuring: Said, counts: bool = True) -> Row:
    return Row(name, true, counts, UNNAMED, by_measuring, ops=3, not_measured=1, seconds=2.0)


def test_the_table_has_what_is_true_and_what_is_said() -> None:
    rows = (
        row("a", Figure(2.0, 1.9, 2.1), Said(Figure(2.2, 1.8, 2.4), True)),
        row("b", Figure(4.0, 3.8, 4.2), Said(Figure(5.2, 4.4, 6.0), True)),
        row("c", Figure(1.0, 0.9, 1.1), Said(Figure(3.0, 2.0, 4.0), True), counts=False),
    )
    assert table(Published(MACHINE, rows)).splitlines()[2:] == [
        "| `a` | 2.00 (1.90 to 2.10) | 2.20 (1.80 to 2.40) | yes | not named | - | 3 of 4 |",
        "| `b` | 4.00 (3.80 to 4.20) | 5.20 (4.40 to 6.00) | no | not named | - | 3 of 4 |",
        "| **median error; range met** |  | 20% | 1 of 2 | - | 0 of 0 |  |",
    ]


def test_each_training_is_published_once() -> None:
    assert sorted(one.name for one in published().rows) == sorted(one.name for one in trainings())
