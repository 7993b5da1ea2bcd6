"""The server as agents use it: started by the protocol's own client, spoken with over stdio."""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import anyio
import msgspec
from mcp import Client, StdioServerParameters

from tests.capture.scripts import environment

Call = tuple[str, dict[str, Any]]


PROGRAM = ("-m", "diagnose")


def with_client(
    folder: Path, talk: Callable[[Client], Awaitable[Any]], *options: str, program: tuple[str, ...] = PROGRAM
) -> Any:
    """What a conversation gives with a server that was started in a folder."""
    server = StdioServerParameters(
        command=sys.executable,
        args=[*program, "mcp", *options],
        cwd=folder,
        env=environment(),
    )

    async def converse() -> Any:
        async with Client(server) as client:
            return await talk(client)

    return anyio.run(converse)


def answers(folder: Path, *calls: Call, options: tuple[str, ...] = (), program: tuple[str, ...] = PROGRAM) -> list[Any]:
    """The results of these calls, one after the other."""

    async def talk(client: Client) -> list[Any]:
        return [await client.call_tool(name, arguments) for name, arguments in calls]

    found: list[Any] = with_client(folder, talk, *options, program=program)
    return found


def text(result: Any) -> str:
    """What a model reads of it."""
    (content,) = result.content
    return str(content.text)


def size(result: Any) -> int:
    """Bytes of its text and its data."""
    return len(text(result).encode()) + len(msgspec.json.encode(result.structured_content or {}))
