"""fsspec's filesystem of a URL, and what it is asked. The only place that imports fsspec."""

import errno
import logging
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from diagnose.storage import urls
from diagnose.storage.urls import StorageError

T = TypeVar("T")

SILENCE_S = 60.0  # A web server that sends nothing for so long has lost us. fsspec's own limit is for a whole file.

PACKAGES = {
    "s3": "s3fs",
    "s3a": "s3fs",
    "gs": "gcsfs",
    "gcs": "gcsfs",
    "az": "adlfs",
    "abfs": "adlfs",
    "abfss": "adlfs",
    "hdfs": "pyarrow",
    "http": "aiohttp",
    "https": "aiohttp",
}
"""Scheme -> what to install beside fsspec."""

_TALKATIVE = ("asyncio", "fsspec", "s3fs", "gcsfs", "adlfs", "aiohttp", "aiobotocore", "botocore", "azure", "google")


def filesystem(url: str) -> tuple[Any, str]:
    """The filesystem that a URL leads to, and the path in it. Credentials are found by fsspec's own rules.

    Raises StorageError with what to install, or what is wrong with the URL.
    """
    kind = urls.scheme(url)
    try:
        known = _known(kind)
        import fsspec

        options = {**known._get_kwargs_from_urls(url), **(_web_options(fsspec.config.conf) if urls.is_web(url) else {})}
        return fsspec.filesystem(kind, **options), known._strip_protocol(url)
    except ImportError:
        raise _not_installed(kind) from None
    except Exception as error:
        raise urls.in_words(error) from None


def asked(storage: Any, call: Callable[[], T]) -> T:
    """What a filesystem answers, not from listings that it remembers. It tries again by itself. Raises StorageError."""
    try:
        storage.invalidate_cache()
        return call()
    except Exception as error:
        raise urls.in_words(error) from None


def _known(kind: str) -> Any:
    """fsspec's class for a scheme. Raises StorageError if there is none, ImportError if its package is missing."""
    import fsspec

    _quieten()
    try:
        return fsspec.get_filesystem_class(kind)
    except ValueError:
        if kind in PACKAGES:
            raise _not_installed(kind) from None
        raise StorageError(
            errno.EINVAL,
            f"fsspec does not support {kind}://. Use, for example, s3://, gs://, az://, hdfs:// or https://",
        ) from None


def _not_installed(kind: str) -> StorageError:
    package = PACKAGES.get(kind, "and what it needs for that")
    return StorageError(
        errno.ENOSYS, f"{kind}:// needs packages that are not installed. Run: pip install fsspec {package}"
    )


def _web_options(configured: Mapping[str, Any]) -> dict[str, Any]:
    """Files as they are, not compressed on the way. What users configured stays."""
    import aiohttp

    wanted = {**configured.get("http", {}), **configured.get("https", {})}
    client = {"timeout": aiohttp.ClientTimeout(total=None, sock_connect=SILENCE_S, sock_read=SILENCE_S)}
    return {
        "headers": {**wanted.get("headers", {}), "Accept-Encoding": "identity"},
        "client_kwargs": {**client, **wanted.get("client_kwargs", {})},
    }


def _quieten() -> None:
    """Keeps Python from printing what libraries log, which may hold signed URLs, where no logging was set up."""
    for name in _TALKATIVE:
        logger = logging.getLogger(name)
        if not logger.handlers:
            logger.addHandler(logging.NullHandler())
