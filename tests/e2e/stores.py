"""Object stores of the end-to-end tests: a local directory and a real S3 server process."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from tests.integration.seaweed_server import SeaweedServer

STORES = ("directory", "s3")


@dataclass(frozen=True, slots=True)
class StoreForTest:
    """Arguments and environment of `ponor up` for a store."""

    arguments: list[str] = field(default_factory=list)
    environment: dict[str, str] = field(default_factory=dict)
    server: SeaweedServer | None = None


def store_on(server: SeaweedServer, prefix: str) -> StoreForTest:
    """Create a separate store on a server that several tests share."""
    return StoreForTest(["--object-store", server.url(prefix)], server.environment, server)


@contextmanager
def store_for_test(kind: str, directory: Path) -> Iterator[StoreForTest]:
    """Provide a store for the duration of a test."""
    if kind == "directory":
        yield StoreForTest()
        return
    with SeaweedServer(directory / "seaweed") as server:
        yield store_on(server, "ponor")
