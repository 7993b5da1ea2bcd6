"""What is predicted of several fixes together."""

from msgspec.structs import replace

from diagnose.contracts.diagnosis import Diagnosis
from diagnose.contracts.finding import ReplayQuality, Together
from diagnose.contracts.trials import Range
from diagnose.trials.joint import predicted
from tests.reports.html.test_figures import finding
from tests.reports.test_trials import of_a_run


def found(*rules: str, high_ns: int = 60_000_000) -> Diagnosis:
    """Of a step of 100 ms, of which all findings together save 20 to 60 ms, likely 50."""
    shown = tuple(replace(finding(rule, 10_000_000, None), rule=rule) for rule in rules)
    saved = Together(20_000_000, 50_000_000, high_ns)
    return replace(of_a_run(None), findings=shown, replay=ReplayQuality(100_000_000, 0.0, 0.0, None, saved))


def test_it_is_the_step_over_what_is_left() -> None:
    assert predicted(found("a", "b"), ["a", "b"]) == Range(100 / 80, 100 / 50, 100 / 40)


def test_it_is_unknown_if_a_fix_finds_nothing_or_all_of_the_step_would_go() -> None:
    assert predicted(found("a"), ["a", "b"]) is None
    assert predicted(found("a", "b", high_ns=100_000_000), ["a", "b"]) is None
    assert predicted(of_a_run(None), []) is None
