"""What went wrong at a storage, in our own words: texts of fsspec's libraries may hold URLs that are signed."""

from __future__ import annotations

import errno
import re
from collections.abc import Iterator

_MISSING = (404, 410)
_FORBIDDEN = (401, 403, 407)
_CHANGED = (412,)
_PASSING = (408, 416, 425, 429)
"""Besides those from 500: timeout, a range past the end of what was cut meanwhile, too early, too many requests."""

_OF_RIGHTS = re.compile(r"Credential|Auth|Forbidden|Permission|TokenRetrieval|RefreshError|Token.*Expired")
_OF_WORDS = re.compile(r"Validation|Invalid(Bucket|URL|Url|Argument)|Unknown\w*Error")


_NOT_PASSING = (TypeError, ValueError, LookupError, AttributeError, NotImplementedError)
"""Of fsspec for what it cannot do or does not know."""


class StorageError(OSError):
    """Why a storage did not give or take something; `strerror` is a clause without a full stop, fit to be shown."""

    @property
    def is_missing(self) -> bool:
        """Nothing lies there."""
        return self.errno == errno.ENOENT

    @property
    def may_pass(self) -> bool:
        """It is worth another try."""
        return self.errno == errno.EAGAIN


def missing() -> StorageError:
    """Nothing lies there, or not any more."""
    return StorageError(errno.ENOENT, "it is not there, or not any more")


def forbidden() -> StorageError:
    """The storage knows nobody by these credentials, or allows them too little."""
    return StorageError(errno.EACCES, "access is denied. Check the credentials that the storage's own tools use")


def changed() -> StorageError:
    """It is another file now than when reading it began."""
    return StorageError(errno.EBUSY, "it changed while it was read. Analyse it once nothing writes to it any more")


def passing(why: str) -> StorageError:
    """What another try may fix."""
    return StorageError(errno.EAGAIN, why)


def in_words(error: Exception) -> StorageError:
    """What an exception of fsspec or one of its libraries means. What nothing is known of may pass."""
    if isinstance(error, StorageError):
        return error
    chain = list(_causes(error))
    if any(type(one).__name__ == "FileExpired" for one in chain):
        return changed()
    status = next((found for one in chain if (found := _status(one)) is not None), None)
    # The root, as fsspec takes all failures of a web server for a missing file.
    return _of_kind(chain[-1]) if status is None else _of_status(status)


def _of_status(status: int) -> StorageError:
    known = dict.fromkeys(_MISSING, missing) | dict.fromkeys(_FORBIDDEN, forbidden) | dict.fromkeys(_CHANGED, changed)
    if status in known:
        return known[status]()
    passes = status in _PASSING or status >= 500
    return StorageError(errno.EAGAIN if passes else errno.EIO, f"the storage answers with HTTP {status}")


def _of_kind(error: BaseException) -> StorageError:
    name = type(error).__name__
    if isinstance(error, FileNotFoundError):
        return missing()
    if isinstance(error, PermissionError) or _OF_RIGHTS.search(name):
        return forbidden()
    if isinstance(error, (IsADirectoryError, NotADirectoryError, FileExistsError)):
        return StorageError(errno.EISDIR, "a folder is where a file is to be, or a file where a folder is")
    if isinstance(error, _NOT_PASSING) or _OF_WORDS.search(name):
        return StorageError(
            errno.EINVAL, f"its storage does not accept it ({name}). Check the URL and the storage's settings"
        )
    return passing("the connection fails, or ends early")


def _causes(error: BaseException) -> Iterator[BaseException]:
    cause: BaseException | None = error
    while cause is not None:
        yield cause
        cause = cause.__cause__


def _status(error: BaseException) -> int | None:
    """The status of an HTTP answer that is told by an exception of botocore, aiohttp, gcsfs or azure."""
    response = getattr(error, "response", None)
    if isinstance(response, dict):
        metadata = response.get("ResponseMetadata")
        found = [metadata.get("HTTPStatusCode")] if isinstance(metadata, dict) else []
    else:
        names = ("code",) if type(error).__name__ == "HttpError" else ("status", "status_code")  # The first is gcsfs'.
        found = [getattr(error, name, None) for name in names]
    return next((one for one in found if isinstance(one, int) and 400 <= one < 600), None)
