"""Devices as recorders describe them, and what the vendors say they can do."""

from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from diagnose.trace import hardware
from diagnose.trace.hardware import Peaks, estimated, peaks
from diagnose.trace.model import Device

TABLE = Path(__file__).parents[1] / "data" / "devices.tsv"
KNOWN = [value for value in vars(hardware).values() if isinstance(value, Peaks)]


def device(name: str, multiprocessors: int = 0, memory: float = 0, capability: tuple[int, int] = (0, 0)) -> Device:
    warp = 64 if name in ("", "AMD Radeon Graphics") or "Instinct" in name else 32
    return Device(0, name, int(memory), multiprocessors, capability, 2048, warp)


ROWS = [line.split("\t") for line in TABLE.read_text(encoding="utf-8").splitlines() if not line.startswith("#")]


@pytest.mark.parametrize(("name", "multiprocessors", "memory", "capability", "known"), ROWS)
def test_a_device_is_known_by_its_name_or_by_its_size(
    name: str, multiprocessors: str, memory: str, capability: str, known: str
) -> None:
    major, minor = map(int, capability.split("."))
    found = peaks(device(name, int(multiprocessors), int(memory), (major, minor)))
    assert (found.name if found else "-") == known
    assert found is None or found.scaled == 1.0


def test_compute_capability_and_size_without_a_name_are_no_mi210() -> None:
    """An H100 has that compute capability."""
    assert peaks(Device(0, "", 68702699520, 104, (9, 0), 2048, 32)) is None


def test_h100() -> None:
    found = peaks(device("NVIDIA H100 80GB HBM3", 132, 85018279936, (9, 0)))
    assert found == Peaks("H100 SXM", 67, 495, 989, 989, 1979, 3350, 80, 132, 450, 5)


def test_v100_has_no_bf16() -> None:
    found = peaks(device("Tesla V100-SXM2-32GB", 80))
    assert [found.tflops(dtype) for dtype in ("fp32", "tf32", "fp16", "bf16", "fp8")] == [15.7, None, 125, None, None]
    assert found.tflops("fp64") is None


def test_a_mig_slice_is_scaled() -> None:
    found = peaks(device("NVIDIA A100-SXM4-40GB MIG 3g.20gb", 42, 20.9e9, (8, 0)))
    assert found.scaled == pytest.approx(42 / 108)
    assert found.fp16_tflops == pytest.approx(312 * 42 / 108)
    assert found.memory_gbps == pytest.approx(1555 * 42 / 108)
    assert found.memory_gb == pytest.approx(20.9)
    assert found.multiprocessors == 42
    assert found.fp8_tflops is None


def test_a_few_multiprocessors_less_are_not_a_slice() -> None:
    whole, slightly, over = (peaks(device("NVIDIA H100 80GB HBM3", count)) for count in (132, 126, 144))
    assert whole == slightly == over


@pytest.mark.parametrize("known", KNOWN, ids=lambda known: known.name)
def test_rates_are_plausible(known: Peaks) -> None:
    assert known.fp32_tflops < known.fp16_tflops
    assert known.bf16_tflops in (None, known.fp16_tflops)
    assert known.tf32_tflops is None or known.fp32_tflops <= known.tf32_tflops <= known.fp16_tflops
    # Twice the dense fp16 rate; more would be a figure with sparsity.
    assert known.fp8_tflops is None or known.fp8_tflops == pytest.approx(2 * known.fp16_tflops, rel=0.02)
    # Operations per byte that keep the fp16 units busy: least on an RTX 3080 of 12 GB, most on an L40S.
    assert 65 < 1000 * known.fp16_tflops / known.memory_gbps < 420


def test_names_are_unique() -> None:
    assert len({known.name for known in KNOWN}) == len(KNOWN) >= 28


@given(st.text(), st.integers(0, 1000), st.integers(0, 2**40), st.tuples(st.integers(0, 12), st.integers(0, 9)))
def test_any_device_has_an_answer(name: str, multiprocessors: int, memory: int, capability: tuple[int, int]) -> None:
    recorded = device(name, multiprocessors, memory, capability)
    for odd in (recorded, msgspec.structs.replace(recorded, name=f"NVIDIA H100 {name}")):
        found = peaks(odd)
        assert found is None or 0 < found.scaled <= 1


@pytest.mark.parametrize(
    ("recorded", "kernels", "fp32", "fp16", "bf16"),
    [
        (device("Tesla V100-DGXS-32GB", 80, 34e9, (7, 0)), (), 14.336, 114.688, None),  # 80 x 128, 1,024 x 1.4 GHz
        (device("Tesla V100-DGXS-32GB"), (), 14.336, 114.688, None),
        (None, ("volta_sgemm_64x64_nn",), 7.68, 30.72, None),  # a Turing GPU runs such kernels as well
        (None, ("volta_sgemm_64x64_nn", "ampere_sgemm_64x64_nn"), 12.1856, 24.3712, 24.3712),
        (device("NVIDIA H100", 132, 80e9, (9, 0)), (), 57.4464, 919.1424, 919.1424),
        (device("NVIDIA A100-SXM-64GB", 124), (), 22.2208, 355.5328, 355.5328),
    ],
)
def test_rates_by_family(
    recorded: Device | None, kernels: tuple[str, ...], fp32: float, fp16: float, bf16: float | None
) -> None:
    found = estimated(recorded, kernels)
    assert (found.fp32_tflops, found.fp16_tflops) == (pytest.approx(fp32), pytest.approx(fp16))
    assert found.bf16_tflops == (None if bf16 is None else pytest.approx(bf16))
    assert found.estimated


@pytest.mark.parametrize(
    "recorded",
    [
        device("NVIDIA H20", 78, 97e9, (9, 0)),  # of Hopper's multiprocessors and a seventh of the rate
        device("Quadro GP100", 56, 17e9, (6, 0)),  # no Tensor Cores
        device("AMD Instinct MI308X", 80, 206e9, (9, 4)),
        None,
    ],
)
def test_what_has_no_family(recorded: Device | None) -> None:
    assert estimated(recorded, ("elementwise_kernel",)) is None


NVIDIA = [known for known in KNOWN if not known.name.startswith("MI")]


@pytest.mark.parametrize("known", NVIDIA, ids=lambda known: known.name)
def test_estimates_are_near_the_data_sheets(known: Peaks) -> None:
    """As data sheets have it: fp32 and memory within half, and 16 bits no faster than they are by a third."""
    found = estimated(Device(0, f"NVIDIA {known.name}", 0, known.multiprocessors, (0, 0), 2048, 32), ())
    assert 0.5 < found.fp32_tflops / known.fp32_tflops < 1.5
    assert 0.3 < found.fp16_tflops / known.fp16_tflops < 1.34
    assert 0.3 < found.memory_gbps / known.memory_gbps < 1.5
    assert (found.bf16_tflops is None) == (known.bf16_tflops is None)
