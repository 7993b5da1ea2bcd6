"""A step over a whole epoch, where in it the recorded steps are, and what the first line says of both."""

from dataclasses import replace

import pytest

from diagnose import pipeline
from diagnose.facts.core.base import Facts, Missing
from diagnose.facts.run.timed_steps import Epoch, epoch
from diagnose.reports.heading import headline
from diagnose.synthetic.reading import facts_of
from diagnose.trace.manifest import Epochs, Host, RankManifest
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


def of(epochs: Epochs | None) -> Facts:
    drawn = facts_of(DRAWN).rank
    return Facts(replace(drawn, context=Context(RankManifest(rank=0, epochs=epochs), Host(), 1)))


def test_what_makes_an_epochs_first_step_longer() -> None:
    assert epoch(of(WHOLE)) == Epoch(
        steps=32, step_ns=50 * MS, between_ns=280 * MS, starting_ns=680 * MS, first=22, last=26, begun=0
    )


def test_epochs_that_begin_in_the_recorded_steps_are_counted() -> None:
    known = Epochs(began=(0, 2, 4), steps=2, timed=8, step_ns=20 * MS)
    found = epoch(of(known))
    assert (found.first, found.last, found.begun, found.between_ns) == (2, 2, 2, 0)


@pytest.mark.parametrize("known", [None, Epochs(began=(0,)), Epochs(began=(0, 4), steps=4)])
def test_without_a_whole_epoch_it_is_not_known(known: Epochs | None) -> None:
    with pytest.raises(Missing, match="whole epoch"):
        epoch(of(known))


def test_a_window_that_stands_for_no_epoch_is_not_the_headline() -> None:
    found = of_ranks(pipeline.present(of(WHOLE), []))
    assert headline(found) == (
        "One step takes 50.0 ms on average over a whole epoch of 32 steps. The recorded steps are 22 to 26 of an epoch."
        " Not in them: workers that start anew (680 ms an epoch, 42.5 %) and what is between epochs, such as"
        " evaluation, saving and the end of workers (280 ms an epoch, 17.5 %)."
        " In them one step takes 20.0 ms (mean of 5 of 6 recorded, 20.0 ms to 20.0 ms)"
    )


def test_an_epoch_that_is_recorded_whole_says_what_is_between_its_steps() -> None:
    """Two steps of 20 ms on average, of which the first takes 24 ms longer."""
    known = Epochs(began=(0, 2, 4), steps=2, timed=8, step_ns=20 * MS, first_step_ns=32 * MS, between_ns=30 * MS)
    assert headline(of_ranks(pipeline.present(of(known), []))).endswith(
        ". Of an epoch of 2 steps 60.0 % (24.0 ms) is what is between epochs, such as evaluation, saving and the end of"
        " workers"
    )


def test_a_window_with_a_beginning_has_too_much_of_it() -> None:
    known = Epochs(began=(3,), steps=32, timed=32, step_ns=10 * MS)
    found = of_ranks(pipeline.present(of(known), []))
    assert headline(found).startswith(
        "One step takes 10.0 ms on average over a whole epoch of 32 steps. An epoch begins in the recorded steps once,"
        " which is more often than on average. In them one step takes 20.0 ms ("
    )


@pytest.mark.parametrize(("step_ms", "said"), [(22, False), (23, True), (18, True)])
def test_a_tenth_is_as_good_as_the_whole(step_ms: int, said: bool) -> None:
    """The recorded steps take 20 ms: 2 of 22 are under a tenth of it."""
    known = Epochs(began=(0,), steps=32, timed=32, step_ns=step_ms * MS)
    found = of_ranks(pipeline.present(of(known), []))
    assert ("whole epoch" in headline(found)) is said
