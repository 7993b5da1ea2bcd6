"""Content in pieces: what is compressed is inflated in bounded memory, and what is wrong with it is said."""

import gzip
import os
import subprocess
import sys
import textwrap
import zlib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from diagnose.source import ranks, stream
from diagnose.source.base import Damage, InputError

ROOT = Path(__file__).parents[2]
SIZES = st.integers(1, 300)


def taken(path: Path) -> tuple[list[bytes], Damage]:
    damage = Damage()
    return list(stream.pieces(path, damage)), damage


def written(tmp_path: Path, content: bytes) -> Path:
    path = tmp_path / "content"
    path.write_bytes(content)
    return path


@given(st.lists(st.binary(max_size=400), min_size=1, max_size=8), SIZES, SIZES, st.integers(0, 700))
def test_members_and_padding_of_any_size(
    tmp_path_factory: pytest.TempPathFactory, members: list[bytes], piece: int, packed: int, padding: int
) -> None:
    """Wherever reads cut members and padding; pieces are never empty and only the last is short."""
    path = tmp_path_factory.mktemp("gz") / "content"
    path.write_bytes(b"".join(map(gzip.compress, members)) + b"\0" * padding)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stream, "PIECE_BYTES", piece)
        patch.setattr(stream, "PACKED_BYTES", packed)
        found, damage = taken(path)
    assert b"".join(found) == b"".join(members)
    assert all(len(one) >= piece for one in found[:-1])
    assert b"" not in found
    assert not damage.compressed_data_broken


@given(st.binary(min_size=1, max_size=3000), st.integers(1, 500))
def test_plain_content_is_passed_on(tmp_path_factory: pytest.TempPathFactory, content: bytes, piece: int) -> None:
    content = b"{" + content
    path = tmp_path_factory.mktemp("plain") / "content"
    path.write_bytes(content)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stream, "PIECE_BYTES", piece)
        found, _ = taken(path)
    assert found == [content[at : at + piece] for at in range(0, len(content), piece)]


@given(st.integers(0, 2**32), st.integers(1, 400))
def test_a_gzip_cut_anywhere_gives_what_zlib_gives(
    tmp_path_factory: pytest.TempPathFactory, where: int, packed: int
) -> None:
    content = bytes(range(256)) * 8
    raw = gzip.compress(content)
    raw = raw[: 2 + where % (len(raw) - 2)]
    engine = zlib.decompressobj(wbits=31)
    expected = engine.decompress(raw) + engine.flush()
    path = tmp_path_factory.mktemp("cut") / "content"
    path.write_bytes(raw)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stream, "PACKED_BYTES", packed)
        found, damage = taken(path)
    assert b"".join(found) == expected
    assert damage.compressed_data_broken


@pytest.mark.parametrize("packed", [7, 64 << 10])
def test_what_stands_before_a_broken_byte_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, packed: int) -> None:
    """Stored blocks: the first holds its 1000 bytes, the second has a length that contradicts itself."""
    monkeypatch.setattr(stream, "PACKED_BYTES", packed)
    raw = bytearray(gzip.compress(os.urandom(70_000), compresslevel=0))
    second = 10 + 5 + int.from_bytes(raw[11:13], "little")
    raw[second + 3] ^= 0xFF
    found, damage = taken(written(tmp_path, bytes(raw)))
    assert b"".join(found) == bytes(raw[15:second])
    assert damage.compressed_data_broken


def test_a_wrong_checksum_at_the_end_of_a_long_trace_is_noted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Though the JSON text ends before the compressed data does."""
    monkeypatch.setattr(stream, "PIECE_BYTES", 256)
    events = ",".join(f'{{"ph":"X","cat":"cpu_op","name":"a","pid":1,"tid":1,"ts":{k},"dur":1}}' for k in range(500))
    raw = bytearray(gzip.compress(f'{{"traceEvents":[{events}]}}'.encode()))
    raw[-8] ^= 1
    found = ranks.read(written(tmp_path, bytes(raw)))
    assert len(found.spans) == 500
    assert "The gzip file is damaged or ends early." in [note.what for note in found.integrity]


def test_rubbish_behind_a_gzip_is_noted(tmp_path: Path) -> None:
    found, damage = taken(written(tmp_path, gzip.compress(b"content") + b"rubbish"))
    assert b"".join(found) == b"content"
    assert damage.compressed_data_broken


@pytest.mark.parametrize(
    "content", [b"", b"\x1f", b"\x1f\x8b", gzip.compress(b"", mtime=0), b"\x1f\x8b\x08" + b"\xff" * 50]
)
def test_nothing_gives_no_piece(tmp_path: Path, content: bytes) -> None:
    found, _ = taken(written(tmp_path, content))
    assert b"".join(found) == (content if content == b"\x1f" else b"")


def test_a_bomb_is_refused_once_it_is_known_to_be_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream, "BOMB_BYTES", 1 << 20)
    monkeypatch.setattr(stream, "PIECE_BYTES", 1 << 16)
    path = written(tmp_path, gzip.compress(b" " * (8 << 20)))
    given_out = 0
    with pytest.raises(InputError, match="compression bomb"):  # noqa: PT012 (counts what came before)
        for piece in stream.pieces(path, Damage()):
            given_out += len(piece)
    assert given_out <= max(1 << 20, stream.BOMB_RATIO * path.stat().st_size)


def test_what_shrinks_no_more_than_traces_do_is_no_bomb(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream, "BOMB_BYTES", 1 << 16)
    content = b"".join(b'{"ts": %d.%03d, "dur": %d},' % (k * 7, k % 997, k % 13) for k in range(50_000))
    found, _ = taken(written(tmp_path, gzip.compress(content)))
    assert b"".join(found) == content


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    for path in (tmp_path / "none", tmp_path, Path("/proc/self/mem")):
        if path.exists() or path.name == "none":
            with pytest.raises(InputError, match=f"Cannot read {path}"):
                taken(path)


LIST = b'{"traceEvents": ['
EVENT = b'{"ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": 1, "tid": 1, "ts": 17, "dur": 3, "args": {}},\n'


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("start", "unit"), [(LIST, b" "), (LIST, EVENT), (b'{"a": ', b"0"), (b'{"traceEvents": [{"name": "', b"x")]
)
def test_two_gigabytes_from_a_few_megabytes_take_little_memory(tmp_path: Path, start: bytes, unit: bytes) -> None:
    """Under a bound on memory that the content passes twofold."""
    path = tmp_path / "trace.json.gz"
    path.write_bytes(gzip.compress(start) + 64 * gzip.compress(unit * ((32 << 20) // len(unit))))
    script = f"""
        import resource
        from pathlib import Path
        from diagnose.source import kineto, ranks
        from diagnose.source.base import InputError
        kineto.WORTH_WORKERS_BYTES = 1 << 60
        resource.setrlimit(resource.RLIMIT_AS, (1300 << 20, 1300 << 20))
        try:
            ranks.read(Path({str(path)!r}))
        except InputError as error:
            print(error)
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(script)], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr[-500:]
    assert any(why in done.stdout for why in ("compression bomb", "one event is over", "needs more memory"))
