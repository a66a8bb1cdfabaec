"""Parsing of `s3://` URLs and the AWS environment.

    s3://BUCKET/PREFIX?endpoint=URL&region=NAME&allow_http=BOOL&unsigned_payload=BOOL&virtual_hosted=BOOL

The URL wins over the environment. Credentials come from the environment alone: URLs end up in logs and
process lists.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import parse_qsl, urlsplit

_PARAMETERS: Final = ("endpoint", "region", "allow_http", "unsigned_payload", "virtual_hosted")
_TRUTHS: Final = {"true": True, "1": True, "false": False, "0": False}


@dataclass(frozen=True, slots=True)
class S3Location:
    """A bucket or a prefix of one, and how to reach it. Empty strings select obstore's defaults and
    credential chain.
    """

    bucket: str
    prefix: str
    endpoint: str
    region: str
    allow_http: bool
    unsigned_payload: bool
    virtual_hosted: bool
    access_key_id: str
    secret_access_key: str = field(repr=False)
    session_token: str = field(repr=False)

    def __str__(self) -> str:
        at = f" at {self.endpoint}" if self.endpoint else ""
        return f"s3://{self.bucket}/{self.prefix}{at}"


def parse_s3_location(url: str, environment: Mapping[str, str]) -> S3Location:
    """Parse an `s3://` URL.

    Raises:
        ValueError: no bucket, an unknown parameter, an invalid boolean, or an http endpoint with
            allow_http=false.
    """
    parts = urlsplit(url)
    if (
        parts.scheme != "s3"
        or not parts.netloc
        or parts.fragment
        or "@" in parts.netloc
        or ":" in parts.netloc
    ):
        raise ValueError(f"object store URL {url!r}: s3://BUCKET/PREFIX?endpoint=URL is expected")
    parameters = _parameters(url, parts.query)
    endpoint = (
        parameters.get("endpoint")
        or environment.get("AWS_ENDPOINT_URL_S3")
        or environment.get("AWS_ENDPOINT_URL")
    )
    endpoint = (endpoint or "").rstrip("/")
    plain = endpoint.startswith("http://")
    allow_http = _truth(url, parameters, "allow_http", default=plain)
    if plain and not allow_http:
        raise ValueError(f"object store URL {url!r}: the endpoint is http and allow_http is false; use https")
    if endpoint and not endpoint.startswith(("http://", "https://")):
        raise ValueError(
            f"object store URL {url!r}: the endpoint {endpoint!r} must begin with http:// or https://"
        )
    region = (
        parameters.get("region") or environment.get("AWS_REGION") or environment.get("AWS_DEFAULT_REGION")
    )
    return S3Location(
        bucket=parts.netloc,
        prefix=parts.path.strip("/"),
        endpoint=endpoint,
        region=region or "us-east-1",
        allow_http=allow_http,
        unsigned_payload=_truth(url, parameters, "unsigned_payload", default=True),
        virtual_hosted=_truth(url, parameters, "virtual_hosted", default=False),
        access_key_id=environment.get("AWS_ACCESS_KEY_ID", ""),
        secret_access_key=environment.get("AWS_SECRET_ACCESS_KEY", ""),
        session_token=environment.get("AWS_SESSION_TOKEN", ""),
    )


def _parameters(url: str, query: str) -> dict[str, str]:
    parameters: dict[str, str] = {}
    for name, value in parse_qsl(query, keep_blank_values=True):
        if name not in _PARAMETERS or name in parameters:
            raise ValueError(
                f"object store URL {url!r}: parameter {name!r} is unknown or repeated; known:"
                f" {', '.join(_PARAMETERS)}"
            )
        parameters[name] = value
    return parameters


def _truth(url: str, parameters: Mapping[str, str], name: str, *, default: bool) -> bool:
    text = parameters.get(name)
    if text is None:
        return default
    if text.lower() not in _TRUTHS:
        raise ValueError(f"object store URL {url!r}: {name} must be true or false, not {text!r}")
    return _TRUTHS[text.lower()]
