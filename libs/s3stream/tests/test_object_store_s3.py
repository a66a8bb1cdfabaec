"""The S3 store against a real S3 server: conformance, obstore's behaviour, and billed requests."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator

import pytest
from ponor_runtime.object_store import (
    ObjectAlreadyExistsError,
    ObjectInfo,
    ObjectNotFoundError,
    ObjectStoreRefusedError,
    ObjectStoreUnavailableError,
)
from ponor_runtime.system import SystemClock, SystemRandomness
from ponor_runtime.telemetry import Telemetry
from s3stream.stores import s3 as s3_module
from s3stream.stores.metered import Meter
from s3stream.stores.policy import PolicyObjectStore
from s3stream.stores.retrying import Retries
from s3stream.stores.s3 import MULTIPART_BYTES_MIN, PART_BYTES, S3ObjectStore
from s3stream.stores.s3_location import parse_s3_location

from libs.s3stream.tests import object_store_conformance as conformance
from tests.integration.seaweed_server import SeaweedServer

pytestmark = pytest.mark.s3


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SeaweedServer]:
    with SeaweedServer(tmp_path_factory.mktemp("seaweed")) as started:
        yield started


def store_at(server: SeaweedServer, prefix: str, parameters: str = "", **environment: str) -> S3ObjectStore:
    location = parse_s3_location(server.url(prefix) + parameters, {**server.environment, **environment})
    return S3ObjectStore(location)


@pytest.fixture
def store(server: SeaweedServer, request: pytest.FixtureRequest) -> S3ObjectStore:
    name = "".join(letter if letter.isalnum() else "-" for letter in request.node.name)
    return store_at(server, f"tests/{name}")


@pytest.mark.parametrize("check", conformance.CHECKS, ids=lambda check: check.__name__)
@pytest.mark.parametrize("parameters", ["", "&unsigned_payload=false"], ids=["unsigned", "signed"])
async def test_conformance(check: conformance.Check, parameters: str, server: SeaweedServer) -> None:
    signed = "signed" if parameters else "unsigned"
    await check(store_at(server, f"{signed}/{check.__name__}", parameters), "p")


class TestBucketLayout:
    async def test_keys_are_below_the_prefix_of_the_url(self, server: SeaweedServer) -> None:
        await store_at(server, "one/two").put("84/ns/1", [b"x"])
        assert server.objects("one/") == {"one/two/84/ns/1": 1}

    async def test_a_store_without_prefix_sees_the_whole_bucket(self, server: SeaweedServer) -> None:
        await store_at(server, "three").put("84/ns/1", [b"x"])
        whole = store_at(server, "")
        assert [info async for info in whole.list("three/")] == [ObjectInfo("three/84/ns/1", 1)]
        await whole.delete(["three/84/ns/1"])

    async def test_listings_and_deletions_span_several_pages(
        self, store: S3ObjectStore, server: SeaweedServer
    ) -> None:
        keys = [f"k/{number:04}" for number in range(1003)]
        for first in range(0, len(keys), 100):
            await asyncio.gather(*(store.put(key, [b"x"]) for key in keys[first : first + 100]))
        assert [info.key async for info in store.list("k/")] == keys
        await store.delete(keys)
        assert [info async for info in store.list("k/")] == []


class TestWhatObstoreDoes:
    """obstore's behaviour on which `s3.py` relies. If a new obstore changes it, update the module's
    docstring and this test.
    """

    async def test_multipart_leaves_no_open_upload(self, store: S3ObjectStore, server: SeaweedServer) -> None:
        await store.put("1", [b"x" * (MULTIPART_BYTES_MIN + 1)])
        assert server.open_multipart_uploads() == []
        etag = next(
            row["ETag"]
            for row in server.client().list_objects_v2(Bucket=server.bucket, Prefix="tests/")["Contents"]
            if row["Size"] == MULTIPART_BYTES_MIN + 1
        )
        assert etag.strip('"').endswith(f"-{MULTIPART_BYTES_MIN // PART_BYTES + 1}"), "the number of parts"

    async def test_multipart_is_unconditional_and_is_preceded_by_a_head(
        self, store: S3ObjectStore, server: SeaweedServer, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        large = [b"x" * (MULTIPART_BYTES_MIN + 1)]
        await store.put("1", large)
        with pytest.raises(ObjectAlreadyExistsError):
            await store.put("1", large)

        async def absent(_store: S3ObjectStore, _key: str) -> bool:
            return False

        monkeypatch.setattr(s3_module.S3ObjectStore, "_exists", absent)
        await store.put("1", [b"y" * (MULTIPART_BYTES_MIN + 2)])
        assert await store.get_tail("1", 1) == (b"y", MULTIPART_BYTES_MIN + 2)


class TestErrors:
    async def test_a_wrong_secret_is_refused(self, server: SeaweedServer) -> None:
        store = store_at(server, "", AWS_SECRET_ACCESS_KEY="wrong")
        with pytest.raises(ObjectStoreRefusedError, match=r"SignatureDoesNotMatch.*check the credentials"):
            await store.put("1", [b"x"])
        with pytest.raises(ObjectStoreRefusedError, match="check the credentials"):
            await store.get("1", 0, 1)

    async def test_an_absent_bucket_is_refused_and_not_created(self, server: SeaweedServer) -> None:
        url = server.url("").replace(server.bucket, "no-such-bucket", 1)
        store = S3ObjectStore(parse_s3_location(url, server.environment))
        for call in (store.put("1", [b"x"]), store.get("1", 0, 1), store.get_tail("1", 1)):
            with pytest.raises(ObjectStoreRefusedError, match=r"NoSuchBucket.*create the bucket"):
                await call
        with pytest.raises(ObjectStoreRefusedError, match="create the bucket"):
            assert [info async for info in store.list("")] == []

    async def test_calls_succeed_after_an_outage_of_the_server(self) -> None:
        location = parse_s3_location(
            "s3://b/?endpoint=http://127.0.0.1:1", {"AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b"}
        )
        with pytest.raises(ObjectStoreUnavailableError, match=r"127\.0\.0\.1:1"):
            await S3ObjectStore(location).get("1", 0, 1)

    async def test_a_refused_deletion_is_an_error(self, server: SeaweedServer) -> None:
        store = store_at(server, "", AWS_SECRET_ACCESS_KEY="wrong")
        with pytest.raises(ObjectStoreRefusedError):
            await store.delete(["1", "2"])


async def settled(server: SeaweedServer, before: Counter[str], *, expected: int) -> Counter[str]:
    """Return the server's request counts since. It counts a request after answering it."""
    for _ in range(1_000):
        if (server.requests_served() - before).total() >= expected:
            break
        await asyncio.sleep(0.05)
    await asyncio.sleep(0.2)  # for unexpected requests
    return server.requests_served() - before


