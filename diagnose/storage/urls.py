"""URLs as text: which words are one, and what may be shown of it."""

from __future__ import annotations

import re

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
    """Whether a web server answers it, which tells less than a storage does and takes nothing."""
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
