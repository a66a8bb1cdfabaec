"""Single signed requests to an S3 server, for probes that obstore cannot make. Answers are returned
unprocessed.

AWS Signature Version 4 (https://docs.aws.amazon.com/AmazonS3/latest/API/sig-v4-header-based-auth.html) over
http.client. Each request has its own connection, so that a request can be abandoned without reading its
answer.
"""

from __future__ import annotations

import hashlib
import hmac
import http.client
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final
from urllib.parse import quote, urlsplit

from s3stream.stores.s3_location import S3Location

TIMEOUT_S: Final = 30.0
_UNSIGNED: Final = "UNSIGNED-PAYLOAD"
_SAFE: Final = "-_.~"


class S3RequestError(Exception):
    """The server is unreachable, or its response is not valid HTTP."""


@dataclass(frozen=True, slots=True)
class S3Answer:
    """Status, headers in lower case, body."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def is_success(self) -> bool:
        """Whether the status is 2xx."""
        return 200 <= self.status < 300


class S3Requests:
    """Sends requests to one bucket, with the credentials from the environment."""

    def __init__(self, location: S3Location) -> None:
        assert location.access_key_id, "the caller checks for credentials"
        self._location = location
        endpoint = location.endpoint or f"https://s3.{location.region}.amazonaws.com"
        parts = urlsplit(endpoint)
        self._is_tls = parts.scheme == "https"
        self._host = parts.netloc
        self._base = "" if location.virtual_hosted else f"/{location.bucket}"
        if location.virtual_hosted and not location.endpoint:
            self._host = f"{location.bucket}.{parts.netloc}"

    def key(self, name: str) -> str:
        """Return the full key at the server: the location's prefix and the name."""
        return f"{self._location.prefix}/{name}" if self._location.prefix else name

    def send(
        self,
        method: str,
        key: str = "",
        *,
        query: Mapping[str, str] | None = None,
        headers: Mapping[str, str] | None = None,
        body: bytes = b"",
    ) -> S3Answer:
        """Send one request. `key` is the full key at the server.

        Raises:
            S3RequestError: no response.
        """
        connection = self._connection()
        try:
            connection.request(*self._signed(method, key, query or {}, headers or {}, body))
            answer = connection.getresponse()
            return S3Answer(
                answer.status, {name.lower(): value for name, value in answer.getheaders()}, answer.read()
            )
        except (OSError, http.client.HTTPException) as error:
            raise S3RequestError(f"{method} {key or 'bucket'} at {self._host}: {error}") from error
        finally:
            connection.close()

    def send_and_leave(self, method: str, key: str, *, headers: Mapping[str, str], body: bytes) -> None:
        """Send a complete request and disconnect. Only the store can tell whether it was executed."""
        connection = self._connection()
        try:
            connection.request(*self._signed(method, key, {}, headers, body))
        except (OSError, http.client.HTTPException) as error:
            raise S3RequestError(f"{method} {key} at {self._host}: {error}") from error
        finally:
            connection.close()

    def _connection(self) -> http.client.HTTPConnection:
        kind = http.client.HTTPSConnection if self._is_tls else http.client.HTTPConnection
        return kind(self._host, timeout=TIMEOUT_S)

    def _signed(
        self, method: str, key: str, query: Mapping[str, str], headers: Mapping[str, str], body: bytes
    ) -> tuple[str, str, bytes, dict[str, str]]:
        path = quote(f"{self._base}/{key}" if key else (self._base or "/"), safe=_SAFE + "/")
        encoded = "&".join(f"{quote(k, safe=_SAFE)}={quote(v, safe=_SAFE)}" for k, v in sorted(query.items()))
        moment = datetime.now(UTC).strftime("%Y%m%dT%H%M%SZ")  # noqa: TID251 - a signature needs the real time
        signed = {
            **{name.lower(): value for name, value in headers.items()},
            "host": self._host,
            "x-amz-content-sha256": _UNSIGNED,
            "x-amz-date": moment,
        }
        if self._location.session_token:
            signed["x-amz-security-token"] = self._location.session_token
        names = ";".join(sorted(signed))
        lines = "".join(f"{name}:{signed[name].strip()}\n" for name in sorted(signed))
        canonical = f"{method}\n{path}\n{encoded}\n{lines}\n{names}\n{_UNSIGNED}"
        scope = f"{moment[:8]}/{self._location.region}/s3/aws4_request"
        digest = hashlib.sha256(canonical.encode()).hexdigest()
        signature = self._sign(scope, f"AWS4-HMAC-SHA256\n{moment}\n{scope}\n{digest}")
        credential = f"{self._location.access_key_id}/{scope}"
        parts = f"Credential={credential}, SignedHeaders={names}, Signature={signature}"
        signed["authorization"] = f"AWS4-HMAC-SHA256 {parts}"
        del signed["host"]
        return method, f"{path}?{encoded}" if encoded else path, body, signed

    def _sign(self, scope: str, text: str) -> str:
        key = f"AWS4{self._location.secret_access_key}".encode()
        for part in scope.split("/"):
            key = hmac.new(key, part.encode(), hashlib.sha256).digest()
        return hmac.new(key, text.encode(), hashlib.sha256).hexdigest()
