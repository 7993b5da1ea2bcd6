"""What is a URL, and what of it may be seen."""

import aiohttp
import pytest
from botocore.exceptions import ClientError, EndpointConnectionError, NoCredentialsError, ParamValidationError
from yarl import URL

from diagnose.storage import urls
from diagnose.storage.remote import Remote
from diagnose.storage.urls import in_words


@pytest.mark.parametrize("text", ["s3://b/run", "https://h/x.json", "abfs://c@a.dfs.core.windows.net/x", "hdfs:///run"])
def test_urls(text: str) -> None:
    assert urls.is_url(text)
    assert urls.shown(text) == text


@pytest.mark.parametrize("text", ["run", "/run/x.json", "C:\\run", "s3:/run", "a/b://c", "-", ""])
def test_paths(text: str) -> None:
    assert not urls.is_url(text)
    assert urls.shown(text) == text


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("https://h/run/x.json?X-Amz-Signature=SECRET&b=c/d", "https://h/run/x.json"),
        ("https://h/run/x.json#SECRET", "https://h/run/x.json"),
        ("https://h/run/x.json?SECRET", "https://h/run/x.json"),
        ("https://me:SECRET@h:8080/x.json", "https://h:8080/x.json"),
        ("https://SECRET@h/x.json", "https://h/x.json"),
        ("https://me:SEC/RET@h/x.json", "https://h/x.json"),
        ("http://[::1]:80/x@y.json", "http://[::1]:80/x@y.json"),
        ("s3://KEY:SECRET@b/x.json", "s3://b/x.json"),
        ("s3://b/x.json?X-Amz-Security-Token=SECRET", "s3://b/x.json"),
        ("s3://b/rank?.json", "s3://b/rank?.json"),
        ("s3://b/me@home/x.json", "s3://b/me@home/x.json"),
        ("hdfs://me@node:8020/x.json", "hdfs://node:8020/x.json"),
        ("abfs://run:SECRET@a/x.json", "abfs://a/x.json"),
        ("s3://b/a\x1b[31m.json", "s3://b/a\N{REPLACEMENT CHARACTER}[31m.json"),
    ],
)
def test_what_may_be_a_secret_is_not_shown(url: str, shown: str) -> None:
    assert urls.shown(url) == shown
    assert str(Remote(url)) == shown
    assert "SECRET" not in repr(Remote(url))


def test_the_parts_that_readers_ask_for() -> None:
    remote = Remote("https://h/run/rank0.trace.json.gz?sig=SECRET")
    assert (remote.name, remote.suffix, str(remote.parent)) == ("rank0.trace.json.gz", ".gz", "https://h/run")
    assert remote.with_name("manifest.json") == Remote("https://h/run/manifest.json")


def web(status: int) -> Exception:
    url = URL("https://h/x?sig=SECRET")
    return aiohttp.ClientResponseError(aiohttp.RequestInfo(url, "GET", None, url), (), status=status, message="SECRET")


def s3(status: int) -> Exception:
    answer = {"Error": {"Code": "X", "Message": "SECRET"}, "ResponseMetadata": {"HTTPStatusCode": status}}
    return ClientError(answer, "GetObject")


def caused(error: Exception, cause: Exception) -> Exception:
    error.__cause__ = cause
    return error


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (FileNotFoundError("SECRET"), "it does not exist"),
        (caused(FileNotFoundError("SECRET"), web(404)), "it does not exist"),
        (s3(404), "it does not exist"),
        (PermissionError("SECRET"), "access is denied"),
        (caused(FileNotFoundError("SECRET"), web(403)), "access is denied"),
        (s3(401), "access is denied"),
        (NoCredentialsError(), "access is denied"),
        (s3(405), "HTTP 405"),
        (ParamValidationError(report="SECRET"), "the storage rejects it"),
        (ValueError("SECRET"), "the storage rejects it"),
        (IsADirectoryError("SECRET"), "a folder has the name of the file"),
        (web(429), "HTTP 429"),
        (s3(503), "HTTP 503"),
        (caused(FileNotFoundError("SECRET"), web(500)), "HTTP 500"),
        (caused(FileNotFoundError("SECRET"), ConnectionResetError("SECRET")), "the connection failed"),
        (aiohttp.ServerDisconnectedError("SECRET"), "the connection failed"),
        (EndpointConnectionError(endpoint_url="SECRET"), "the connection failed"),
        (TimeoutError("SECRET"), "the connection failed"),
    ],
)
def test_what_went_wrong_is_said_and_nothing_else(error: Exception, words: str) -> None:
    failure = in_words(error)
    assert words in failure.strerror
    assert "SECRET" not in str(failure)
