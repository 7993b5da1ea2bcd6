"""What the agent tells of how much of what ops compute anything reads."""

from __future__ import annotations

import pickle
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from diagnose.capture.agent.reads_without_ops import WAYS
from diagnose.capture.agent.values import values_of_two_steps
from diagnose.source.values import read_values

torch = pytest.importorskip("torch")


@pytest.fixture(autouse=True)
def nothing_was_compiled() -> None:
    """By other tests."""
    if (utils := sys.modules.get("torch._dynamo.utils")) is not None:
        utils.counters.clear()


@pytest.fixture
def layer() -> Any:
    return torch.nn.Linear(40, 30).requires_grad_(False)


def use(*tensors: Any) -> None:
    for tensor in tensors:
        tensor.sum().item()


def read(target: Path, step: Callable[[], object]) -> list[tuple[str, int]]:
    """What it says of the ops of the first step that are not all read."""
    for _ in values_of_two_steps(target):
        step()
    graph = read_values(target)
    assert graph.rows is not None
    assert graph.rows.read is not None
    said = graph.rows.read.tolist()
    told = [at for at in range(len(said)) if graph.step[at] == 0 and said[at] < 100]
    return [(graph.names[graph.name[at]].removeprefix("aten::"), said[at]) for at in told]


def test_rows_that_are_cut_away_were_multiplied_for_nothing(tmp_path: Path, layer: Any) -> None:
    def step() -> None:
        use(layer(torch.rand(8, 10, 40).exp()).log_softmax(-1)[:, 7:9])

    assert read(tmp_path / "v", step) == [("exp", 20), ("addmm", 20), ("_log_softmax", 20)]


def test_all_rows_are_read_if_not_at_once(tmp_path: Path, layer: Any) -> None:
    def step() -> None:
        first, second = layer(torch.rand(80, 40)).chunk(2)
        use(first, second.exp())

    assert read(tmp_path / "v", step) == []


def test_what_two_ops_take_of_one_part_is_needed_once(tmp_path: Path, layer: Any) -> None:
    def step() -> None:
        part = layer(torch.rand(80, 40))[:32]
        use(part, part.amax())

    assert read(tmp_path / "v", step) == [("addmm", 40)]


def test_parts_that_differ_add_up(tmp_path: Path, layer: Any) -> None:
    def step() -> None:
        made = layer(torch.rand(80, 40))
        use(made[:32], made[40:48])

    assert read(tmp_path / "v", step) == [("addmm", 50)]


def test_columns_of_a_product_can_be_left_out_and_its_rows_not(tmp_path: Path, layer: Any) -> None:
    def step() -> None:
        use(layer(torch.rand(80, 40).exp())[:, :6])

    assert read(tmp_path / "v", step) == [("addmm", 20)]


def test_each_element_of_a_picture_is_by_itself(tmp_path: Path) -> None:
    def step() -> None:
        pictures = torch.rand(4, 3, 32, 32).mul(2).sub(1)
        use(pictures[:, :, 4:20, 8:24])

    assert read(tmp_path / "v", step) == [("mul", 25), ("sub", 25)]


def test_a_convolution_takes_what_is_around(tmp_path: Path) -> None:
    layer = torch.nn.Conv2d(3, 4, 3).requires_grad_(False)

    def step() -> None:
        use(layer(torch.rand(4, 3, 32, 32).mul(2)).relu()[:, :, :15, :15])

    assert read(tmp_path / "v", step) == [("relu", 25)]


def test_pieces_of_a_spectrogram(tmp_path: Path) -> None:
    """40 frames of 64 samples, 32 apart; 8 frames take 256 samples of the 1,312, but some of them twice."""
    window, clips = torch.hann_window(64), torch.rand(20, 64 + 39 * 32)

    def step() -> None:
        waves = torch.stft(clips[torch.arange(5)], 64, 32, window=window, center=False, return_complex=True)
        use(waves.abs().log()[:, :, 12:20])

    made = dict(read(tmp_path / "v", step))
    assert made == {"index": 40, "mul": 20, "_fft_r2c": 20, "abs": 20, "log": 20}


def test_the_class_token_alone_is_read(tmp_path: Path) -> None:
    """Of the last layer. Keys and values are needed of all tokens."""
    layer = torch.nn.Linear(40, 40).requires_grad_(False)

    def step() -> None:
        tokens = torch.rand(4, 25, 40)
        query, key, value = (layer(tokens).unflatten(2, (4, 10)).transpose(1, 2) for _ in range(3))
        made = torch.nn.functional.scaled_dot_product_attention(query, key, value)
        use(layer(layer(made.transpose(1, 2).flatten(2)).relu())[:, 0])

    flash = "_scaled_dot_product_flash_attention_for_cpu"
    assert read(tmp_path / "v", step) == [("addmm", 4), (flash, 4), ("addmm", 4), ("relu", 4), ("addmm", 4)]


