"""URLs as text: which words are one, and what may be shown of it."""

import errno
import re
from pathlib import Path, PurePosixPath, PureWindowsPath

_URL = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+)://")
_PORT = re.compile(r"(\[[^\]]*\]|[^:]*):\d{0,5}\Z")
_PARAMETERS = re.compile(r"\?[^/?=]*=")
_WEB = ("http", "https")
_CONTAINER_FIRST = ("abfs", "abfss", "az")  # container@account, which is no secret.


def is_url(text: str) -> bool:
    """Whether it is a URL, not a path."""
    return _URL.match(text) is not None


def scheme(url: str) -> str:
    """What stands before `://`, in small letters."""
    return url.partition("://")[0].lower()


def is_web(url: str) -> bool:
    """Whether it is of a web server, which tells less of its files than a storage does and cannot be written to."""
    return scheme(url) in _WEB


def without_parameters(url: str) -> str:
    """The URL without its query and fragment: signed URLs hold a secret there. A pattern's `?` stays."""
    if is_web(url):
        return re.split(r"[?#]", url, maxsplit=1)[0]
    return _PARAMETERS.split(url, maxsplit=1)[0]


def shown(url: str) -> str:
    """A URL as text for messages and reports, without anything that may be a secret; anything else as it is."""
    if not is_url(url):
        return url
    before, _, rest = without_parameters(url).partition("://")
    authority, slash, path = rest.partition("/")
    if ":" in authority and not _PORT.match(authority) and "@" not in authority and "@" in path:
        authority, slash, path = f"@{path.rpartition('@')[2]}".partition("/")  # A password with a slash in it.
    user, _, host = authority.rpartition("@")
    if before.lower() in _CONTAINER_FIRST and user and ":" not in user:
        host = authority
    text = f"{before}://{host}{slash}{path}"
    return text if text.isprintable() else "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in text)


def inside(folder: str, name: str) -> str:
    """The URL of what has this name, or relative path, in a folder."""
    return f"{without_parameters(folder).rstrip('/')}/{name}"


_MISSING = (404, 410)
_FORBIDDEN = (401, 403, 407)

_OF_RIGHTS = re.compile(r"Credential|Auth|Forbidden|Permission|TokenRetrieval|RefreshError|Token.*Expired")
_OF_WORDS = re.compile(r"Validation|Invalid(Bucket|URL|Url|Argument)|Unknown\w*Error")

_NOT_KNOWN = (TypeError, ValueError, LookupError, AttributeError, NotImplementedError)  # What fsspec raises.


class StorageError(OSError):
    """Why a storage did not give or take something; `strerror` is a clause without a full stop, fit to be shown."""

    @property
    def is_missing(self) -> bool:
        """Whether nothing lies there."""
        return self.errno == errno.ENOENT


def in_words(error: Exception) -> StorageError:
    """The StorageError for an exception of fsspec or its libraries: by HTTP status, else by its root cause."""
    if isinstance(error, StorageError):
        return error
    chain: list[BaseException] = [error]
    while (cause := chain[-1].__cause__) is not None:
        chain.append(cause)
    status = next((found for one in chain if (found := _status(one)) is not None), None)
    # The root, as fsspec takes all failures of a web server for a missing file.
    root, name = chain[-1], type(chain[-1]).__name__
    meanings = (
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
    return next(StorageError(number, text) for holds, number, text in meanings if holds)


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


def root_of(folder: Path) -> Path:
    """The top of the git checkout that a folder is in; the folder itself outside of one."""
    folder = folder.resolve()
    return next((one for one in (folder, *folder.parents) if (one / ".git").exists()), folder)


def name_of(recorded: str) -> str:
    """The last part of a path, of Windows or any other system."""
    return _pure(recorded).name


def candidates(recorded: str, here: Path) -> list[Path]:
    """Files of Python that a recorded path may mean: there, or in `here` if it was recorded elsewhere.

    Absolute, without links. They may lie anywhere: who reads them has to look.
    """
    pure = _pure(recorded)
    names = [part for part in pure.parts if part != pure.anchor and part != ".."]
    ends = [Path(*names[first:]) for first in range(len(names))]
    return [one.resolve() for one in [here / recorded, *(here / end for end in ends)] if _is_python_file(one)]


def _pure(recorded: str) -> PurePosixPath | PureWindowsPath:
    windows = "\\" in recorded and "/" not in recorded
    return PureWindowsPath(recorded) if windows else PurePosixPath(recorded)


def _is_python_file(path: Path) -> bool:
    try:
        return path.suffix == ".py" and path.is_file()
    except (OSError, ValueError):
        return False
