"""What is found in runs whose truth is known, priced in time of the run."""

import random
from pathlib import Path

import pytest
from msgspec.structs import replace

from diagnose.contracts.watched_run import RunBasis, RunFinding, RunSaving
from diagnose.facts.core.base import Missing
from diagnose.facts.watched import steps as steps_of_run
from diagnose.facts.watched.log import RunFacts
from diagnose.rulekit import engine
from diagnose.rulekit.engine import RuleSet
from diagnose.trace.run_log import EpochTime, OutlierStep, RunLog, Window
from diagnose.watched.assembly import watched_run
from diagnose.watched.findings import LEFT_OUT
from tests.watched.logs import MS, S, column, interval, log, noise, recorded, windows, with_columns, with_gauges

OF_CHANGE = {"growing_steps", "slower_steps", "growing_evaluation", "growing_checkpoints", "growing_memory"}


def outliers(one: RunLog) -> steps_of_run.Outliers | None:
    return steps_of_run.outliers(RunFacts([one]))


def found(one: RunLog) -> dict[str, RunFinding]:
    return {finding.kind: finding for finding in watched_run([one]).findings}


def whys(one: RunLog) -> dict[str, str]:
    return {other.rule: other.why for other in watched_run([one]).not_found}


def told(one: RunFinding) -> str:
    return " ".join(evidence.text for evidence in one.evidence)


def test_steps_that_grow_are_told_with_what_that_costs() -> None:
    # 12 windows of 10 steps from 100 to 210 ms, and as much of each more in the backward pass.
    some = windows([(100 + 10 * k) * MS for k in range(12)])
    some = tuple(with_columns(one, backward=column(10, (400 + 100 * k) * MS)) for k, one in enumerate(some))
    assert set(found(log(some))) == {"growing_steps"}
    one = found(log(some))["growing_steps"]
    # The line begins with 100 ms: 10 steps of each of 100, 110, ..., 210 ms take 18.6 s, not 12. Against the median of
    # the first three, 110 ms, it is 5.4 s more.
    assert one.saving == RunSaving(5400 * MS, 6600 * MS, 6600 * MS, RunBasis.COMPARED)
    assert told(one) == (
        "The typical step rises from 110 ms to 200 ms (+1.00 s per 1,000 steps): 6.60 s (33.7 % of the run)."
        " The time rises in the backward pass (50.0 ms to 140 ms)."
        " At this rate, a run twice as long would end at 320 ms per step."
    )
    assert one.change.startswith("Detach tensors that you keep from step to step")


