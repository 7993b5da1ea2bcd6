"""What holds for every program: of the replay itself, of edits, and between a prediction and the truth."""

from collections.abc import Callable, Iterable, Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from diagnose.facts.core.base import Facts
from diagnose.facts.core.steps import steps
from diagnose.replay.edits import Between, Detach, Edit, Estimate, Move, Remove, Shorten
from diagnose.replay.saving import Replay
from tests.replay.programs import (
    Action,
    Backward,
    EventSync,
    Fetch,
    Free,
    Launch,
    Op,
    Python,
    Record,
    Sync,
    ToDevice,
    ToHost,
    Wait,
    ids,
    run,
    step_us,
)

pytestmark = pytest.mark.slow

TIMES = st.sampled_from([20, 200, 2_000])
LAUNCHES = st.builds(Launch, st.sampled_from(["ka", "kb"]), TIMES, st.sampled_from([7, 7, 7, 20]))
PLAIN: st.SearchStrategy[Action] = st.one_of(
    LAUNCHES,
    st.builds(Python, st.sampled_from([100, 500, 3_000])),
    st.builds(Python, st.sampled_from([100, 500, 3_000]), st.just("aten::o")),
    st.builds(Launch, st.just("kg"), TIMES, kernels=st.integers(2, 9)),
    st.builds(Sync, st.sampled_from([7, 20, None])),
    st.builds(ToHost, st.just(2)),
    st.builds(ToDevice, st.sampled_from([500, 5_000])),
    st.builds(Free, st.sampled_from([100, 5_000])),
    st.builds(Launch, st.just("ka"), TIMES),
)


def inside(actions: Iterable[Action]) -> tuple[Action, ...]:
    """Actions of autograd's thread launch something: else it is no training thread."""
    return (*actions, Launch("kb", 2))


NESTED: st.SearchStrategy[Action] = st.one_of(
    PLAIN,
    st.builds(Op, st.just("aten::n"), st.lists(PLAIN, min_size=1, max_size=5).map(tuple)),
    st.builds(Backward, st.lists(PLAIN, max_size=5).map(inside).map(lambda some: (Op("autograd::X", some),))),
    st.builds(Fetch, st.sampled_from([400, 20_000])),
)


def joined(parts: Iterable[Sequence[Action]]) -> list[Action]:
    return [action for part in parts for action in part]


FORKS = st.sampled_from(
    [(Record("e", 7), Wait("e", 20)), (Record("f", 20), Wait("f", 7)), (Record("g", 7), EventSync("g"))]
)
REPEATED = st.builds(lambda launch, count: [launch] * count, LAUNCHES, st.integers(5, 40))
STEPS = st.lists(st.one_of(NESTED.map(lambda one: [one]), FORKS.map(list), REPEATED), min_size=2, max_size=9)
PROGRAMS = STEPS.map(lambda parts: [*joined(parts), Launch("kb", 20)])
SINGLE = st.builds(
    lambda host, count, us: [*[Python(host), Launch("ka", us), Launch("kb", us)] * count],
    TIMES,
    st.integers(1, 30),
    TIMES,
)

