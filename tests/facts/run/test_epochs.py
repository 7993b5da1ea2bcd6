"""A step over a whole epoch, where in it the recorded steps are, and what the first line says of both."""

import msgspec
import pytest
from msgspec.structs import replace

from diagnose import pipeline
from diagnose.facts.core.base import Facts, Missing
from diagnose.facts.run.timed_steps import Epoch, epoch, slowdown
from diagnose.reports import brief
from diagnose.synthetic.reading import facts_of
from diagnose.trace.manifest import Epochs, Host, RankManifest, Timed
from diagnose.trace.model import Context
from tests.diagnoses import of_ranks

MS = 1_000_000
DRAWN = """
    6 steps of 20
    cpu  aten::mm 0-18 | optimizer 18-19
"""
"""Of steps 0 to 5 the first is not used."""
WHOLE = Epochs(
    began=(-20,),
    steps=32,
    timed=32,
    step_ns=50 * MS,
    first_step_ns=50 * MS + 31 * 30 * MS,  # 960 ms longer than the others, which take 20.
    between_ns=290 * MS,  # 10 of them are what comes between all steps.
    starting_ns=680 * MS,
)


def of(epochs: Epochs | None, alone: Timed | None = None) -> Facts:
    drawn = facts_of(DRAWN).rank
    known = RankManifest(rank=0, epochs=epochs, unprofiled=alone)
    return Facts(msgspec.structs.replace(drawn, context=Context(known, Host(), 1)))


def test_what_makes_an_epochs_first_step_longer() -> None:
    assert epoch(of(WHOLE)) == Epoch(steps=32, step_ns=50 * MS, between_ns=280 * MS, starting_ns=680 * MS)


@pytest.mark.parametrize("known", [None, Epochs(began=(0,)), Epochs(began=(0, 4), steps=4)])
def test_without_a_whole_epoch_it_is_not_known(known: Epochs | None) -> None:
    with pytest.raises(Missing, match="whole epoch"):
        epoch(of(known))


def test_what_comes_once_an_epoch_is_said() -> None:
    found = of_ranks(pipeline.present(of(WHOLE), []))
    parts = "the first batch 680 ms, evaluation, saving and the like 280 ms"
    assert brief.of(found).notes[0] == f"Once per epoch (32 steps), on top of the steps: {parts}."


@pytest.mark.parametrize(("began", "expected_ms"), [((-20,), 27.5), ((2,), 27.5), ((), 20)])
def test_the_first_step_of_an_epoch_weighs_as_in_a_whole_one(began: tuple[int, ...], expected_ms: float) -> None:
    """Steps take 20 ms, and the first of 32 takes 260: 7.5 ms a step more, however many of them were timed."""
    times = tuple((260 if at in began else 20) * MS for at in range(5))
    epochs = replace(WHOLE, began=began, first_step_ns=260 * MS if began else None)
    facts = of(epochs, Timed(first_step=0, wall_ns=times))
    found = slowdown(facts)
    assert (found.mean_ns / MS, found.unprofiled_ns / MS) == (expected_ms, 20)
