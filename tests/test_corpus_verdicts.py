"""What an expert would say of each real trace after an hour with it, and that the ranked result says the same.

For each trace: what must come first (-: nothing worth 5 % of the step), what else may claim 5 % or more, and why.
"""

from collections.abc import Callable
from pathlib import Path

import pytest

from diagnose.contracts.diagnosis import Diagnosis
from diagnose.contracts.finding import Level, OutcomeKind

WRONG_SHARE = 0.05  # From this share of the step on, a finding that an expert would not share is an error.

TABLE = (Path(__file__).parent / "data" / "verdicts.tsv").read_text(encoding="utf-8")
VERDICTS = {line.split("\t")[0]: line.split("\t")[1:] for line in TABLE.splitlines() if not line.startswith("#")}
"""What comes first, what else may claim as much, the least share of the first, `unsure` if no finding may have more
than low confidence, and why."""


@pytest.mark.parametrize("name", VERDICTS)
def test_the_ranked_result_is_what_an_expert_would_say(analyzed: Callable[[str], Diagnosis], name: str) -> None:
    (first, also, least_share, sure, why), found = VERDICTS[name], analyzed(f"kineto/{name}")
    assert found.conclusive
    assert [outcome.rule for outcome in found.outcomes if outcome.outcome is OutcomeKind.CRASHED] == []
    large = [finding for finding in found.findings if finding.share_of_step >= WRONG_SHARE]
    assert {one.rule for one in large} <= {first, *also.split()}, why
    if first != "-":
        assert found.findings[0].rule == first, why
        assert found.findings[0].share_of_step >= float(least_share)
    if sure == "unsure":
        assert {finding.confidence.level for finding in found.findings} <= {Level.LOW}


def test_every_real_trace_has_a_verdict(corpus: Path) -> None:
    files = {str(path.relative_to(corpus / "kineto")) for path in (corpus / "kineto").glob("*/*.json*")}
    assert files | {"param/dlrm_8_ranks"} == set(VERDICTS)


def test_what_the_loader_hid_is_what_is_found_once_it_is_fixed(analyzed: Callable[[str], Diagnosis]) -> None:
    """The same training before and after: what was found is found no more, and the second's saving lies in what the
    first says that it will be.
    """
    before, after = (analyzed(f"kineto/tensorboard/resnet50_autograd_{k}_workers.json.gz").findings for k in (0, 4))
    assert "dataloader_starvation" in {one.rule for one in before}
    assert "dataloader_starvation" not in {one.rule for one in after}
    (hidden,) = [one.hidden for one in before if one.rule == "no_mixed_precision" and one.hidden]
    (found,) = [one for one in after if one.rule == "no_mixed_precision" and not one.minor]
    assert hidden[0] <= found.saving.likely_ns <= hidden[2]
