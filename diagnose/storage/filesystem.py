"""fsspec's filesystem of a URL, and calls of it that are tried again. The only place that imports fsspec."""

from __future__ import annotations

import errno
import logging
import random
import time
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from diagnose.storage import failures, urls
from diagnose.storage.failures import StorageError

T = TypeVar("T")

TRIES = 6
FIRST_WAIT_S, LONGEST_WAIT_S = 0.25, 20.0
"""Between tries: twice as long each time, and up to half of it less by chance, so that ranks do not come together."""

GIVE_UP_S = 300.0
"""No try begins later: packages have tries of their own, some of which take minutes."""

SILENCE_S = 60.0
"""A web server that sends nothing for so long has lost us. fsspec's own limit is for a whole file."""

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
        failure = failures.in_words(error)
        if failure.may_pass:
            failure = StorageError(
                errno.EIO, f"{kind}:// cannot be set up ({type(error).__name__}). Check fsspec's settings for it"
            )
        raise failure from None


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
            errno.EINVAL, f"fsspec knows no {kind}://. Among others it knows s3://, gs://, az://, hdfs:// and https://"
        ) from None


def _not_installed(kind: str) -> StorageError:
    package = PACKAGES.get(kind, "and what it needs for that")
    return StorageError(
        errno.ENOSYS, f"{kind}:// needs packages that are not installed. Run: pip install fsspec {package}"
    )


def attempt(call: Callable[[], T]) -> T:
    """What the call gives, tried again with growing waits while it fails for reasons that may pass.

    Raises StorageError.
    """
    begin, tried = time.monotonic(), 0
    while True:
        tried += 1
        try:
            return call()
        except Exception as error:
            failure = failures.in_words(error)
        if not failure.may_pass:
            raise failure
        if tried == TRIES or time.monotonic() - begin >= GIVE_UP_S:
            raise StorageError(errno.EIO, f"{failure.strerror} ({tried} {'try' if tried == 1 else 'tries'})")
        longest = min(FIRST_WAIT_S * 2 ** (tried - 1), LONGEST_WAIT_S)
        time.sleep(longest * random.uniform(0.5, 1))


def fresh(known: Any, call: Callable[[], T]) -> T:
    """`attempt`, of a call that is not to be answered from listings that fsspec remembers. Raises StorageError."""

    def asked() -> T:
        known.invalidate_cache()
        return call()

    return attempt(asked)


def _web_options(configured: Mapping[str, Any]) -> dict[str, Any]:
    """Files as they are, not compressed on the way: ranges of such have no meaning. What users configured stays."""
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
