"""The APIs of the protocol: keys, the versions this codec knows, and which header a version travels under.

What a broker advertises is the broker's decision; this is only what can be read and written.
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
    """One API: its key, its module in `ponor_kafka.messages`, its message classes and version bounds (inclusive)."""

    key: ApiKey
    module: str
    request: str
    response: str
    version_min: int
    version_max: int
    flexible_min: int
    """The first version with compact types and tagged fields; above `version_max` when there is none."""
    unstable_min: int
    """The first version that is not released yet and must not be advertised; usually above `version_max`."""

    def knows(self, version: int) -> bool:
        return self.version_min <= version <= self.version_max

    def is_flexible(self, version: int) -> bool:
        return version >= self.flexible_min


APIS: Final[Mapping[int, Api]] = MappingProxyType({int(row.key): Api(*row) for row in ROWS})


def api_of(key: int) -> Api:
    """The API of `key`. Raises KafkaWireError for keys that no client may send: the connection is closed then."""
    api = APIS.get(key)
    if api is None:
        raise KafkaWireError(f"API key {key} is not one that clients send")
    return api


def request_header_version(key: int, version: int) -> int:
    """2 (tagged fields) for flexible versions, else 1. Raises KafkaWireError for an unknown key."""
    return 2 if api_of(key).is_flexible(version) else 1


def response_header_version(key: int, version: int) -> int:
    """1 (tagged fields) for flexible versions, else 0; always 0 for ApiVersions (KIP-511).

    An ApiVersions response must be readable by a client that does not know yet which versions the broker speaks.
    """
    if key == ApiKey.API_VERSIONS:
        return 0
    return 1 if api_of(key).is_flexible(version) else 0
