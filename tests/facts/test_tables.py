"""Kernels, copies, input, communication, memory, ops and Python time of synthetic traces, value by value."""

import pytest

from diagnose.facts.communication.overlap import communication
from diagnose.facts.core.base import Missing
from diagnose.facts.data.fetches import input_wait
from diagnose.facts.device.kernels import kernel_kinds, kernel_ops, kernels
from diagnose.facts.device.memory import allocation_calls, memory
from diagnose.facts.device.transfers import copies
from diagnose.facts.host.python import Op, ops
from diagnose.trace.enums import Direction, HostMemory
from diagnose.trace.kinds import KernelKind
from tests.drawing import MAIN, Drawing

GEMM = "ampere_sgemm_128x64_nn"
NCCL = "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)"


def step() -> Drawing:
    draw = Drawing().step(0, -50, -10).launch("first", (-45, -44), (-20, 0)).step(1, -10, 99)
    return draw.launch("last", (97, 98), (99, 100))


def test_kernels_by_name_with_kind_op_and_occupancy() -> None:
    draw = step().op("aten::linear", 0, 30).op("aten::mm", 5, 20).op("aten::bmm", 40, 50)
    draw.launch(GEMM, (6, 7), (10, 40), **{"est. achieved occupancy %": 50})
    draw.launch(GEMM, (41, 42), (50, 60), **{"est. achieved occupancy %": 10})
    found = kernels(draw.facts())[0]
    assert (found.name, found.kind, found.op, found.calls, found.ns) == (GEMM, KernelKind.GEMM, "aten::mm", 2, 40_000)
    assert (found.tensor_cores, found.dtype) == (False, "fp32")
    assert found.share == pytest.approx(0.4)
    assert found.occupancy == pytest.approx((30 * 0.5 + 10 * 0.1) / 40)
    assert [kernel.name for kernel in kernels(draw.facts())] == [GEMM, "last"]


def test_kernel_time_by_kind_and_by_op_adds_up_to_that_of_the_kernels() -> None:
    draw = step().op("aten::mm", 5, 20).op("aten::add", 40, 50)
    draw.launch(GEMM, (6, 7), (10, 40)).launch(NCCL, (41, 42), (50, 60), stream=20)
    draw.launch("volta_sgemm_128x32_nt", (8, 9), (40, 45)).copy("HtoD (Pinned -> Device)", (43, 44), (70, 75), 64)
    facts = draw.facts()
    assert [(kernel_kind.label, kernel_kind.calls, kernel_kind.ns) for kernel_kind in kernel_kinds(facts)] == [
        ("gemm", 2, 35_000),
        ("communication", 1, 10_000),
        ("other", 1, 1_000),
    ]
    assert [(kernel_op.label, kernel_op.calls, kernel_op.ns) for kernel_op in kernel_ops(facts)] == [
        ("aten::mm", 2, 35_000),
        ("aten::add", 1, 10_000),
        ("", 1, 1_000),
    ]
    assert kernel_kinds(facts)[0].share == pytest.approx(0.35)


def test_copies_by_direction_and_memory() -> None:
    draw = step().launch("gemm", (1, 2), (20, 40))
    draw.copy("HtoD (Pinned -> Device)", (3, 5), (10, 30), 1_000_000, stream=8)
    draw.copy("HtoD (Pinned -> Device)", (6, 7), (50, 60), 500_000, stream=8)
    draw.copy("DtoH (Device -> Pageable)", (60, 75), (70, 74), 4_000)
    fast, slow = copies(draw.facts())
    assert (fast.direction, fast.host_memory, fast.calls) == (Direction.H2D, HostMemory.PINNED, 2)
    assert (fast.bytes, fast.ns, fast.exposed_ns, fast.host_ns) == (1_500_000, 30_000, 20_000, 3_000)
    assert fast.bandwidth_bytes_per_s == pytest.approx(50e9)
    assert (slow.direction, slow.host_memory, slow.exposed_ns) == (Direction.D2H, HostMemory.PAGEABLE, 4_000)


def test_a_copy_of_unknown_size_has_no_bandwidth() -> None:
    draw = step().launch("Memcpy DtoH (Device -> Host)", (3, 5), (10, 30), cat="gpu_memcpy", api="hipMemcpyAsync")
    (found,) = copies(draw.facts())
    assert (found.bytes, found.bandwidth_bytes_per_s) == (None, None)
    assert found.host_memory == HostMemory.UNKNOWN


def test_input_wait_and_how_much_of_it_the_device_was_idle() -> None:
    name = "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__"
    draw = step().launch("gemm", (-6, -5), (0, 30)).span("user_annotation", name, 10, 60)
    found = input_wait(draw.facts())
    assert (found.fetches, found.in_process, found.host_ns, found.exposed_ns) == (1, False, 50_000, 30_000)


def test_a_loader_on_a_thread_that_does_not_train_is_not_waited_for() -> None:
    draw = step().span("user_annotation", "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", 10, 60, tid=77)
    with pytest.raises(Missing, match="DataLoader fetches"):
        input_wait(draw.facts())


def test_communication_hidden_and_exposed_by_operation() -> None:
    draw = step().launch("gemm", (1, 2), (10, 40))
    draw.launch(
        NCCL, (3, 4), (30, 60), stream=20, **{"Collective name": "allreduce", "Group size": 8, "dtype": "BFloat16"}
    )
    draw.launch("ncclDevKernel_SendRecv(x)", (5, 6), (70, 80), stream=21)
    found = communication(draw.facts())
    assert (found.ns, found.exposed_ns) == (40_000, 30_000)
    assert [
        (collective.operation, collective.calls, collective.ns, collective.exposed_ns)
        for collective in found.collectives
    ] == [("allreduce", 1, 30_000, 20_000), ("send_recv", 1, 10_000, 10_000)]


def test_memory_peaks_and_driver_allocation() -> None:
    draw = step().call("cudaMalloc", 10, 15).call("cudaFree", 20, 29).call("cudaMallocAsync", 30, 39)
    for at, total in ((10, 100), (20, 700), (30, 300)):
        args = {"Device Type": 1, "Device Id": 0, "Bytes": 1, "Total Allocated": total, "Total Reserved": 1000}
        draw.events.append(
            {
                "ph": "i",
                "s": "t",
                "cat": "cpu_instant_event",
                "name": "[memory]",
                "pid": MAIN,
                "tid": MAIN,
                "ts": at,
                "args": args,
            }
        )
    (found,) = memory(draw.facts())
    assert (found.device, found.peak_allocated_bytes, found.peak_reserved_bytes) == (0, 700, 1000)
    calls = allocation_calls(draw.facts())
    assert (calls.calls, calls.host_ns) == (2, 14_000)


def test_host_memory_alone_says_nothing_of_the_device() -> None:
    draw = step()
    args = {"Device Type": 0, "Device Id": -1, "Bytes": 1, "Total Allocated": 5, "Total Reserved": 5}
    draw.events.append({"ph": "i", "s": "t", "name": "[memory]", "pid": MAIN, "tid": MAIN, "ts": 5, "args": args})
    with pytest.raises(Missing, match="memory events"):
        memory(draw.facts())


def test_ops_by_the_time_that_is_their_own() -> None:
    draw = Drawing().step(0, 0, 10).op("aten::x", 1, 2).step(1, 10, 110)
    draw.op("aten::linear", 10, 50).op("aten::addmm", 15, 45).op("aten::addmm", 60, 70)
    assert ops(draw.facts()) == (Op("aten::addmm", 2, 40_000), Op("aten::linear", 1, 10_000))
