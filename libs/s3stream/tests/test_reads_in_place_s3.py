"""Reads in place from a real S3 server: cancellation, retries, and the fallback to `get`. The
conformance suite covers their results.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator

import pytest
from ponor_runtime.object_store import ObjectStoreRefusedError, ObjectStoreUnavailableError
from ponor_runtime.system import SystemClock, SystemRandomness
from ponor_runtime.telemetry import Telemetry
from s3stream.stores.metered import Meter
from s3stream.stores.policy import PolicyObjectStore
from s3stream.stores.retrying import Retries
from s3stream.stores.s3 import S3ObjectStore
from s3stream.stores.s3_location import parse_s3_location

from tests.integration.seaweed_server import SeaweedServer

pytestmark = pytest.mark.s3
MIB = 1024 * 1024
DATA = bytes(range(256)) * (4 * MIB // 256)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SeaweedServer]:
    with SeaweedServer(tmp_path_factory.mktemp("seaweed")) as started:
        yield started


@pytest.fixture
async def store(server: SeaweedServer, request: pytest.FixtureRequest) -> S3ObjectStore:
    name = "".join(letter if letter.isalnum() else "-" for letter in request.node.name)
    opened = store_at(server, f"tests/{name}")
    await opened.put("1", [DATA])
    return opened


def store_at(server: SeaweedServer, prefix: str, **environment: str) -> S3ObjectStore:
    return S3ObjectStore(parse_s3_location(server.url(prefix), {**server.environment, **environment}))


async def is_read_in_place(store: S3ObjectStore) -> bool:
    memory = memoryview(bytearray(len(DATA)))
    assert await store.get_into("1", 0, [memory]) == len(DATA)
    assert memory == DATA
    return store.reads_in_place


class TestWhatEndsARead:
    async def test_a_cancelled_read_writes_nothing_afterwards(
        self, server: SeaweedServer, store: S3ObjectStore
    ) -> None:
        """The next read then uses the memory, so late bytes must not be written to it."""
        assert await is_read_in_place(store)
        memory = memoryview(bytearray(len(DATA)))
        server.pause()
        try:
            reading = asyncio.create_task(store.get_into("1", 0, [memory]))
            await asyncio.sleep(0.2)
            reading.cancel()
            await asyncio.sleep(0)
            reading.cancel()  # cancelled again: a second cancellation must not release the memory early
            with pytest.raises(asyncio.CancelledError):
                await reading
        finally:
            server.resume()
        memory[:] = bytes(len(DATA))
        assert await is_read_in_place(store), "other reads go on"
        assert memory == bytes(len(DATA))

    async def test_cancellation_stops_a_transfer(self, store: S3ObjectStore) -> None:
        memory = memoryview(bytearray(len(DATA)))
        for turn in range(20):
            reading = asyncio.create_task(store.get_into("1", 0, [memory]))
            deadline = time.monotonic() + 0.001 * turn
            while time.monotonic() < deadline:
                await asyncio.sleep(0)
            reading.cancel()
            await asyncio.wait([reading])
            memory[:] = b"\xff" * len(DATA)
            await asyncio.sleep(0.002)
            assert memory == b"\xff" * len(DATA)
        assert await is_read_in_place(store)

    async def test_connections_closed_by_the_server_are_replaced(
        self, server: SeaweedServer, store: S3ObjectStore
    ) -> None:
        await asyncio.gather(*(is_read_in_place(store) for _ in range(4)))
        server.stop()
        try:
            with pytest.raises(ObjectStoreUnavailableError, match=r"1: .*refused"):
                await is_read_in_place(store)
        finally:
            await asyncio.to_thread(server.start)
        assert await is_read_in_place(store)

    async def test_retries_survive_an_outage(self, server: SeaweedServer, store: S3ObjectStore) -> None:
        retries = Retries(clock=SystemClock(), randomness=SystemRandomness(), telemetry=Telemetry())
        retrying = PolicyObjectStore(store, [retries])
        memory = memoryview(bytearray(len(DATA)))
        server.stop()
        reading = asyncio.create_task(retrying.get_into("1", 0, [memory]))
        await asyncio.to_thread(server.start)
        assert await reading == len(DATA)
        assert memory == DATA

    async def test_a_read_in_place_is_metered_as_one_call(
        self, server: SeaweedServer, store: S3ObjectStore
    ) -> None:
        telemetry = Telemetry()
        metered = PolicyObjectStore(store, [Meter(store, telemetry, SystemClock())])
        before = server.requests_served()["GET"]
        assert await metered.get_into("1", 0, [memoryview(bytearray(MIB))]) == MIB
        for _ in range(1_000):
            # the server counts late, and also the fixture's puts
            if served := server.requests_served()["GET"] - before:
                break
            await asyncio.sleep(0.05)
        assert served == 1
        counted = {values: n for values, n in telemetry.counters("ponor_object_store_requests_total") if n}
        assert counted == {("get", "get"): 1}
        assert dict(telemetry.counters("ponor_object_store_bytes_total"))[("read",)] == MIB


class TestWhatIsLeftToGet:
    async def test_a_wrong_secret_is_refused_with_the_same_message_as_get(
        self, server: SeaweedServer
    ) -> None:
        store = store_at(server, "", AWS_SECRET_ACCESS_KEY="wrong")
        with pytest.raises(ObjectStoreRefusedError, match="check the credentials"):
            await store.get_into("1", 0, [memoryview(bytearray(1))])
        assert store.reads_in_place, "the bucket refuses, so reads in place stay enabled"

    async def test_an_absent_bucket_is_refused(self, server: SeaweedServer) -> None:
        url = server.url("").replace(server.bucket, "no-such-bucket", 1)
        store = S3ObjectStore(parse_s3_location(url, server.environment))
        with pytest.raises(ObjectStoreRefusedError, match=r"NoSuchBucket.*create the bucket"):
            await store.get_into("1", 0, [memoryview(bytearray(1))])

    async def test_a_proxy_disables_reads_in_place(
        self, store: S3ObjectStore, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The proxy is set after obstore has created its client, which therefore does not use it."""
        monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
        monkeypatch.delenv("no_proxy", raising=False)
        monkeypatch.delenv("NO_PROXY", raising=False)
        assert not await is_read_in_place(store)
        assert not await is_read_in_place(store)