def test_rows_that_an_index_chooses(tmp_path: Path, layer: Any) -> None:
    def step() -> None:
        use(layer(torch.rand(80, 40))[torch.arange(20)])
        use(layer(torch.rand(80, 40)).index_select(0, torch.arange(40)))
        use(layer(torch.rand(80, 40))[torch.arange(80) < 8])

    assert read(tmp_path / "v", step) == [("addmm", 25), ("addmm", 50), ("addmm", 10)]


def test_who_chooses_elements_of_rows_needs_the_rows(tmp_path: Path, layer: Any) -> None:
    def step() -> None:
        made = layer(torch.rand(80, 40))
        use(made.gather(1, torch.zeros(80, 1, dtype=torch.long)))
        made = layer(torch.rand(80, 40))
        use(made[torch.arange(80), torch.zeros(80, dtype=torch.long)])
        made = layer(torch.rand(80, 40))
        use(made[:, torch.arange(3)])

    assert read(tmp_path / "v", step) == []


def test_what_decides_which_rows_are_read_has_read_them(tmp_path: Path, layer: Any) -> None:
    def step() -> None:
        made = layer(torch.rand(80, 40))
        use(made[made.sum(1).topk(5).indices])

    assert read(tmp_path / "v", step) == []


def test_what_is_kept_may_be_read_later(tmp_path: Path, layer: Any) -> None:
    kept = []

    def step() -> None:
        kept.append(layer(torch.rand(80, 40)))
        use(kept[-1][:4])

    assert read(tmp_path / "v", step) == []


def test_the_next_step_reads_the_rest(tmp_path: Path, layer: Any) -> None:
    before: list[Any] = [torch.zeros(80, 30)]

    def step() -> None:
        made = layer(torch.rand(80, 40))
        use(made[:8], before[0][8:])
        before[0] = made

    assert read(tmp_path / "v", step) == []


def test_what_nothing_reads(tmp_path: Path, layer: Any) -> None:
    def step() -> None:
        kept = torch.rand(80, 40).exp()
        layer(kept).relu()
        use(kept)

    assert read(tmp_path / "v", step) == [("addmm", 0), ("relu", 0)]


@pytest.mark.parametrize(
    "way",
    [
        lambda made: made.numpy()[:4].sum(),
        lambda made: made.tolist(),
        lambda made: np.asarray(made),
        lambda made: np.from_dlpack(made),
        lambda made: pickle.dumps(made),
        lambda made: made[:4].data_ptr(),
    ],
)
def test_what_is_read_without_an_op(tmp_path: Path, layer: Any, way: Callable[[Any], object]) -> None:
    """What is a method of tensors afterwards is what it was."""
    before = {name: getattr(torch.Tensor, name) for name in WAYS}
    assert read(tmp_path / "v", lambda: way(layer(torch.rand(80, 40)))) == []
    assert {name: getattr(torch.Tensor, name) for name in WAYS} == before


def test_the_backward_begins_with_it(tmp_path: Path, layer: Any) -> None:
    """Its first gradient is made as large, and looks at nothing."""
    shift = torch.nn.Parameter(torch.zeros(30))

    def step() -> None:
        (layer(torch.rand(80, 40)) + shift).sum().backward()

    assert read(tmp_path / "v", step) == []


def test_statistics_that_are_estimated_anew(tmp_path: Path) -> None:
    """As `update_bn` does. Nothing reads what comes after the last of them."""
    norm, layer = torch.nn.BatchNorm1d(40).requires_grad_(False), torch.nn.Linear(40, 40).requires_grad_(False)

    assert read(tmp_path / "v", lambda: layer(norm(layer(torch.rand(80, 40))))) == [("addmm", 0)]


def test_what_is_written_to_is_read(tmp_path: Path, layer: Any) -> None:
    def step() -> None:
        made = layer(torch.rand(80, 40))
        made[:8] = 0
        use(made[:8])

    assert read(tmp_path / "v", step) == []


def test_what_the_backward_reads_is_read(tmp_path: Path, layer: Any) -> None:
    weight = torch.nn.Parameter(torch.rand(30, 5))

    def step() -> None:
        (layer(torch.rand(80, 40)) @ weight)[:8].sum().backward()
        weight.grad = None

    assert read(tmp_path / "v", step) == []


def test_numbers_that_are_drawn_and_sums_along_rows(tmp_path: Path) -> None:
    """Fewer drawn numbers would be others; a running sum needs what is before."""

    def step() -> None:
        use(torch.nn.functional.rrelu(torch.rand(80, 40), training=True)[:8])
        use(torch.rand(80, 40).cumsum(0)[70:])
        use(torch.rand(80, 40).exp().softmax(0)[:8])

    assert read(tmp_path / "v", step) == []


def test_a_view_that_turns_a_tensor_writes_nothing(tmp_path: Path, layer: Any) -> None:
    def step() -> None:
        made = layer(torch.rand(80, 40))
        made.t_()
        use(made[:, :8])

    assert read(tmp_path / "v", step) == [("addmm", 10)]
