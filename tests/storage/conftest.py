"""A storage that speaks S3, behind a proxy that can be told to fail."""

import logging
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.storage.network import Proxy, proxy


@dataclass(frozen=True)
class Bucket:
    name: str
    client: Any
    proxy: Proxy

    @property
    def url(self) -> str:
        return f"s3://{self.name}"

    def put(self, key: str, content: bytes) -> str:
        """Store an object, behind the proxy's back. Gives its URL."""
        self.client.put_object(Bucket=self.name, Key=key, Body=content)
        return f"{self.url}/{key}"

    def put_folder(self, folder: Path, key: str) -> str:
        """Store all files of a folder. Gives the URL of it."""
        for path in folder.rglob("*"):
            if path.is_file():
                self.put(f"{key}/{path.relative_to(folder).as_posix()}", path.read_bytes())
        return f"{self.url}/{key}"

    def get(self, key: str) -> bytes:
        return self.client.get_object(Bucket=self.name, Key=key)["Body"].read()

    def delete(self, key: str) -> None:
        self.client.delete_object(Bucket=self.name, Key=key)

    def keys(self) -> list[str]:
        return [one["Key"] for one in self.client.list_objects_v2(Bucket=self.name).get("Contents", [])]


@pytest.fixture(scope="session")
def server() -> Iterator[tuple[Any, Proxy]]:
    """A client of moto's S3 server, and the proxy before it. The environment points to the proxy."""
    import boto3
    from moto.server import ThreadedMotoServer

    patch = pytest.MonkeyPatch()
    keys = {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test"}
    for name, value in (keys | {"AWS_DEFAULT_REGION": "us-east-1", "AWS_MAX_ATTEMPTS": "1"}).items():
        patch.setenv(name, value)
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    moto = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    moto.start()
    _, port = moto.get_host_and_port()
    with proxy(port) as before:
        patch.setenv("AWS_ENDPOINT_URL", before.url)
        yield boto3.client("s3", endpoint_url=f"http://127.0.0.1:{port}"), before
    moto.stop()
    patch.undo()


@pytest.fixture
def bucket(server: tuple[Any, Proxy], monkeypatch: pytest.MonkeyPatch) -> Iterator[Bucket]:
    import s3fs

    client, before = server
    before.requests.clear()
    monkeypatch.setattr(s3fs.S3FileSystem, "retries", 1)
    name = f"bucket-{uuid.uuid4().hex[:12]}"
    client.create_bucket(Bucket=name)
    yield Bucket(name, client, before)
    before.fault = lambda request: None
