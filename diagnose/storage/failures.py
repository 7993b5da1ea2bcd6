"""What went wrong at a storage, in our own words: texts of fsspec's libraries may hold URLs that are signed."""

from __future__ import annotations

import errno
import re

_MISSING = (404, 410)
_FORBIDDEN = (401, 403, 407)

_OF_RIGHTS = re.compile(r"Credential|Auth|Forbidden|Permission|TokenRetrieval|RefreshError|Token.*Expired")
_OF_WORDS = re.compile(r"Validation|Invalid(Bucket|URL|Url|Argument)|Unknown\w*Error")

_NOT_KNOWN = (TypeError, ValueError, LookupError, AttributeError, NotImplementedError)
"""Of fsspec for what it cannot do or does not know."""


class StorageError(OSError):
    """Why a storage did not give or take something; `strerror` is a clause without a full stop, fit to be shown."""

    @property
    def is_missing(self) -> bool:
        """Nothing lies there."""
        return self.errno == errno.ENOENT


def in_words(error: Exception) -> StorageError:
    """What an exception of fsspec or one of its libraries means."""
    if isinstance(error, StorageError):
        return error
    chain: list[BaseException] = [error]
    while (cause := chain[-1].__cause__) is not None:
        chain.append(cause)
    status = next((found for one in chain if (found := _status(one)) is not None), None)
    # The root, as fsspec takes all failures of a web server for a missing file.
    root, name = chain[-1], type(chain[-1]).__name__
    told = (
        (status in _MISSING or (not status and isinstance(root, FileNotFoundError)), errno.ENOENT, "it does not exist"),
        (
            status in _FORBIDDEN or (not status and (isinstance(root, PermissionError) or _OF_RIGHTS.search(name))),
            errno.EACCES,
            "access is denied. Check the credentials that the storage's own tools use",
        ),
        (status, errno.EIO, f"the storage answers with HTTP {status}"),
        (
            isinstance(root, (IsADirectoryError, NotADirectoryError, FileExistsError)),
            errno.EISDIR,
            "a folder has the name of the file, or a file that of its folder",
        ),
        (
            isinstance(root, _NOT_KNOWN) or _OF_WORDS.search(name),
            errno.EINVAL,
            f"the storage rejects it ({name}). Check the URL and the storage's settings",
        ),
        (True, errno.EIO, "the connection failed"),
    )
    return next(StorageError(number, text) for holds, number, text in told if holds)


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
