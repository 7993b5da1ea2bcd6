"""Devices as recorders describe them, and what the vendors say they can do."""

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from diagnose.trace import hardware
from diagnose.trace.gpu_families import estimated
from diagnose.trace.hardware import Peaks, peaks
from diagnose.trace.model import Device

KNOWN = [value for value in vars(hardware).values() if isinstance(value, Peaks)]


def device(name: str, multiprocessors: int = 0, memory: float = 0, capability: tuple[int, int] = (0, 0)) -> Device:
    warp = 64 if name in ("", "AMD Radeon Graphics") or "Instinct" in name else 32
    return Device(0, name, int(memory), multiprocessors, capability, 2048, warp)


@pytest.mark.parametrize(
    ("recorded", "name"),
    [
        (device("Tesla V100-SXM2-16GB", 80, 16.9e9, (7, 0)), "V100 SXM2 16 GB"),
        (device("Tesla V100-SXM2-32GB", 80, 34079899648, (7, 0)), "V100 SXM2 32 GB"),
        (device("Tesla V100-PCIE-16GB", 80), "V100 PCIe 16 GB"),
        (device("Tesla V100-PCIE-32GB", 80), "V100 PCIe 32 GB"),
        (device("Tesla T4", 40), "T4"),
        (device("NVIDIA A10", 72), "A10"),
        (device("NVIDIA A10G", 80), "A10G"),
        (device("NVIDIA A100-SXM4-40GB", 108, 42297524224, (8, 0)), "A100 SXM 40 GB"),
        (device("A100-SXM4-40GB", 108), "A100 SXM 40 GB"),
        (device("NVIDIA A100-PG509-200", 108, 42505273344, (8, 0)), "A100 SXM 40 GB"),
        (device("NVIDIA A100-SXM4-80GB", 108, 84.99e9, (8, 0)), "A100 SXM 80 GB"),
        (device("NVIDIA A100-PCIE-40GB", 108), "A100 PCIe 40 GB"),
        (device("NVIDIA A100 80GB PCIe", 108), "A100 PCIe 80 GB"),
        (device("NVIDIA A40", 84), "A40"),
        (device("NVIDIA L4", 58), "L4"),
        (device("NVIDIA L40S", 142), "L40S"),
        (device("NVIDIA GeForce RTX 3090", 82), "RTX 3090"),
        (device("NVIDIA GeForce RTX 4090", 128), "RTX 4090"),
        (device("NVIDIA GeForce RTX 2080 Ti", 68, 11554586624, (7, 5)), "RTX 2080 Ti"),
        (device("NVIDIA GeForce RTX 3060", 28, 12.6e9), "RTX 3060 12 GB"),
        (device("NVIDIA GeForce RTX 3080", 68, 10736893952), "RTX 3080 10 GB"),
        (device("NVIDIA GeForce RTX 3090 Ti", 84), "RTX 3090 Ti"),
        (device("NVIDIA GeForce RTX 4060 Ti", 34, 16.7e9), "RTX 4060 Ti 16 GB"),
        (device("NVIDIA GeForce RTX 5070 Ti", 70), "RTX 5070 Ti"),
        (device("NVIDIA RTX A6000", 84), "RTX A6000"),
        (device("NVIDIA RTX 6000 Ada Generation", 142), "RTX 6000 Ada"),
        (device("NVIDIA TITAN RTX", 72), "TITAN RTX"),
        (device("Quadro RTX 8000", 72), "Quadro RTX 8000"),
        (device("NVIDIA GeForce RTX 5090", 170), "RTX 5090"),
        (device("NVIDIA H100 80GB HBM3", 132, 85018279936, (9, 0)), "H100 SXM"),
        (device("NVIDIA H100 80GB HBM3"), "H100 SXM"),
        (device("NVIDIA H100 PCIe", 114), "H100 PCIe"),
        (device("NVIDIA H100 NVL", 132), "H100 NVL"),
        (device("NVIDIA H100", 132, 85.02e9, (9, 0)), "H100 SXM"),
        (device("NVIDIA H100", 114, 85.02e9, (9, 0)), "H100 PCIe"),
        (device("NVIDIA H100", 132, 99.9e9, (9, 0)), "H100 NVL"),
        (device("NVIDIA H200", 132), "H200 SXM"),
        (device("NVIDIA GH200 480GB", 132), "GH200 96 GB"),
        (device("NVIDIA GH200 144G HBM3e", 132), "GH200 144 GB"),
        (device("NVIDIA B200", 148, 191503138816, (10, 0)), "B200"),
        (device("NVIDIA GB200", 152), "GB200"),
        (device("AMD Instinct MI210", 104, 68702699520, (9, 0)), "MI210 or MI250, one die"),
        (device("AMD Instinct MI250X", 110, 68702699520, (9, 0)), "MI250X, one die"),
        (device("AMD Instinct MI250X / MI250", 110, 68702699520, (9, 0)), "MI250X, one die"),
        (device("AMD Instinct MI250X / MI250", 104, 68702699520, (9, 0)), "MI210 or MI250, one die"),
        (device("AMD Instinct MI300X", 304, 206141652992, (9, 4)), "MI300X"),
        (device("AMD Instinct MI300X VF", 304, 205571227648, (9, 4)), "MI300X"),
        (device("AMD Instinct MI325X", 304), "MI325X"),
        (device("AMD Instinct MI355X", 256), "MI355X"),
        # Without a name, by size.
        (device("AMD Radeon Graphics", 104, 68702699520, (9, 0)), "MI210 or MI250, one die"),
        (device("", 110, 68702699520, (9, 0)), "MI250X, one die"),
        (device("", 304, 206141652992, (9, 4)), "MI300X"),
        (device("AMD Radeon Graphics", 304, 205571227648, (9, 4)), "MI300X"),
        (device("", 304, 274.8e9, (9, 4)), "MI325X"),
        (device("", 256, 309.2e9, (9, 5)), "MI355X"),
    ],
)
def test_known(recorded: Device, name: str) -> None:
    found = peaks(recorded)
    assert found is not None
    assert found.name == name
    assert found.scaled == 1.0


