"""Fixes of trainings on several ranks, on two processes with gloo."""

from pathlib import Path

import pytest

from diagnose.trials.arms import Arm, Void, compared
from tests.trials.running import arm, printed
from tests.trials.scripts import SHARDED, ranks

pytestmark = pytest.mark.slow

LAUNCHER = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
DDP = "DistributedDataParallel at train.py"
HOOK = "wrap:DistributedDataParallel(comm_hook=fp16_compress_hook)"
NO_SYNC = "wrap:DistributedDataParallel(no_sync)"


@pytest.fixture(autouse=True)
def in_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def both(folder: Path, text: str, *fixes: str) -> Arm:
    return arm(folder, text, *fixes, words=LAUNCHER)


def told(folder: Path) -> tuple[int, str, float]:
    """Reductions, whether weights agree, and their sum, as the script prints them."""
    reduced, same, total = printed(folder).split()
    return int(reduced), same, float(total)


def test_gradients_are_reduced_in_the_last_backward_pass(tmp_path: Path) -> None:
    """Two of nine steps are learnt from."""
    before = both(tmp_path, ranks("4"))
    reduced, same, total = told(tmp_path)
    assert (reduced, same) == (9 * 4, "True")
    changed = both(tmp_path, ranks("4"), NO_SYNC)
    assert told(tmp_path) == (2 * 4 + 7, "True", pytest.approx(total, rel=1e-4))
    assert changed.injected == (f"{DDP}:25: gradients are reduced in the last of 4 backward passes",)
    assert compared(before.losses, before.losses, changed.losses) in ("same", "rounding")


@pytest.mark.exhaustive
def test_a_step_with_fewer_or_more_passes_stays_right(tmp_path: Path) -> None:
    """Step 4 has 2 passes, and none of these reduces; step 7 has 5, which is two more than those before it."""
    text = ranks("{4: 2, 7: 5}.get(number, 3)")
    both(tmp_path, text)
    reduced, same, total = told(tmp_path)
    assert (reduced, same) == (7 * 3 + 2 + 5, "True")
    both(tmp_path, text, NO_SYNC)
    # Two steps to learn, two with one reduction, none by the hook in step 4; steps 5 and 6 to learn again; step 7
    # reduces in its last three passes, and is none to learn from: step 8 reduces in all.
    assert told(tmp_path) == (3 + 3 + 1 + 1 + 0 + 3 + 3 + 3 + 3, "True", pytest.approx(total, rel=1e-4))


def test_one_pass_a_step_has_nothing_to_leave_out(tmp_path: Path) -> None:
    with pytest.raises(Void, match="A step has one backward pass"):
        both(tmp_path, ranks("1"), NO_SYNC)


@pytest.mark.exhaustive
def test_options_and_hooks_of_ddp_and_barriers(tmp_path: Path) -> None:
    fixes = {
        "wrap:DistributedDataParallel(static_graph=True)": f"{DDP}:10: static_graph False -> True",
        "wrap:DistributedDataParallel(bucket_cap_mb=10)": f"{DDP}:10: bucket_cap_mb None -> 10",
        HOOK: f"{DDP}:25: gradients are sent by fp16_compress_hook",
        "patch:torch.distributed.barrier": "torch.distributed.barrier() at train.py:28: left out after the first",
    }
    changed = both(tmp_path, ranks("1", count=False), *fixes)
    assert list(changed.injected) == [*fixes.values()]
    with pytest.raises(Void, match="The script registers a communication hook itself"):
        both(tmp_path, ranks("1"), HOOK)
    with pytest.raises(Void, match="The backend cannot do bf16_compress_hook: BF16 all reduce"):
        both(tmp_path, ranks("1", count=False), HOOK.replace("fp16", "bf16"))


def test_shards_are_kept_after_the_forward_pass(tmp_path: Path) -> None:
    changed = both(tmp_path, SHARDED, "patch:fully_shard(reshard_after_forward=False)")
    assert changed.injected == (
        "fully_shard at train.py:10: reshard_after_forward None -> False",
        "fully_shard at train.py:11: reshard_after_forward None -> False",
    )
