"""Reads from an S3 bucket directly into the caller's memory: the kernel makes the only copy.

obstore collects a response in fresh memory and returns another copy, which the caller copies again. Here
obstore only signs a URL, which needs no request. The standard library's HTTP client reads the response into
place, in a few threads, without the interpreter's lock. Measurements: docs/design/compaction.md#plans.

Intended for few, large reads. `InPlaceUnusableError` makes the caller use `get` for cases that this
module does not support: proxies, certificates that the system does not trust, stores or policies
that refuse signed URLs.
"""

from __future__ import annotations

import asyncio
import math
import ssl
from collections import deque
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import timedelta
from http.client import HTTPConnection, HTTPException, HTTPResponse, HTTPSConnection
from typing import Final
from urllib.parse import SplitResult, urlsplit
from urllib.request import getproxies, proxy_bypass

import obstore
from obstore.exceptions import GenericError
from obstore.store import S3Store
from ponor_runtime.object_store import ObjectStoreUnavailableError

from s3stream.stores.s3_errors import OBSTORE_ERRORS, as_store_error

READS_MAX: Final = 8
"""Threads and connections; further reads wait."""
URL_LIFE: Final = timedelta(minutes=5)
"""Lifetime of a signed URL. It is longer than `URL_USE_S` to allow for clock differences."""
URL_USE_S: Final = 60.0
"""How long one signed URL is used for the ranges of an object. Signing takes a tenth of a
millisecond and a turn of the thread."""
URLS_MAX: Final = 1024
"""Signed URLs that are cached. At the limit, all are dropped."""
CONNECT_TIMEOUT_S: Final = 5.0
SILENCE_TIMEOUT_S: Final = 30.0
"""Longest wait for the next byte."""
_ERROR_BYTES_MAX: Final = 64 * 1024
_OK: Final = frozenset({200, 206})
_UNAUTHORISED: Final = frozenset({401, 403})
_NOT_FOUND: Final = 404
_RANGE_NOT_SATISFIABLE: Final = 416
_BOTH_WAYS: Final = 2
"""`SHUT_RDWR`."""
_NEVER_SIGNED: Final = -math.inf, urlsplit("")


class InPlaceUnusableError(Exception):
    """This read cannot be made in place; use `get`."""


class InPlaceReader:
    """Reads of one bucket. The first read contacts the server and starts threads."""

    def __init__(self, store: S3Store, location: str) -> None:
        self._store = store
        self._location = location
        self._threads: ThreadPoolExecutor | None = None
        self._idle: deque[HTTPConnection] = deque()
        self._urls: dict[str, tuple[float, SplitResult]] = {}
        """Signed URLs by key, with the event-loop time in seconds at which they were signed."""

    async def read(self, key: str, start: int, places: Sequence[memoryview]) -> int:
        """As `ReadsInPlace.get_into`.

        Raises:
            InPlaceUnusableError: `get` may succeed.
            ObjectNotFoundError, ObjectStoreError: as in the port.
        """
        url = await self._url(key)
        if self._threads is None:
            self._threads = ThreadPoolExecutor(READS_MAX, "s3-in-place")
        attempt = _Attempt(url, start, places)
        work = asyncio.get_running_loop().run_in_executor(self._threads, self._carry_out, key, attempt)
        try:
            return await asyncio.shield(work)
        except asyncio.CancelledError:
            attempt.give_up()
            await _ended(work)
            raise

    def close(self) -> None:
        """Close threads and connections."""
        if self._threads is not None:
            self._threads.shutdown(wait=False)
            self._threads = None
        while self._idle:
            self._idle.pop().close()

    async def _url(self, key: str) -> SplitResult:
        now_s = asyncio.get_running_loop().time()
        signed_s, url = self._urls.get(key, _NEVER_SIGNED)
        if now_s - signed_s < URL_USE_S:
            return url
        try:
            url = urlsplit(await obstore.sign_async(self._store, "GET", key, URL_LIFE))
        except OBSTORE_ERRORS as error:
            raise InPlaceUnusableError(str(error)) from error
        if len(self._urls) >= URLS_MAX:
            self._urls.clear()
        self._urls[key] = now_s, url
        return url

    def _carry_out(self, key: str, attempt: _Attempt) -> int:
        """Read in a thread."""
        try:
            response = self._answer(attempt)
            if response.status not in _OK:
                return self._refused(key, response)
            found = attempt.fill(response)
            self._rest(attempt)
        except InPlaceUnusableError:
            attempt.end()
            raise
        except ssl.SSLCertVerificationError as error:
            attempt.end()
            raise InPlaceUnusableError(str(error)) from error
        except (OSError, HTTPException) as error:
            attempt.end()
            raise ObjectStoreUnavailableError(f"{self._location}: {key}: {error!r}") from error
        return found

    def _answer(self, attempt: _Attempt) -> HTTPResponse:
        """Return status and headers. If an idle connection turns out to be closed, repeat the
        request on a new one.
        """
        with suppress(IndexError):
            while True:
                attempt.connection = self._idle.pop()
                try:
                    return attempt.ask()
                except (OSError, HTTPException):
                    attempt.end()
        attempt.connection = _connect(attempt.url)
        return attempt.ask()

    def _rest(self, attempt: _Attempt) -> None:
        """Keep the connection for later reads."""
        assert attempt.connection is not None
        self._idle.append(attempt.connection)

    def _refused(self, key: str, response: HTTPResponse) -> int:
        text = response.read(_ERROR_BYTES_MAX).decode(errors="replace")
        response.close()
        if response.status == _RANGE_NOT_SATISFIABLE:
            return 0
        if response.status in _UNAUTHORISED:
            raise InPlaceUnusableError(f"signed URLs are refused: {text}")
        said = f"status code: {response.status}: {text}"
        error = FileNotFoundError(said) if response.status == _NOT_FOUND else GenericError(said)
        raise as_store_error(self._location, key, error)


