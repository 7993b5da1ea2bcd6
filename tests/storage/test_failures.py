"""Exceptions of the libraries below fsspec, in words that hold nothing of theirs."""

import aiohttp
import pytest
from botocore.exceptions import ClientError, EndpointConnectionError, NoCredentialsError, ParamValidationError
from yarl import URL

from diagnose.storage.failures import in_words


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
        (FileNotFoundError("SECRET"), "it is not there"),
        (caused(FileNotFoundError("SECRET"), web(404)), "it is not there"),
        (s3(404), "it is not there"),
        (PermissionError("SECRET"), "access is denied"),
        (caused(FileNotFoundError("SECRET"), web(403)), "access is denied"),
        (s3(401), "access is denied"),
        (NoCredentialsError(), "access is denied"),
        (s3(405), "HTTP 405"),
        (ParamValidationError(report="SECRET"), "does not accept it"),
        (ValueError("SECRET"), "does not accept it"),
        (IsADirectoryError("SECRET"), "a folder is where a file is to be"),
        (web(429), "HTTP 429"),
        (s3(503), "HTTP 503"),
        (caused(FileNotFoundError("SECRET"), web(500)), "HTTP 500"),
        (caused(FileNotFoundError("SECRET"), ConnectionResetError("SECRET")), "the connection fails"),
        (aiohttp.ServerDisconnectedError("SECRET"), "the connection fails"),
        (EndpointConnectionError(endpoint_url="SECRET"), "the connection fails"),
        (TimeoutError("SECRET"), "the connection fails"),
    ],
)
def test_what_went_wrong_is_said_and_nothing_else(error: Exception, words: str) -> None:
    failure = in_words(error)
    assert words in failure.strerror
    assert "SECRET" not in str(failure)
