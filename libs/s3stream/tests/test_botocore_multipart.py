"""The aiobotocore stores against a real S3 server: conformance, and their own behaviour."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import pytest
from aiobotocore.session import get_session
from ponor_runtime.object_store import (
    ObjectStoreRefusedError,
    ObjectStoreUnavailableError,
)
from ponor_runtime.system import SystemClock
from ponor_runtime.telemetry import Telemetry
from s3stream.stores import botocore_client
from s3stream.stores.botocore_client import BotocoreBucket
from s3stream.stores.botocore_multipart import BotocoreMultipartStore
from s3stream.stores.metered import Meter
from s3stream.stores.policy import PART_OPERATIONS, PolicyMultipartStore
from s3stream.stores.s3 import S3ObjectStore
from s3stream.stores.s3_location import parse_s3_location

from libs.s3stream.tests import multipart_conformance
from libs.s3stream.tests.store_rig import MemoryObjectStore
from tests.integration.seaweed_server import SeaweedServer

pytestmark = pytest.mark.s3


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SeaweedServer]:
    with SeaweedServer(tmp_path_factory.mktemp("seaweed")) as started:
        yield started


@pytest.fixture(scope="module", autouse=True)
def one_session() -> Iterator[None]:
    """Share a session, because loading S3's service model takes longer than a test. Each test has
    its own clients.
    """
    session = get_session()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(botocore_client, "get_session", lambda: session)
        yield


@pytest.fixture
async def bucket(server: SeaweedServer, request: pytest.FixtureRequest) -> AsyncIterator[BotocoreBucket]:
    name = "".join(letter if letter.isalnum() else "-" for letter in request.node.name)
    made = BotocoreBucket(parse_s3_location(server.url(f"botocore/{name}"), server.environment))
    yield made
    await made.close()


@pytest.mark.parametrize("check", multipart_conformance.CHECKS, ids=lambda check: check.__name__)
async def test_multipart_conformance(
    check: multipart_conformance.Check, bucket: BotocoreBucket, server: SeaweedServer
) -> None:
    """Use the obstore store for whole objects, so that each client reads what the other one writes."""
    objects = S3ObjectStore(parse_s3_location(bucket_url(server, bucket), server.environment))
    await check(multipart_conformance.Rig(objects, BotocoreMultipartStore(bucket)), "p")


def bucket_url(server: SeaweedServer, bucket: BotocoreBucket) -> str:
    return server.url(bucket.full_prefix("").rstrip("/"))


async def test_signed_payloads_work(server: SeaweedServer) -> None:
    location = parse_s3_location(server.url("signed") + "&unsigned_payload=false", server.environment)
    bucket = BotocoreBucket(location)
    store, parts = S3ObjectStore(location), BotocoreMultipartStore(bucket)
    upload = await parts.create_multipart("2")
    await parts.complete_multipart(upload, [await parts.upload_part(upload, 1, [b"a" * 300_000, b"end"])])
    assert await store.get_tail("2", 4) == (b"aend", 300_003)
    await bucket.close()


async def test_completions_are_counted(bucket: BotocoreBucket) -> None:
    telemetry = Telemetry()
    raw = BotocoreMultipartStore(bucket)
    meter = Meter(raw, telemetry, SystemClock(), PART_OPERATIONS)
    parts = PolicyMultipartStore(raw, [meter], MemoryObjectStore())
    upload = await parts.create_multipart("1")
    await parts.complete_multipart(upload, [await parts.upload_part(upload, 1, [b"a"])])
    counted = dict(telemetry.counters("ponor_object_store_requests_total"))
    assert {name: number for name, number in counted.items() if number} == {
        ("multipart_create", "put"): 1,
        ("multipart_part", "put"): 1,
        ("multipart_complete", "put"): 1,
    }, "the completion carries the condition, so no HEAD is sent"


class TestErrors:
    async def test_a_wrong_secret_is_refused(self, server: SeaweedServer) -> None:
        environment = {**server.environment, "AWS_SECRET_ACCESS_KEY": "wrong"}
        bucket = BotocoreBucket(parse_s3_location(server.url(), environment))
        with pytest.raises(ObjectStoreRefusedError, match="check the credentials"):
            await BotocoreMultipartStore(bucket).create_multipart("1")
        await bucket.close()

    async def test_an_absent_bucket_is_refused(self, server: SeaweedServer) -> None:
        url = server.url().replace(server.bucket, "no-such-bucket", 1)
        bucket = BotocoreBucket(parse_s3_location(url, server.environment))
        with pytest.raises(ObjectStoreRefusedError, match="create the bucket"):
            await BotocoreMultipartStore(bucket).create_multipart("1")
        await bucket.close()

    async def test_calls_succeed_after_an_outage_of_the_server(self) -> None:
        location = parse_s3_location(
            "s3://b/?endpoint=http://127.0.0.1:1", {"AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b"}
        )
        bucket = BotocoreBucket(location)
        with pytest.raises(ObjectStoreUnavailableError, match=r"127\.0\.0\.1:1"):
            await BotocoreMultipartStore(bucket).create_multipart("1")
        await bucket.close()