class _Attempt:
    """One read in progress. Only its thread uses the connection, except for `give_up`."""

    def __init__(self, url: SplitResult, start: int, places: Sequence[memoryview]) -> None:
        self.connection: HTTPConnection | None = None
        self.url: Final = url
        self._start = start
        self._places = places
        self._wanted_bytes = sum(map(len, places))
        self._is_given_up = False

    def ask(self) -> HTTPResponse:
        """Send the request and read the response's headers."""
        connection = self.connection
        assert connection is not None
        if connection.sock is None:
            self._require_wanted()
            _open(connection)
        self._require_wanted()
        last = self._start + self._wanted_bytes - 1
        target = f"{self.url.path}?{self.url.query}"
        connection.request("GET", target, headers={"Range": f"bytes={self._start}-{last}"})
        return connection.getresponse()

    def fill(self, response: HTTPResponse) -> int:
        """Read the body into the places.

        Raises:
            InPlaceUnusableError: the response is not for the requested range.
            OSError: the response is truncated.
        """
        content_range = response.headers.get("Content-Range", "")
        expected = response.length
        if (
            not content_range.startswith(f"bytes {self._start}-")
            or expected is None
            or expected > self._wanted_bytes
        ):
            raise InPlaceUnusableError(
                f"the response to a range request has Content-Range {content_range or 'missing'}"
                f" and {expected} bytes"
            )
        found = 0
        for place in self._places:
            filled = 0
            while filled < len(place) and found < expected:
                count = response.readinto(place[filled:])
                if not count:
                    raise OSError(f"the response ended after {found} of {expected} bytes")
                filled += count
                found += count
        response.close()
        return found

    def give_up(self) -> None:
        """End the read soon; called from another thread."""
        self._is_given_up = True
        sock = self.connection.sock if self.connection is not None else None
        if sock is not None:
            with suppress(OSError):  # just closed
                sock.shutdown(_BOTH_WAYS)

    def end(self) -> None:
        """Close the connection."""
        if self.connection is not None:
            self.connection.close()

    def _require_wanted(self) -> None:
        # Checked after every connect: either `give_up` finds the socket, or this check notices the
        # flag.
        if self._is_given_up:
            raise TimeoutError("given up")


async def _ended(work: asyncio.Future[int]) -> None:
    """Wait for a thread to end, even if the caller is cancelled again, because until then it may
    write to the caller's memory.
    """
    while not work.done():
        try:
            await asyncio.wait([work])
        except asyncio.CancelledError:
            continue
    if not work.cancelled():
        work.exception()


def _open(connection: HTTPConnection) -> None:
    connection.connect()
    assert connection.sock is not None
    connection.sock.settimeout(SILENCE_TIMEOUT_S)


def _connect(url: SplitResult) -> HTTPConnection:
    """Return a new, unopened connection."""
    host = url.hostname or ""
    if {url.scheme, "all"} & getproxies().keys() and not proxy_bypass(host):
        raise InPlaceUnusableError("requests go through a proxy")
    if url.scheme == "https":
        return HTTPSConnection(
            host, url.port, timeout=CONNECT_TIMEOUT_S, context=ssl.create_default_context()
        )
    return HTTPConnection(host, url.port, timeout=CONNECT_TIMEOUT_S)