@pytest.mark.parametrize(
    "recorded",
    [
        # China variants, the first two with an H100's and an A100's size.
        device("NVIDIA H800", 132, 84.94e9, (9, 0)),
        device("NVIDIA A800-SXM4-80GB", 108, 84.99e9, (8, 0)),
        device("NVIDIA H20", 78),
        device("NVIDIA H20-3e", 78),
        device("NVIDIA L20", 92),
        device("NVIDIA GeForce RTX 4090 D", 114),
        device("NVIDIA GeForce RTX 5090 D", 170),
        device("AMD Instinct MI308X", 80, 206.1e9, (9, 4)),
        device("", 80, 206.1e9, (9, 4)),
        # Relatives with other rates.
        device("NVIDIA GeForce RTX 4080 SUPER", 80),
        device("NVIDIA GeForce RTX 4070 Ti SUPER", 66),
        device("NVIDIA GeForce RTX 3080 Ti Laptop GPU", 58),
        device("Quadro RTX 6000 with Max-Q Design", 72),
        device("NVIDIA GeForce RTX 3080", 68, 12.9e9),  # of 10 GB or with 70
        device("NVIDIA GeForce RTX 4090 Laptop GPU", 76),
        device("NVIDIA H200 NVL", 132),
        device("NVIDIA L40", 142),
        device("NVIDIA RTX A1000"),
        device("NVIDIA A100-SXM-64GB", 124),
        device("Tesla V100-SXM2-32GB-LS", 80),
        device("AMD Instinct MI350X", 256),
        # Not in the table, or not said.
        device("Quadro GP100", 56, 17069309952, (6, 0)),
        device("NVIDIA GeForce GTX 1080 Ti", 28, 11721375744, (6, 1)),
        device("NVIDIA GeForce RTX 2080", 46),
        device("NVIDIA H100"),
        device("AMD Radeon Graphics", 40, 17e9, (11, 0)),
        device("AMD Instinct MI250X"),
        device(""),
        # An H100's compute capability and an empty name are not an MI210.
        Device(0, "", 68702699520, 104, (9, 0), 2048, 32),
    ],
    ids=lambda recorded: f"{recorded.name} {recorded.multiprocessors}",
)
def test_unknown(recorded: Device) -> None:
    assert peaks(recorded) is None


def test_h100() -> None:
    found = peaks(device("NVIDIA H100 80GB HBM3", 132, 85018279936, (9, 0)))
    assert found == Peaks("H100 SXM", 67, 495, 989, 989, 1979, 3350, 80, 132, 450, 5)


def test_v100_has_no_bf16() -> None:
    found = peaks(device("Tesla V100-SXM2-32GB", 80))
    assert found is not None
    assert [found.tflops(dtype) for dtype in ("fp32", "tf32", "fp16", "bf16", "fp8")] == [15.7, None, 125, None, None]
    assert found.tflops("fp64") is None


def test_a_mig_slice_is_scaled() -> None:
    found = peaks(device("NVIDIA A100-SXM4-40GB MIG 3g.20gb", 42, 20.9e9, (8, 0)))
    assert found is not None
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
    for odd in (recorded, dataclasses.replace(recorded, name=f"NVIDIA H100 {name}")):
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
    assert found is not None
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
    assert found is not None
    assert 0.5 < found.fp32_tflops / known.fp32_tflops < 1.5
    assert 0.3 < found.fp16_tflops / known.fp16_tflops < 1.34
    assert 0.3 < found.memory_gbps / known.memory_gbps < 1.5
    assert (found.bf16_tflops is None) == (known.bf16_tflops is None)
