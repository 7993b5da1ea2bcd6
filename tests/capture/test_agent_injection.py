"""Names of fixes, and what of an injection needs no run: batches one ahead, without a GPU to copy them to."""

from __future__ import annotations

from collections import namedtuple
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader

from diagnose.capture.agent.injection import Trial, parsed
from diagnose.capture.agent.injection.forms import FORMS
from diagnose.capture.agent.injection.loaders import OneAhead, _Copied, mapped

Pair = namedtuple("Pair", "rows labels")


@pytest.mark.parametrize(
    ("name", "trial"),
    [
        ("patch:DataLoader(num_workers=4)", Trial("patch", "DataLoader", "num_workers", 4)),
        ("patch:torch.cuda.synchronize", Trial("patch", "torch.cuda.synchronize")),
        ("patch:torch.cuda.synchronize()", Trial("patch", "torch.cuda.synchronize")),
        ("patch:torch.save(in_background)", Trial("patch", "torch.save", "in_background")),
        ("wrap:torch.compile(mode=max-autotune)", Trial("wrap", "torch.compile", "mode", "max-autotune")),
        ("wrap:DistributedDataParallel(no_sync)", Trial("wrap", "DistributedDataParallel", "no_sync")),
        ("env:OMP_NUM_THREADS=8", Trial("env", "OMP_NUM_THREADS", "", "8", (("OMP_NUM_THREADS", "8"),))),
        (
            "env:TORCH_ALLOW_TF32_CUBLAS_OVERRIDE=1 NVIDIA_TF32_OVERRIDE=",
            Trial(
                "env",
                "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE",
                "",
                "1",
                (("TORCH_ALLOW_TF32_CUBLAS_OVERRIDE", "1"), ("NVIDIA_TF32_OVERRIDE", "")),
            ),
        ),
    ],
)
def test_names(name: str, trial: Trial) -> None:
    assert parsed(name) == trial


@pytest.mark.parametrize(
    "name",
    [
        *("", "env:", "env:LD_PRELOAD=x.so", "env:OMP_NUM_THREADS=8 PATH=x", "patch:", "wrap:cuda_graph"),
        *("patch:DataLoader(num_workers=many)", "patch:DataLoader(num_workers=-1)", "patch:DataLoader(num_workers)"),
        *("patch:DataLoader(batch_size=32)", "patch:DataLoader(batch_size=1x)", "patch:DataLoader(shuffle=True)"),
        *("wrap:DataLoader(num_workers=4)", "patch:torch.optim(fused=1)", "wrap:torch.compile(mode=)"),
        *("patch:gc.collect(every=0)", "wrap:prefetch(depth=2)", "wrap:prefetch; rm -rf /"),
    ],
)
def test_what_is_no_injection(name: str) -> None:
    assert parsed(name) is None


def test_a_larger_batch_says_how_much_larger() -> None:
    larger, other = parsed("patch:DataLoader(batch_size=2x)"), parsed("patch:DataLoader(num_workers=4)")
    assert larger is not None
    assert other is not None
    assert (larger.batch_factor, other.batch_factor) == (2, 1)


def test_forms_are_of_two_kinds() -> None:
    assert {kind for kind, _, _ in FORMS} == {"patch", "wrap"}


def ahead(loader: DataLoader[Any], log: list[str]) -> OneAhead:
    def copied(batch: Any) -> _Copied:
        log.append(f"copy {batch.tolist()}")
        return _Copied(batch, None, [])

    def ready(some: _Copied) -> Any:
        log.append(f"give {some.batch.tolist()}")
        return some.batch

    return OneAhead(copied, ready)


def test_batches_are_asked_for_one_ahead_in_order_and_end_as_without() -> None:
    log = list[str]()
    iterator = iter(DataLoader(range(5), batch_size=2))  # type: ignore[arg-type]
    one = ahead(iterator, log)  # type: ignore[arg-type]
    given = [one.next(lambda: next(iterator)).tolist() for _ in range(3)]
    assert given == [[0, 1], [2, 3], [4]]
    assert log == ["copy [0, 1]", "copy [2, 3]", "give [0, 1]", "copy [4]", "give [2, 3]", "give [4]"]
    for _ in range(2):
        with pytest.raises(StopIteration):
            one.next(lambda: next(iterator))


def test_no_batch_at_all_ends_at_once() -> None:
    iterator = iter(DataLoader([], batch_size=2))  # type: ignore[arg-type]
    with pytest.raises(StopIteration):
        ahead(iterator, []).next(lambda: next(iterator))  # type: ignore[arg-type]


def test_an_error_of_the_dataset_gets_through() -> None:
    iterator = iter(DataLoader([1, "a"], batch_size=1, collate_fn=lambda some: torch.tensor(some)))  # type: ignore[arg-type]
    with pytest.raises((ValueError, TypeError)):
        ahead(iterator, []).next(lambda: next(iterator))  # type: ignore[arg-type]


def test_tensors_of_a_batch_are_changed_and_the_rest_is_kept() -> None:
    one, odd = torch.ones(2), {1, 2}
    batch = {"a": one, "b": [one, "text"], "c": Pair(one, (one, 3)), "d": odd}
    found = mapped(batch, lambda tensor: tensor + 1, torch.Tensor)
    assert str(found) == str({"a": one + 1, "b": [one + 1, "text"], "c": Pair(one + 1, (one + 1, 3)), "d": odd})
    assert found["d"] is odd