class TestBill:
    async def test_metered_calls_equal_the_calls_that_the_server_counted(
        self, server: SeaweedServer, store: S3ObjectStore
    ) -> None:
        telemetry = Telemetry()
        metered = PolicyObjectStore(store, [Meter(store, telemetry, SystemClock())])
        before = server.requests_served()
        await metered.put("1", [b"x" * 1000])
        with pytest.raises(ObjectAlreadyExistsError):
            await metered.put("1", [b"x" * 1000])
        await metered.put("2", [b"x" * (MULTIPART_BYTES_MIN + 1)])
        with pytest.raises(ObjectAlreadyExistsError):
            await metered.put("2", [b"x" * (MULTIPART_BYTES_MIN + 1)])
        await metered.get("1", 0, 10)
        await metered.get_tail("2", 100)
        with pytest.raises(ObjectNotFoundError):
            await metered.get("none", 0, 1)
        assert len([info async for info in metered.list("")]) == 2
        await metered.delete(["1", "2"])
        served = await settled(server, before, expected=5 + 2 + 5 + 1 + 1)

        counted = dict(telemetry.counters("ponor_object_store_requests_total"))
        assert {values: number for values, number in counted.items() if number} == {
            ("put", "put"): 2,
            ("head", "get"): 2,
            ("multipart_create", "put"): 1,
            ("multipart_part", "put"): 3,
            ("multipart_complete", "put"): 1,
            ("get", "get"): 3,
            ("list", "put"): 1,
            ("delete", "delete"): 1,
        }
        assert served["PUT"] == 2 + 3, "single puts and parts"
        assert served["POST"] == 2, "multipart create and complete"
        assert served["GET"] == 3 + 2, "ranges and HEADs"
        assert served["LIST"] == 1
        assert served["DELETE"] == 1
        transferred = dict(telemetry.counters("ponor_object_store_bytes_total"))
        assert transferred == {("read",): 10 + 100, ("write",): 2 * 1000 + 2 * (MULTIPART_BYTES_MIN + 1)}


class TestOutage:
    async def test_calls_survive_a_restart_of_the_server(
        self, server: SeaweedServer, store: S3ObjectStore
    ) -> None:
        retries = Retries(clock=SystemClock(), randomness=SystemRandomness(), telemetry=Telemetry())
        retrying = PolicyObjectStore(store, [retries])
        await retrying.put("1", [b"before"])
        server.stop()
        writing = asyncio.create_task(retrying.put("2", [b"during"]))
        reading = asyncio.create_task(retrying.get("1", 0, 6))
        await asyncio.to_thread(server.start)
        await writing
        assert await reading == b"before"
        assert await retrying.get("2", 0, 6) == b"during"
