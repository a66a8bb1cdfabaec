"""The protocol's APIs: keys, supported versions and header versions.

These are the versions that the codec can read and write; the broker decides which ones it advertises.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from ponor_kafka.errors import KafkaWireError
from ponor_kafka.messages.api_table import ROWS, ApiKey

__all__ = ["APIS", "Api", "ApiKey", "api_of", "request_header_version", "response_header_version"]


@dataclass(frozen=True, slots=True)
class Api:
    """One API: key, module in `ponor_kafka.messages`, message classes and version bounds (inclusive)."""

    key: ApiKey
    module: str
    request: str
    response: str
    version_min: int
    version_max: int
    flexible_min: int
    """First version with compact types and tagged fields; greater than `version_max` if there is none."""
    unstable_min: int
    """First unreleased version, which must not be advertised; usually greater than `version_max`."""

    def knows(self, version: int) -> bool:
        return self.version_min <= version <= self.version_max

    def is_flexible(self, version: int) -> bool:
        return version >= self.flexible_min


APIS: Final[Mapping[int, Api]] = MappingProxyType({int(row.key): Api(*row) for row in ROWS})


def api_of(key: int) -> Api:
    """Return the API of `key`.

    Raises KafkaWireError for keys that clients do not send; close the connection then.
    """
    api = APIS.get(key)
    if api is None:
        raise KafkaWireError(f"API key {key} is not a client API")
    return api


def request_header_version(key: int, version: int) -> int:
    """Return 2 (tagged fields) for flexible versions, else 1. Raises KafkaWireError for an unknown key."""
    return 2 if api_of(key).is_flexible(version) else 1


def response_header_version(key: int, version: int) -> int:
    """Return 1 (tagged fields) for flexible versions, else 0; always 0 for ApiVersions (KIP-511).

    A client must be able to read an ApiVersions response before it knows the broker's versions.
    """
    if key == ApiKey.API_VERSIONS:
        return 0
    return 1 if api_of(key).is_flexible(version) else 0