CHANGES: dict[str, Callable[[Action], Sequence[Action]]] = {
    "ka": lambda one: [replace(one, us=one.us // 2)] if isinstance(one, Launch) and one.name == "ka" else [one],
    "op": lambda one: [replace(one, us=one.us // 2)] if isinstance(one, Python) and one.op else [one],
    "no ka": lambda one: [] if isinstance(one, Launch) and one.name == "ka" else [one],
    "no op": lambda one: [] if isinstance(one, Op) and one.name == "aten::n" else [one],
}
EDITS: dict[str, Callable[[Facts], Edit]] = {
    "ka": lambda facts: Shorten(ids(facts, "ka"), 0.5),
    "op": lambda facts: Shorten(ids(facts, "aten::o"), 0.5),
    "no ka": lambda facts: Remove(ids(facts, "ka")),
    "no op": lambda facts: Remove(ids(facts, "aten::n")),
}


def changed(actions: Iterable[Action], change: Callable[[Action], Sequence[Action]]) -> list[Action]:
    found: list[Action] = []
    for action in actions:
        if isinstance(action, (Op, Backward)):
            action = replace(action, inside=tuple(changed(action.inside, change)))
        found += change(action)
    return found


def recorded(actions: Sequence[Action], count: int = 5) -> Facts:
    return run([actions] * count, sync_events=True).draw.facts()


def step_ns(replay: Replay, *edits: Edit, level: Estimate = Estimate.LIKELY) -> int:
    return int(replay.step_times_ns([(edits, level)])[0])


KEEPS = st.lists(st.floats(0, 1), min_size=3, max_size=3).map(lambda three: Between(*sorted(three, reverse=True)))
NAMES = st.lists(
    st.sampled_from(["ka", "kb", "kg", "aten::o", "aten::n", "cuda*", "cudaLaunch*", "cuda*Synchronize", "Memcpy*"]),
    min_size=1,
    max_size=3,
)


def some_edits(facts: Facts, data: st.DataObject) -> list[Edit]:
    """A few edits of spans of some names, so that they change every step alike, as edits should."""
    spans = NAMES.map(lambda names: np.unique(np.concatenate([ids(facts, name) for name in names])))
    edits = st.one_of(st.builds(Shorten, spans, KEEPS), st.builds(Remove, spans), st.builds(Detach, spans))
    return data.draw(st.lists(edits, min_size=1, max_size=4))


@settings(max_examples=100, derandomize=True)
@given(actions=PROGRAMS, name=st.sampled_from(sorted(EDITS)))
def test_what_a_fix_is_predicted_to_save_it_saves(actions: list[Action], name: str) -> None:
    """Where everything is recorded. What a call takes by itself is only known as the usual one of its kind."""
    before, after = step_us(run([actions] * 5)), step_us(run([changed(actions, CHANGES[name])] * 5))
    facts = recorded(actions)
    predicted = Replay(facts).savings([[EDITS[name](facts)]])[0].likely_ns / 1_000
    assert abs(predicted - max(before - after, 0)) <= 0.01 * before + 60


@settings(max_examples=40)
@given(actions=PROGRAMS, data=st.data())
def test_laws_of_every_program_and_its_edits(actions: list[Action], data: st.DataObject) -> None:
    facts = recorded(actions)
    replay, edits = Replay(facts), some_edits(facts, data)
    whole = step_ns(replay)
    # Without edits, and with all of everything kept, every step takes what was measured.
    everything = np.arange(len(facts.rank.spans), dtype=np.int64)
    assert whole == step_ns(replay, Shorten(everything, 1.0)) == steps(facts).mean_ns == replay.quality.step_time_ns
    assert np.isfinite([replay.quality.error_share, replay.quality.unexplained_share]).all()
    assert 0 <= replay.quality.unexplained_share <= 1
    # No edit makes a step longer; together they save no less than each alone, and in any order the same.
    took = {level: step_ns(replay, *edits, level=level) for level in Estimate}
    assert all(0 <= one <= whole for one in took.values())
    assert all(took[Estimate.LIKELY] <= step_ns(replay, edit) for edit in edits)
    a, b, c = (Shorten(ids(facts, name), keep) for name, keep in (("ka", 0.5), ("kb", 0.3), ("aten::o", 0.2)))
    assert len({step_ns(replay, *order) for order in ((a, b, c), (c, b, a), (b, a, c))}) == 1
    # Savings are in order, and leave the busiest resource its time.
    found = replay.savings([edits])[0]
    assert 0 <= found.low_ns <= found.likely_ns <= found.high_ns <= whole
    # Cases that are asked together are answered as each alone.
    moved = [Move(ids(facts, "enumerate(DataLoader)*"), 4)]
    cases = [(some, level) for some in (edits, moved, []) for level in Estimate]
    assert replay.step_times_ns(cases).tolist() == [step_ns(replay, *some, level=level) for some, level in cases]


def test_work_that_moves_across_a_border_saves_no_more_than_the_busiest_resource_allows() -> None:
    """Without waits a little work slips out of the used steps: their replay alone would save 1.01 of 6.145 ms."""
    several = [Launch("ka", 200, 20)] * 5
    facts = recorded([ToDevice(5_000), Launch("ka", 200), *several, Free(100), Launch("kb", 20)])
    replay, edits = Replay(facts), [Detach(ids(facts, "cuda*"))]
    busiest_ns = 5_220_000
    found = replay.savings([edits])[0]
    assert found.high_ns == found.likely_ns == step_ns(replay) - busiest_ns
    assert found.replayed_ns == (busiest_ns,) * 3


@settings(max_examples=40)
@given(actions=PROGRAMS)
def test_what_is_off_the_path_saves_nothing(actions: list[Action]) -> None:
    # `side` has a stream of its own, starts first and ends long before the last kernel does.
    facts = recorded([Launch("side", 1, 30), Python(100), *actions, Launch("main", 10_000)])
    assert step_ns(Replay(facts), Shorten(ids(facts, "side"), 0.0)) == steps(facts).mean_ns


@settings(max_examples=40)
@given(actions=SINGLE)
def test_on_one_stream_that_is_always_busy_savings_add_up_to_no_more_than_both(actions: list[Action]) -> None:
    # Everything is launched before the first kernel ends: only the stream takes time.
    serial = [Launch("ka", 900), *actions, Launch("kb", 90_000)]
    facts = recorded(serial)
    a, b, both = Replay(facts).savings(
        [[Shorten(ids(facts, "ka"), 0.5)], [Shorten(ids(facts, "kb"), 0.9)], [Shorten(ids(facts, "k*"), 0.5)]]
    )
    joint = Replay(facts).savings([[Shorten(ids(facts, "ka"), 0.5), Shorten(ids(facts, "kb"), 0.9)]])[0]
    assert joint.likely_ns <= a.likely_ns + b.likely_ns + 1
    assert both.likely_ns >= joint.likely_ns


def test_on_two_streams_savings_together_may_exceed_their_sum() -> None:
    facts = recorded([Launch("a", 5_000, 7), Launch("b", 4_995, 20), Sync(None)])
    a, b = Shorten(ids(facts, "a"), 0.5), Shorten(ids(facts, "b"), 0.5)
    alone_a, alone_b, joint = (found.likely_ns for found in Replay(facts).savings([[a], [b], [a, b]]))
    # Both end 5,008 after the first launch; `b` was launched 5 later.
    assert (alone_a, alone_b) == (0, 0)
    assert joint == 2_497_500
