"""The plugin of pytest, loaded by name and as an installed package offers it, around real trainings."""

from __future__ import annotations

import configparser

import pytest

from tests.capture.scripts import ROOT, STEP

pytestmark = pytest.mark.slow

pytest_plugins = ["pytester"]

PLUGIN = "diagnose.budgets.plugin"
TRAINING = (
    STEP
    + """
def train(seconds, steps=80):
    for _ in range(steps):
        step()
        time.sleep(seconds)
"""
)


@pytest.fixture
def inner(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    """A pytest of its own that has our plugin and no other."""
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    monkeypatch.setenv("PYTEST_PLUGINS", PLUGIN)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    return pytester


def test_the_package_offers_it() -> None:
    setup = configparser.ConfigParser()
    setup.read(ROOT / "setup.cfg", encoding="utf-8")
    assert setup["options.entry_points"]["pytest11"].split() == ["diagnose", "=", PLUGIN]


def test_it_imports_nothing_before_a_test_asks(inner: pytest.Pytester) -> None:
    inner.makepyfile(
        """
        import sys

        def test_nothing():
            assert not {"torch", "numpy", "pandas", "diagnose.pipeline", "diagnose.capture"} & set(sys.modules)
        """
    )
    inner.runpytest_subprocess("--strict-markers").assert_outcomes(passed=1)


@pytest.mark.parametrize(
    ("budget", "words"), [("fast", "is no budget such as step=50ms"), ("step=fast", "is no time such as 50ms")]
)
def test_a_budget_that_cannot_be_read_is_said_before_any_test(inner: pytest.Pytester, budget: str, words: str) -> None:
    inner.makepyfile("def test_nothing(): pass")
    done = inner.runpytest_subprocess("--diagnose-budget", budget)
    assert done.ret == pytest.ExitCode.USAGE_ERROR
    done.stderr.fnmatch_lines([f"*--diagnose-budget: *{words}*"])


def test_a_mark_without_a_budget_changes_nothing(inner: pytest.Pytester) -> None:
    inner.makepyfile(
        """
        import sys, pytest

        @pytest.mark.diagnose
        def test_nothing():
            assert "diagnose.capture" not in sys.modules
        """
    )
    inner.runpytest_subprocess("--strict-markers").assert_outcomes(passed=1)


@pytest.mark.slow
def test_marked_tests_are_held_to_the_budget_of_the_command_line(inner: pytest.Pytester) -> None:
    """One trains too slowly, one has a limit of its own, one has no mark, and one fails by itself."""
    pytest.importorskip("torch")
    inner.makepyfile(training=TRAINING)
    inner.makepyfile(
        """
        import pytest
        from training import train

        @pytest.mark.diagnose(steps=3, warmup=5)
        def test_slow():
            train(0.02)

        @pytest.mark.diagnose(step="30s", steps=3, warmup=5)
        def test_own_limit():
            train(0.02)

        def test_without_a_mark():
            train(0.02, steps=3)

        @pytest.mark.diagnose
        def test_broken():
            assert train(0.0, steps=3) == 1
        """
    )
    done = inner.runpytest_subprocess("--strict-markers", "--diagnose-budget", "step=15ms")
    done.assert_outcomes(passed=2, failed=2)
    done.stdout.fnmatch_lines(
        ["*BudgetExceeded: The training exceeds its budget. A step takes *; the limit is 15.0 ms.", "*What to fix:"]
    )
    done.stdout.fnmatch_lines(["*assert None == 1*"])
    done.stdout.no_fnmatch_line("*def __exit__*")


@pytest.mark.slow
def test_what_cannot_be_told_is_among_the_warnings(inner: pytest.Pytester) -> None:
    pytest.importorskip("torch")
    inner.makepyfile(training=TRAINING)
    inner.makepyfile(
        """
        import pytest
        from training import train

        @pytest.mark.diagnose(step="1ns")
        def test_short():
            train(0.0, steps=3)
        """
    )
    done = inner.runpytest_subprocess()
    done.assert_outcomes(passed=1, warnings=1)
    done.stdout.fnmatch_lines(["*BudgetWarning: Cannot tell whether the training keeps its budget.*"])
    inner.runpytest_subprocess("-W", "error::diagnose.BudgetWarning").assert_outcomes(failed=1)


@pytest.mark.slow
def test_the_fixture_records_into_the_test_s_folder(inner: pytest.Pytester) -> None:
    pytest.importorskip("torch")
    inner.makepyfile(training=TRAINING)
    inner.makepyfile(
        """
        from training import step, train

        def test_two_trainings(diagnose_budget, tmp_path):
            for _ in range(2):
                with diagnose_budget(steps=3, warmup=5) as budget:
                    while not budget.finished:
                        step()
                        budget.step()
            found = sorted(path.name for path in tmp_path.glob("*/rank0.trace.json.gz"))
            assert len(found) == 2
            # Long steps of a busy machine may look like a cycle, and whole cycles are recorded.
            every = budget.diagnosis.provenance.manifest.ranks[0].cycle
            assert budget.diagnosis.steps.used == -(-3 // every) * every
        """
    )
    inner.runpytest_subprocess("--diagnose-budget", "step=30s").assert_outcomes(passed=1)


def test_a_fixture_without_any_limit_is_an_error(inner: pytest.Pytester) -> None:
    inner.makepyfile("def test_nothing(diagnose_budget):\n    diagnose_budget()")
    done = inner.runpytest_subprocess()
    done.assert_outcomes(failed=1)
    done.stdout.fnmatch_lines(["*ValueError: Set a limit*"])
