"""What NCCL's payloads say of collectives, from Nsight Systems' exports."""

import struct
from pathlib import Path

import pytest

from diagnose.facts.communication.collectives import collective_table
from diagnose.facts.core.base import Facts
from diagnose.source import nvtx, ranks
from tests.source.nsight import Export

MB = 1 << 20
INIT, MESSAGE = 16_777_218, 16_777_219  # Schemas; their values are where an export of 2026.2 has them.


def blob(schema: int, values: bytes, domain: int = 1) -> bytes:
    return struct.pack("<4Q", domain, schema, len(values), 32 + len(values)) + values


def message(size: int, communicator: int = 77) -> bytes:
    return blob(MESSAGE, struct.pack("<QQ", communicator, size))


def trained(*calls: tuple[str, bytes | None], group: int | None = 8) -> Export:
    """Two steps of 1 ms with these calls, each of which launches a kernel of the same name, and a gap of 0.1 ms."""
    made = Export()
    entries = {
        INIT: (("NCCL communicator ID", 18, None), ("No. of ranks", 5, 8), ("Rank", 5, 12)),
        MESSAGE: (("NCCL communicator ID", 18, None), ("Message size [bytes]", 22, 8)),
    }
    for schema, fields in entries.items():
        for at, (name, kind, offset) in enumerate(fields):
            made.add(
                "NVTX_PAYLOAD_SCHEMA_ENTRIES", domainId=1, schemaId=schema, idx=at, type=kind, name=name, offset=offset
            )
    if group is not None:
        init = blob(INIT, struct.pack("<Qii", 77, group, 0))
        made.range(None, 0, 10, textId=made.string("ncclCommInitRank"), binaryData=init, domainId=1)
    for step in range(2):
        zero = 1_000_000 * (step + 1)
        made.range(f"ProfilerStep#{step}", zero, zero + 1_000_000)
        for at, (name, payload) in enumerate(calls):
            begin, number = zero + 100_000 * at, 100 * step + at + 1
            made.range(None, begin, begin + 20_000, textId=made.string(name), binaryData=payload, domainId=1)
            made.call("cudaLaunchKernel_v7000", begin + 1_000, begin + 9_000, number)
            made.kernel(f"ncclDevKernel_{name[4:]}_RING_LL(Args)", begin + 10_000, begin + 60_000, number)
    return made


def found(made: Export, tmp_path: Path) -> list[tuple[str, int, int | None]]:
    facts = Facts(ranks.read(made.write(tmp_path / "report.sqlite")))
    table = collective_table(facts)
    rows = zip(table.operation.tolist(), table.group_size.tolist(), table.bytes.tolist(), strict=True)
    return sorted({(operation, group_size, None if size < 0 else size) for operation, group_size, size in rows})


def test_sizes_and_ranks_of_collectives(tmp_path: Path) -> None:
    made = trained(
        ("ncclAllReduce", message(4 * MB)), ("ncclAllGather", message(MB)), ("ncclReduceScatter", message(2 * MB))
    )
    assert found(made, tmp_path) == [
        ("all_gather", 8, 8 * MB),
        ("all_reduce", 8, 4 * MB),
        ("reduce_scatter", 8, 16 * MB),
    ]


def test_ranks_that_were_told_before_the_recording_are_not_known(tmp_path: Path) -> None:
    made = trained(("ncclAllReduce", message(4 * MB)), ("ncclAllGather", message(MB)), group=None)
    assert found(made, tmp_path) == [("all_gather", -1, MB), ("all_reduce", -1, 4 * MB)]


@pytest.mark.parametrize(
    "payload",
    [
        None,
        b"",
        b"short",
        blob(MESSAGE, b""),
        blob(5, struct.pack("<QQ", 77, MB)),  # of another schema
        blob(MESSAGE, struct.pack("<QQ", 77, MB), domain=3),
        struct.pack("<4Q", 1, MESSAGE, 1 << 63, 1 << 63),
    ],
)
def test_a_call_without_a_sound_payload_has_no_size(payload: bytes | None, tmp_path: Path) -> None:
    assert found(trained(("ncclAllReduce", payload)), tmp_path) == [("all_reduce", -1, None)]


def test_absurd_numbers_stay_numbers(tmp_path: Path) -> None:
    made = trained(("ncclAllReduce", message((1 << 64) - 1)), ("ncclAllGather", message(MB)), group=(1 << 31) - 1)
    assert [(operation, size) for operation, _, size in found(made, tmp_path)] == [
        ("all_gather", MB),
        ("all_reduce", None),
    ]


def test_without_blobs_or_their_schemas_nothing_is_told(tmp_path: Path) -> None:
    made = trained(("ncclAllReduce", message(MB)))
    del made.tables["NVTX_PAYLOAD_SCHEMA_ENTRIES"]
    assert found(made, tmp_path) == [("all_reduce", -1, None)]


@pytest.mark.parametrize(
    ("name", "operation"),
    [("ncclAllReduce", "all_reduce"), ("ncclReduceScatter", "reduce_scatter"), ("ncclSend", "send"), ("step", "")],
)
def test_names_of_operations_are_as_of_their_kernels(name: str, operation: str) -> None:
    assert nvtx.operation(name) == operation
