"""What lies at URLs. Each folder is listed once, and the list is all that is asked of it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from diagnose.storage import urls
from diagnose.storage.failures import StorageError
from diagnose.storage.filesystem import filesystem, fresh
from diagnose.storage.remote import Place, Remote
from diagnose.storage.versions import version_of

_PATTERN = re.compile(r"[*?\[]")


class Listings:
    """The folders that were listed so far."""

    def __init__(self) -> None:
        self._files: dict[str, Remote] = {}

    def named(self, url: str) -> list[Remote]:
        """What a URL stands for: a file, a folder, or those that fit a pattern; nothing if nothing lies there.

        Raises StorageError.
        """
        storage, path = filesystem(url)
        bare = urls.without_parameters(url)
        if bare.endswith("/"):
            return [Remote(url, folder=True)]
        try:
            return [_remote(url, fresh(storage, lambda: storage.info(path)))]
        except StorageError as error:
            if not error.is_missing:
                raise
        first = _PATTERN.search(bare)
        if first is None:
            return []
        folder = bare[: first.start()].rpartition("/")[0]
        if not urls.is_url(f"{folder}/"):  # A pattern of buckets.
            return []
        _, root = filesystem(f"{folder}/")
        found = fresh(storage, lambda: storage.glob(path, detail=True))
        return [_remote(urls.inside(folder, _relative(name, root)), info) for name, info in sorted(found.items())]

    def inside(self, folder: Remote) -> dict[str, Remote]:
        """All files in a folder and in those inside it, by their path from there. Raises StorageError."""
        storage, root = filesystem(folder.url)
        how = {"on_error": "raise"} if urls.is_web(folder.url) else {}
        found = fresh(storage, lambda: storage.find(root, detail=True, **how))
        files = {
            _relative(name, root): _remote(urls.inside(folder.url, _relative(name, root)), info)
            for name, info in found.items()
            if info.get("type") == "file"
        }
        self._files |= {file.url: file for file in files.values()}
        return files

    def there(self, place: Place) -> Place | None:
        """The file at a place, with its version; None if there is none. Of a URL, as its folder was listed."""
        if isinstance(place, Remote):
            return self._files.get(place.url)
        return place if place.is_file() else None


def _remote(url: str, info: Mapping[str, Any]) -> Remote:
    return Remote(url, version_of(info), folder=info.get("type") == "directory")


def _relative(name: str, root: str) -> str:
    return name.removeprefix(root.rstrip("/")).lstrip("/")