def test_growth_shows_within_the_first_hundred_steps(tmp_path: Path) -> None:
    # 100 steps from 20 to 69.5 ms: 4.5 s, which are four windows.
    some = [interval(20 * MS + k * MS // 2, forward=k * MS // 2) for k in range(100)]
    one = recorded(tmp_path, some)
    assert len(one.windows) < 6
    grown = found(one)["growing_steps"]
    assert "The time rises in the forward pass" in told(grown)
    # The first of 25 groups of four steps takes 20.75 ms a step; the mean step takes 44.75 ms.
    assert grown.saving.likely_ns == pytest.approx(100 * 24 * MS, rel=0.01)


def test_steps_that_take_longer_from_a_moment_on() -> None:
    some = windows([100 * MS] * 20 + [150 * MS] * 20)
    one = found(log(some))["slower_steps"]
    assert one.saving == RunSaving(10 * S, 10 * S, 10 * S, RunBasis.COMPARED)  # 200 steps of 50 ms more.
    assert told(one).startswith(
        "From step 201 on (21.0 s into the run), the typical step takes 150 ms instead of 100 ms:"
    )
    assert "The log does not show the cause." in told(one)


def test_a_device_that_is_held_back_says_so() -> None:
    some = with_gauges(
        windows([100 * MS] * 20 + [150 * MS] * 20),
        sm_clock_mhz=[1900.0] * 20 + [1200.0] * 20,
        temperature_c=[70.0] * 20 + [87.0] * 20,
    )
    one = found(log(some))["slower_steps"]
    assert "The GPU is throttled: its SM clock goes from 1900 to 1200 MHz, its temperature from 70 to 87 °C." in (
        told(one)
    )
    assert one.change.startswith("Check the GPU's cooling and power limit")
    assert "The log does not show the cause." not in told(one)


@pytest.mark.parametrize(
    ("each_s", "does"), [(1.0, "It waits longer, or other processes use its cores."), (1.5, "It does more work.")]
)
def test_cpu_time_tells_work_from_waiting(each_s: float, does: str) -> None:
    used = [float(k) for k in range(20)] + [20 + each_s * k for k in range(20)]
    some = with_gauges(windows([100 * MS] * 20 + [150 * MS] * 20), cpu_s=used)
    assert does in told(found(log(some))["slower_steps"])


@pytest.mark.parametrize("between", [False, True])
def test_pauses_that_get_longer_are_told_once_and_not_of_usual_steps(between: bool) -> None:
    """In each ten steps one takes so much longer, or comes so much later: 0 to 11 s, 0 to 1.1 s in the mean step."""
    some = tuple(
        with_columns(one, outside=column(1, k * S))
        if between
        else replace(with_columns(one, step=column(10, S + k * S)), outliers=1, excess_ns=k * S)
        for k, one in enumerate(windows([100 * MS] * 12))
    )
    made = found(log(some, length_ns=90 * S))
    assert set(made) == {"growing_pauses"}
    assert "add 100 ms to the mean step at first, 1.00 s at the end" in told(made["growing_pauses"])
    assert "The typical step takes 100 ms." in told(made["growing_pauses"])
    assert made["growing_pauses"].saving.likely_ns == 10 * 12 * 450 * MS  # the mean of 0 to 1.1 s, less 0.1 s


@pytest.mark.parametrize("part", ["loader", "forward", "backward", "optimizer", "rest"])
def test_a_stutter_is_told_with_its_period_and_what_of_the_step_it_is(tmp_path: Path, part: str) -> None:
    def step(k: int) -> dict[str, int]:
        usual = {"loader": 2 * MS, "forward": 4 * MS, "backward": 8 * MS, "optimizer": 2 * MS, "rest": 4 * MS}
        return usual | ({part: usual[part] + 380 * MS} if k % 50 == 49 else {})

    some = [interval(sum(step(k).values()), **{n: v for n, v in step(k).items() if n != "rest"}) for k in range(1000)]
    one = recorded(tmp_path, some)
    seen = outliers(one)
    assert (seen.count, seen.period_steps, seen.regular, seen.part) == (20, 50, 1.0, part)
    told_one = found(one)["outlier_steps"]
    assert told_one.title == "Step-time spikes every 50 steps"
    # 20 times 380 ms, of which half likely goes, nothing at least and 90 % at most.
    assert told_one.saving == RunSaving(0, 3800 * MS, 6840 * MS, RunBasis.AT_MOST)


def test_collections_that_make_outliers_are_one_finding(tmp_path: Path) -> None:
    some = [interval(20 * MS + (k % 50 == 49) * 380 * MS, collection=(k % 50 == 49) * 380 * MS) for k in range(1000)]
    all_ = found(recorded(tmp_path, some))
    assert set(all_) == {"collection"}
    assert told(all_["collection"]) == (
        "Python collects garbage in 20 steps: 7.60 s (26.6 % of the run)."
        " This causes step-time spikes (over 3x the typical step) every 50 steps."
    )
    assert all_["collection"].saving.likely_ns == 6840 * MS


def test_outliers_at_no_period_and_too_many() -> None:
    some = windows([100 * MS] * 2, steps=250)
    rare = tuple(replace(one, outliers=5, excess_ns=3 * S, gaps=((3, 1), (17, 1), (40, 1), (90, 1))) for one in some)
    assert found(log(rare))["outlier_steps"].title == "Step-time spikes"
    every_other = tuple(replace(one, outliers=60, gaps=((2, 60),)) for one in some)  # 120 of 500 steps
    with pytest.raises(Missing, match="more than a fifth of the steps are outliers"):
        outliers(log(every_other))


def test_the_longest_outlier_says_whether_it_waited() -> None:
    # The longest wait of the window was in another step than the outlier.
    (window,) = windows([100 * MS], steps=100)
    window = with_columns(
        window, loader=replace(column(100, 2 * S), most_ns=S), step=replace(column(100, 10 * S), most_ns=S)
    )
    apart = replace(window, outliers=5, excess_ns=4 * S, longest=(OutlierStep(7, S, 10 * MS),))
    within = replace(apart, longest=(OutlierStep(7, S, 900 * MS),))
    assert outliers(log((apart,))).part == "rest"  # type: ignore[union-attr]
    assert outliers(log((within,))).part == "loader"  # type: ignore[union-attr]


def cold(later_loader: int = MS) -> RunLog:
    """A first epoch of 30 steps of 50 ms, most of which wait, then two with steps of 10 ms."""
    (one,) = windows([10 * MS], steps=90)
    epochs = (
        EpochTime(0, S, 30, 30 * 50 * MS, 30 * 42 * MS, 42 * MS),
        *(EpochTime(k, S, 30, 30 * 10 * MS, 30 * later_loader, later_loader) for k in (30, 60)),
    )
    some = replace(with_columns(one, step=column(90, 2100 * MS), loader=column(90, 1320 * MS)), epochs=epochs)
    return log((replace(some, ended_ns=S + 2100 * MS),))


def test_waiting_is_told_by_when_it_is() -> None:
    one = found(replace(cold(), length_ns=4 * S))
    # 30 steps of 40 ms beyond later ones are 1.2 s, half of which is under a second: too little to be told.
    assert one == {}
    long = replace(cold(), windows=tuple(_longer(w, 10) for w in cold().windows), length_ns=40 * S)
    one = found(long)
    assert set(one) == {"slow_first_epoch"}
    # 12 s beyond later epochs, 12.3 of which are for data; the rest of the waiting is 0.9 s.
    assert one["slow_first_epoch"].saving == RunSaving(0, 6 * S, 10_800 * MS, RunBasis.AT_MOST)
    assert told(one["slow_first_epoch"]) == (
        "Steps take 50.0 ms in the first epoch and 10.0 ms later: 12.0 s (30.0 % of the run)."
        " 12.0 s (30.0 % of the run) of this is waiting for data, perhaps with a cold file cache."
    )


def _longer(window: Window, factor: int) -> Window:
    epochs = tuple(
        EpochTime(e.first_step * factor, e.began_ns, e.steps * factor, e.step_ns * factor, e.loader_ns * factor, 0)
        for e in window.epochs
    )
    columns = {n: column(c.count * factor, c.sum_ns * factor) for n, c in window.columns.items()}
    return replace(window, steps=window.steps * factor, columns=columns, epochs=epochs)


def test_workers_that_start_anew_in_each_epoch(tmp_path: Path) -> None:
    def step(k: int):  # type: ignore[no-untyped-def]
        begins = k % 50 == 49
        wait = MS + 600 * MS * begins
        return interval(19 * MS + wait, loader=wait, epoch=begins)

    one = recorded(tmp_path, map(step, range(1000)))
    assert [(e.first_step, e.first_wait_ns) for e in one.windows[-1].epochs][-1] == (1000, 601 * MS)
    alone = found(one)
    assert set(alone) == {"epoch_starts"}  # Not outliers every 50 steps as well, nor waiting all along.
    # 20 epochs begin with 600 ms more than other steps wait.
    assert alone["epoch_starts"].saving == RunSaving(0, 6 * S, 10_800 * MS, RunBasis.AT_MOST)
    with_workers = replace(one, windows=with_gauges(one.windows, children_resident_bytes=[1e9] * len(one.windows)))
    kept = found(with_workers)["epoch_starts"]
    assert kept.saving == RunSaving(6 * S, 10_800 * MS, 11_760 * MS, RunBasis.RULE_OF_THUMB)
    assert kept.change == "Keep the workers between epochs: persistent_workers=True."


def test_waiting_all_along(tmp_path: Path) -> None:
    one = found(recorded(tmp_path, [interval(20 * MS, loader=8 * MS)] * 1000))
    assert set(one) == {"data_wait"}
    assert one["data_wait"].saving == RunSaving(0, 4 * S, 7200 * MS, RunBasis.AT_MOST)
    assert told(one["data_wait"]) == "Steps wait 8.00 ms on average for their batch: 8.00 s (38.1 % of the run)."


def test_rules_that_settings_exclude_are_not_called_fine(tmp_path: Path) -> None:
    one, ids = recorded(tmp_path, [interval(20 * MS)] * 1000), {rule.page.id for rule in engine.load(RuleSet(), True)}
    run = watched_run([one], rules=RuleSet(select=("RU01",)))
    left_out = {other.rule for other in run.not_found if other.why == LEFT_OUT}
    assert (run.findings, left_out) == ((), ids - {"waiting_for_data"})


def test_evaluation_is_priced_as_what_half_of_it_takes(tmp_path: Path) -> None:
    some = [
        interval(20 * MS, **({"evaluation": 2 * S, "evaluation_loader": S} if k % 100 == 99 else {}))
        for k in range(1000)
    ]
    one = found(recorded(tmp_path, some))
    assert set(one) == {"evaluation", "evaluation_data_wait"}
    assert one["evaluation"].saving == RunSaving(10 * S, 10 * S, 10 * S, RunBasis.CHOICE)
    assert told(one["evaluation"]) == (
        "10 evaluations of 2.00 s, one every 100 steps: 20.0 s (48.8 % of the run)."
        " Evaluating half as often would save 10.0 s."
    )
    assert one["evaluation_data_wait"].saving == RunSaving(0, 5 * S, 9 * S, RunBasis.AT_MOST)


def test_evaluations_and_checkpoints_that_grow(tmp_path: Path) -> None:
    some = [
        interval(20 * MS, **({"evaluation": S + k * 4 * MS, "save": S + k * 2 * MS} if k % 100 == 99 else {}))
        for k in range(1000)
    ]
    one = found(recorded(tmp_path, some))
    assert {"growing_evaluation", "growing_checkpoints"} <= set(one)
    # Evaluations of 1.396, 1.796, ..., 4.996 s, 31.96 s in all; the median of the first three of ten is 1.796 s.
    assert one["growing_evaluation"].saving.likely_ns == pytest.approx(31.96 * S - 10 * 1.796 * S)
    assert one["growing_checkpoints"].saving.likely_ns == pytest.approx(20.98 * S - 10 * 1.398 * S)
    few = found(recorded(tmp_path / "..", some[:450], rank=7))
    assert "growing_evaluation" not in few


def test_what_happens_once_or_after_the_last_step_cannot_be_done_less_often(tmp_path: Path) -> None:
    once = [interval(20 * MS, evaluation=(k == 50) * 10 * S) for k in range(100)]
    assert found(recorded(tmp_path, once)) == {}
    (window,) = windows([10 * MS], steps=100)
    assert found(log((window,), last={"save": 10 * S}, length_ns=12 * S)) == {}


def test_idle_ends_of_epochs(tmp_path: Path) -> None:
    def step(k: int):  # type: ignore[no-untyped-def]
        idle = 3 * S * (k % 100 == 99)
        return interval(20 * MS + idle, between=MS + idle, epoch=k % 100 == 99)

    one = found(recorded(tmp_path, map(step, range(1000))))
    assert set(one) == {"outside"}
    assert one["outside"].title == "Pauses at the ends of epochs"
    # The time between steps is all of the pause: 3.001 s each.
    assert one["outside"].saving == RunSaving(0, 15_005 * MS, 27_009 * MS, RunBasis.AT_MOST)
    anywhere = [interval(20 * MS + 3 * S * (k % 100 == 50), between=3 * S * (k % 100 == 50)) for k in range(1000)]
    other = found(recorded(tmp_path, anywhere, rank=1))["outside"]
    assert other.title == "Pauses between steps"
    assert told(other).startswith("10 pauses, one every 100 steps, 3.00 s each (up to 3.00 s): 30.0 s")
    at_once = [interval(20 * MS + S * (k >= 980), between=S * (k >= 980)) for k in range(1000)]
    assert "20 pauses at irregular intervals, 1.00 s each" in told(
        found(recorded(tmp_path, at_once, rank=2))["outside"]
    )


def test_recompilation(tmp_path: Path) -> None:
    some = [interval(20 * MS + S * (k in (300, 500, 800)), compilation=S * (k in (300, 500, 800))) for k in range(1000)]
    one = found(recorded(tmp_path, some))
    assert set(one) == {"compilation"}
    assert one["compilation"].saving == RunSaving(0, 1500 * MS, 2700 * MS, RunBasis.AT_MOST)


def test_memory_that_grows_to_the_end() -> None:
    some = windows([100 * MS] * 30)  # Of 31 s, of which windows that end after 10.33 s count: from 11 s on.
    one = found(log(with_gauges(some, resident_bytes=[1e9 + 10e6 * k for k in range(30)])))
    assert set(one) == {"growing_memory"}
    assert one["growing_memory"].saving == RunSaving(0, 0, 0, RunBasis.NONE)
    assert "to 1.29 GB" in told(one["growing_memory"])
    assert "At this rate, a run twice as long would reach 1.5" in told(
        one["growing_memory"]
    )  # 300 steps at 0.9 to 1 MB each.
    full = [1e9 + 10e6 * min(k, 9) for k in range(30)]
    assert found(log(with_gauges(some, resident_bytes=full))) == {}
    both = with_gauges(some, allocated_bytes=[1e9 + 10e6 * k for k in range(30)], resident_bytes=[1e9] * 30)
    assert [f.title for f in watched_run([log(both)]).findings] == ["Allocated GPU memory keeps growing"]


def test_a_long_healthy_run_shows_nothing_and_a_short_one_cannot_tell() -> None:
    steady = with_gauges(windows([100 * MS] * 30), resident_bytes=[1e9] * 30)
    assert found(log(steady)) == {}
    rules = {one.page.id for one in engine.load(RuleSet(), of_run=True)}
    assert set(whys(log(steady))) == rules
    one_epoch, short = "the log has no second epoch of a DataLoader", "the log needs at least 7 windows"
    assert {rule: why for rule, why in whys(log(steady)).items() if why} == {"epoch_starts": one_epoch}
    unknown = {rule for rule, why in whys(log(steady[:5])).items() if why.startswith(short)}
    assert unknown == {"slower_steps", "growing_memory"}


def test_findings_stand_in_the_order_of_what_they_save(tmp_path: Path) -> None:
    some = [
        interval(20 * MS, loader=8 * MS, **({"save": S, "evaluation": 2 * S} if k % 100 == 99 else {}))
        for k in range(1000)
    ]
    all_ = watched_run([recorded(tmp_path, some)]).findings
    assert [(one.kind, one.saving.likely_ns) for one in all_] == [
        ("evaluation", 10 * S),
        ("checkpoints", 9 * S),
        ("data_wait", 4 * S),
    ]


@pytest.mark.parametrize("share", [0.05, 0.3])
def test_noise_is_not_taken_for_growth_or_change(share: float) -> None:
    """Windows whose mean steps and parts vary by so much: of 500 runs five at most have a finding of that kind."""
    false = 0
    for seed in range(500):
        factors = noise(seed, share)
        some = windows([int(100 * MS * next(factors)) for _ in range(random.Random(seed).choice([20, 60, 150]))])
        some = tuple(
            with_columns(
                one,
                backward=column(10, int(400 * MS * next(factors))),
                evaluation=column(1, int(S * next(factors))),
                save=column(1, int(S * next(factors))),
            )
            for one in some
        )
        some = with_gauges(some, resident_bytes=[1e9 * next(factors) for _ in some])
        false += bool(OF_CHANGE & set(found(log(some, length_ns=4 * some[-1].ended_ns))))
    assert false <= 5


def test_what_comes_and_goes_is_hardly_taken_for_growth_or_change() -> None:
    """Of 150 runs disturbed by 20 %, for some 5 windows each time (an autoregression of 0.8), five at most."""
    false = 0
    for seed in range(150):
        chance, disturbed, steps = random.Random(seed), 0.0, list[int]()
        for _ in range(100):
            disturbed = 0.8 * disturbed + 0.6 * chance.gauss(0, 1)
            steps.append(int(100 * MS * max(1 + 0.2 * disturbed, 0.2)))
        false += bool(OF_CHANGE & set(found(log(windows(steps)))))
    assert false <= 5


def test_costs_never_exceed_the_run(tmp_path: Path) -> None:
    chance = random.Random(1)
    for seed in range(40):
        period, rate = chance.randrange(20, 300), chance.random() * 0.05

        def step(k: int, period: int = period, rate: float = rate):  # type: ignore[no-untyped-def]
            parts = {
                n: int(chance.expovariate(1 / (4 * MS)) * (1 + rate * k))
                for n in ("loader", "forward", "backward", "optimizer", "collection")
            }
            now = k % period == period - 1
            parts["loader"] += now * chance.randrange(S)
            between = now * chance.randrange(2 * S)
            evaluation = now * chance.randrange(3 * S)
            apart = {"evaluation": evaluation, "evaluation_loader": evaluation // 2, "save": now * chance.randrange(S)}
            return interval(sum(parts.values()) + between, between=between, **parts, **apart, epoch=now)

        one = recorded(tmp_path, map(step, range(1000)), rank=seed)
        run = watched_run([one])
        assert sum(part.ns for part in run.ranks[0].parts) == one.length_ns
        assert sum(s.ended_ns - s.began_ns for s in run.ranks[0].over_time) == one.length_ns - S
        assert all(sum(s.parts.values()) == s.ended_ns - s.began_ns for s in run.ranks[0].over_time)
        for finding in run.findings:
            assert 0 <= finding.saving.low_ns <= finding.saving.likely_ns <= finding.saving.high_ns <= one.length_ns


def test_a_few_outliers_are_told_where_they_cost_enough() -> None:
    some = list(windows([100 * MS] * 8))
    some[4] = replace(some[4], outliers=1, excess_ns=5 * S, ended_ns=some[4].ended_ns)
    paused = with_columns(some[4], step=column(10, 6 * S), loader=column(1, 5 * S))
    once = log((*some[:4], paused), length_ns=12 * S)
    one = found(once)["outlier_steps"]
    assert one.title == "Step-time spikes"
    assert "1 outlier step (over 3x the typical step) takes 5.00 s longer each: 5.00 s" in told(one)
    assert "outlier_steps" not in found(log((*some[:4], replace(paused, excess_ns=S // 2))))


def test_what_no_order_of_so_few_windows_could_show_cannot_be_told() -> None:
    """Of six windows even those in order come by chance more often than a rise may: once in 720."""
    six, seven = (log(windows([(100 + 40 * k) * MS for k in range(count)])) for count in (6, 7))
    assert "at least 7 windows" in whys(six)["slower_steps"]
    assert "growing_steps" in found(seven)


def test_what_would_save_more_than_the_run_took_is_no_finding_and_not_fine_either() -> None:
    """As only a damaged log has it: outliers that take 60 s of a run of 9 s."""
    some = list(windows([100 * MS] * 8))
    some[4] = replace(some[4], outliers=1, excess_ns=60 * S)
    broken = log(tuple(some))
    assert "outlier_steps" not in found(broken)
    assert whys(broken)["step_pauses"] == "the log contradicts itself"
