"""A file as a stream of decompressed pieces, in bounded memory."""

from __future__ import annotations

import zlib
from collections.abc import Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import BinaryIO

from diagnose.source.base import Damage, InputError
from diagnose.storage.remote import Place

PIECE_BYTES = 1 << 20  # In a core's cache with what is decoded of it: with 4 MB events take 1.5 times as long.
PACKED_BYTES = 64 << 10  # read at a time; small, because what follows a gzip member is copied
GZIP_MAGIC = b"\x1f\x8b"
BOMB_BYTES = 1 << 30
BOMB_RATIO = 250  # real traces shrink 8 to 50 times under gzip; a bomb about 1000 times


def pieces(path: Place, damage: Damage) -> Generator[bytes, None, None]:
    """The file's content in order, about PIECE_BYTES at a time, inflated if gzip; never an empty piece.

    Reading and inflating run one piece ahead on another thread (zlib and file reads release the interpreter lock). It
    ends when the generator is closed.
    Raises InputError if the file cannot be read, or expands like a compression bomb.
    """
    try:
        with path.open("rb") as file, ThreadPoolExecutor(1, thread_name_prefix="diagnose-read") as pool:
            content = _gathered(_inflated(file, path, damage)) if _is_gzip(file) else _plain(file)
            pending = pool.submit(next, content, b"")
            while piece := pending.result():
                pending = pool.submit(next, content, b"")
                yield piece
    except OSError as error:
        raise InputError(f"Cannot read {path}: {error.strerror or error}.") from error


def head(path: Place, size: int = 4096, raw: bool = False) -> bytes:
    """The first bytes of the content, inflated if gzip and not `raw`. Raises InputError if the file cannot be read."""
    try:
        with path.open("rb") as file:
            inflated = not raw and _is_gzip(file)
            content = _gathered(_inflated(file, path, Damage()), size) if inflated else iter([file.read(size)])
            return next(content, b"")[:size]
    except OSError as error:
        raise InputError(f"Cannot read {path}: {error.strerror or error}.") from error


def _is_gzip(file: BinaryIO) -> bool:
    """Whether a file begins as gzip does; reading then starts at its beginning."""
    magic = file.read(len(GZIP_MAGIC))
    file.seek(0)
    return magic == GZIP_MAGIC


def _plain(file: BinaryIO) -> Iterator[bytes]:
    while piece := file.read(PIECE_BYTES):
        yield piece


def _gathered(parts: Iterator[bytes], enough: int = PIECE_BYTES) -> Iterator[bytes]:
    """The parts joined to pieces of at least `enough` bytes; the last piece may be smaller."""
    held, size = list[bytes](), 0
    for part in parts:
        held.append(part)
        size += len(part)
        if size >= enough:
            yield b"".join(held)
            held, size = [], 0
    if held:
        yield b"".join(held)


def _inflated(file: BinaryIO, path: Place, damage: Damage) -> Iterator[bytes]:
    """Inflated pieces of a gzip file of any number of members; damage is noted, and all before it yielded."""
    engine, in_member = zlib.decompressobj(wbits=31), False
    read = written = 0
    raw, before = b"", engine
    try:
        while raw := file.read(PACKED_BYTES):
            read += len(raw)
            while raw := raw if in_member else raw.lstrip(b"\0"):
                in_member, before = True, engine.copy()
                if piece := engine.decompress(raw, PIECE_BYTES):
                    written += len(piece)
                    _refuse_bomb(path, read, written)
                    yield piece
                raw = engine.unconsumed_tail
                if engine.eof:
                    raw = engine.unused_data
                    engine, in_member = zlib.decompressobj(wbits=31), False
        if in_member:
            if piece := engine.flush():
                yield piece
            damage.compressed_data_broken = not engine.eof
    except zlib.error:
        damage.compressed_data_broken = True
        yield from filter(None, _before_the_error(before, raw))


def _before_the_error(engine: zlib._Decompress, raw: bytes) -> Iterator[bytes]:
    """What can be inflated of `raw` before the byte at which it is broken: in blocks, the last one byte by byte."""
    before = engine
    for size in (256, 1):
        try:
            while raw:
                before = engine.copy()
                yield engine.decompress(raw[:size])
                raw = raw[size:]
        except zlib.error:
            engine = before


def _refuse_bomb(path: Place, read: int, written: int) -> None:
    """Raise InputError if so many bytes `written` from so few `read` must be a compression bomb."""
    if written > BOMB_BYTES and written > BOMB_RATIO * read:
        raise InputError(
            f"{path} expands more than {BOMB_RATIO} times, like a compression bomb. "
            "If it is a trace, decompress it with gunzip and analyse the result."
        )
