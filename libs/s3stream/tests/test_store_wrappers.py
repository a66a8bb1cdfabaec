"""Tests of the policies around a store, and of opening a store by its URL."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from ponor_runtime.object_store import (
    ObjectAlreadyExistsError,
    ObjectNotFoundError,
    ObjectStoreRefusedError,
    ObjectStoreUnavailableError,
)
from ponor_runtime.runtime import Runtime
from ponor_runtime.system_disk import SystemDisk
from ponor_runtime.telemetry import Telemetry
from s3stream.stores.congestion import ConcurrencyLimit
from s3stream.stores.open_store import open_object_store, wrap_object_store
from s3stream.stores.policy import PolicyObjectStore
from s3stream.stores.retrying import RetrySettings
from s3stream.stores.s3_location import parse_s3_location

from libs.s3stream.tests import object_store_conformance as conformance
from libs.s3stream.tests import store_rig as rig

AWS = {"AWS_ACCESS_KEY_ID": "id", "AWS_SECRET_ACCESS_KEY": "secret"}


class Stack:
    """A store in memory with retries, limit and meter."""

    def __init__(self, **settings: int) -> None:
        self.raw = rig.MemoryObjectStore()
        self.clock = rig.InstantClock()
        self.telemetry = Telemetry()
        self.runtime = Runtime(
            clock=self.clock,
            randomness=rig.MiddleRandomness(),
            disk=SystemDisk(),
            network=None,  # type: ignore[arg-type]
            telemetry=self.telemetry,
        )
        self.store = wrap_object_store(self.raw, runtime=self.runtime, retry=RetrySettings(**settings))

    def counted(self, name: str) -> dict[tuple[str, ...], int]:
        return {values: number for values, number in self.telemetry.counters(name) if number}


@pytest.fixture
def stack() -> Stack:
    return Stack()


@pytest.mark.parametrize("check", conformance.CHECKS, ids=lambda check: check.__name__)
@pytest.mark.parametrize("wrapped", [False, True], ids=["memory", "wrapped"])
async def test_conformance(check: conformance.Check, wrapped: bool, stack: Stack) -> None:
    await check(stack.store if wrapped else stack.raw, "p")


class TestRetries:
    async def test_every_attempt_is_metered(self, stack: Stack) -> None:
        stack.raw.fail("put", rig.Failure(), rig.Failure())
        stack.raw.fail("get", rig.Failure())
        await stack.store.put("1", [b"abc"])
        assert await stack.store.get("1", 0, 3) == b"abc"
        assert stack.counted("ponor_object_store_requests_total") == {("put", "put"): 3, ("get", "get"): 2}
        assert stack.counted("ponor_object_store_bytes_total") == {("write",): 9, ("read",): 3}
        assert stack.counted("ponor_object_store_retries_total") == {("put",): 2, ("get",): 1}
        assert stack.counted("ponor_object_store_errors_total") == {
            ("put", "ObjectStoreUnavailableError"): 2,
            ("get", "ObjectStoreUnavailableError"): 1,
        }

    async def test_pauses_double_up_to_their_limit(self) -> None:
        stack = Stack(backoff_ms_first=100, backoff_ms_max=1000)
        stack.raw.fail("get_tail", *[rig.Failure() for _ in range(6)])
        stack.raw.objects["1"] = b"abc"
        assert await stack.store.get_tail("1", 2) == (b"bc", 3)
        assert stack.clock.slept == [0.075, 0.15, 0.3, 0.6, 0.75, 0.75]

    async def test_attempts_are_limited(self) -> None:
        stack = Stack(attempts_max=4)
        stack.raw.fail("get", *[rig.Failure() for _ in range(10)])
        with pytest.raises(ObjectStoreUnavailableError, match="503"):
            await stack.store.get("1", 0, 1)
        assert len(stack.raw.calls) == 4

    async def test_the_total_time_is_limited(self) -> None:
        stack = Stack(deadline_ms=10_000, attempts_max=1000, backoff_ms_first=1000, backoff_ms_max=1000)
        stack.raw.fail("delete", *[rig.Failure() for _ in range(100)])
        with pytest.raises(ObjectStoreUnavailableError):
            await stack.store.delete(["1"])
        assert stack.clock.now_ns < 10_000 * 1_000_000

    @pytest.mark.parametrize(
        "error", [ObjectNotFoundError("1"), ObjectStoreRefusedError("403"), ObjectAlreadyExistsError("1")]
    )
    async def test_permanent_failures_are_not_retried(self, stack: Stack, error: Exception) -> None:
        stack.raw.fail("put", rig.Failure(error))
        with pytest.raises(type(error)):
            await stack.store.put("1", [b"abc"])
        assert len(stack.raw.calls) == 1

    async def test_a_truncated_tail_is_fetched_again(self, stack: Stack) -> None:
        stack.raw.objects["1"] = b"abcdef"
        answers = iter([b"de", b"def"])
        stack.raw.change = lambda _key, _data: next(answers)
        assert await stack.store.get_tail("1", 3) == (b"def", 6)


class TestAmbiguousPuts:
    async def test_a_put_with_a_lost_answer_recognises_its_object(self, stack: Stack) -> None:
        stack.raw.fail("put", rig.Failure(applied=True))
        await stack.store.put("1", [b"abc", b"def"])
        assert stack.raw.objects == {"1": b"abcdef"}
        assert [call[0] for call in stack.raw.calls] == ["put", "put", "get_tail"]

    @pytest.mark.parametrize("stranger", [b"abcdeX", b"abcdefg", b"", b"abcde"])
    async def test_an_object_of_another_writer_is_not_mistaken_for_the_own(
        self, stack: Stack, stranger: bytes
    ) -> None:
        stack.raw.fail("put", rig.Failure())
        stack.raw.objects["1"] = stranger
        with pytest.raises(ObjectAlreadyExistsError):
            await stack.store.put("1", [b"abc", b"def"])
        assert stack.raw.objects == {"1": stranger}

    async def test_a_first_attempt_never_claims_an_existing_object(self, stack: Stack) -> None:
        """The first attempt did not fail before, so another writer must have put the same bytes."""
        stack.raw.objects["1"] = b"abcdef"
        with pytest.raises(ObjectAlreadyExistsError):
            await stack.store.put("1", [b"abcdef"])

    async def test_large_objects_are_compared_by_their_tails(self, stack: Stack) -> None:
        body = [b"x" * 100_000, b"y" * 30_000, b"footer"]
        stack.raw.fail("put", rig.Failure(applied=True), rig.Failure())
        stack.raw.fail("get_tail", rig.Failure())
        await stack.store.put("1", body)
        assert stack.raw.objects["1"] == b"".join(body)


class TestListings:
    async def test_an_interrupted_listing_continues_where_it_stopped(self, stack: Stack) -> None:
        for number in (3, 1, 2, 5, 4):
            stack.raw.objects[f"k/{number}"] = b"x" * number
        stack.raw.fail(
            "list", rig.Failure(after_items=2), rig.Failure(after_items=1), rig.Failure(after_items=4)
        )
        sizes = [info.size_bytes async for info in stack.store.list("k/")]
        assert sizes == [3, 1, 2, 5, 4]

    async def test_progress_of_a_listing_resets_the_limits(self) -> None:
        stack = Stack(attempts_max=2)
        stack.raw.objects.update({f"k/{number}": b"x" for number in range(10)})
        stack.raw.fail("list", *[rig.Failure(after_items=number) for number in range(1, 10)])
        assert len([info async for info in stack.store.list("k/")]) == 10

    async def test_a_listing_whose_last_item_was_deleted_fails(self, stack: Stack) -> None:
        stack.raw.objects.update({f"k/{number}": b"x" for number in range(3)})
        stack.raw.fail("list", rig.Failure(after_items=2))
        with pytest.raises(ObjectStoreUnavailableError):
            async for info in stack.store.list("k/"):
                stack.raw.objects.pop(info.key)

    async def test_a_page_of_a_listing_is_metered_as_a_call(self, stack: Stack) -> None:
        stack.raw.objects.update({f"k/{number}": b"x" for number in range(2001)})
        assert len([info async for info in stack.store.list("k/")]) == 2001
        assert [info async for info in stack.store.list("none/")] == []
        assert stack.counted("ponor_object_store_requests_total") == {("list", "put"): 3 + 1}

    async def test_a_batch_of_deletions_is_metered_as_a_call(self, stack: Stack) -> None:
        await stack.store.delete([str(number) for number in range(1001)])
        await stack.store.delete([])
        assert stack.counted("ponor_object_store_requests_total") == {("delete", "delete"): 2}


async def test_concurrent_calls_are_limited(stack: Stack) -> None:
    limit = ConcurrencyLimit(reads_in_flight_max=3, writes_in_flight_max=2)
    limited = PolicyObjectStore(stack.raw, [limit])
    stack.raw.gate.clear()
    reads = [asyncio.create_task(limited.get("1", 0, 1)) for _ in range(10)]
    writes = [asyncio.create_task(limited.put(f"w{number}", [b"x"])) for number in range(10)]
    for _ in range(5):
        await asyncio.sleep(0)
    assert [call[0] for call in stack.raw.calls].count("get") == 3
    assert [call[0] for call in stack.raw.calls].count("put") == 2
    stack.raw.gate.set()
    await asyncio.gather(*writes)
    assert all(
        isinstance(result, ObjectNotFoundError)
        for result in await asyncio.gather(*reads, return_exceptions=True)
    )


class TestUrls:
    async def test_a_file_url_opens_a_directory_store(self, stack: Stack, tmp_path: Path) -> None:
        directory = tmp_path / "my 100%25 #1 objects?"
        store = await open_object_store(f"file://{directory}", runtime=stack.runtime, environment={})
        assert isinstance(store, PolicyObjectStore)
        await store.put("84/ns/1", [b"x"])
        await store.close()
        assert (directory / "objects" / "84" / "ns" / "1.object").read_bytes() == b"x"
        assert stack.counted("ponor_object_store_requests_total") == {("put", "put"): 1}

    @pytest.mark.parametrize(
        "url", ["file://relative/dir", "file:///", "file:///a/../b", "gs://bucket", "bucket", ""]
    )
    async def test_other_urls_are_refused_with_the_expected_forms(self, stack: Stack, url: str) -> None:
        with pytest.raises(ValueError, match="is expected"):
            await open_object_store(url, runtime=stack.runtime, environment={})

    def test_an_s3_url_is_parsed(self) -> None:
        location = parse_s3_location("s3://b/p/q/?endpoint=http://127.0.0.1:9/&region=eu-west-1", AWS)
        assert (location.bucket, location.prefix, location.endpoint) == ("b", "p/q", "http://127.0.0.1:9")
        assert (location.region, location.allow_http, location.unsigned_payload) == ("eu-west-1", True, True)
        assert (location.access_key_id, location.secret_access_key) == ("id", "secret")

    def test_secrets_are_not_in_the_repr(self) -> None:
        location = parse_s3_location(
            "s3://b?endpoint=https://s3.example", {**AWS, "AWS_SESSION_TOKEN": "token"}
        )
        assert "secret" not in repr(location).replace("secret_access_key", "")
        assert "token" not in repr(location)
        assert str(location) == "s3://b/ at https://s3.example"

    def test_the_url_takes_precedence_over_the_environment(self) -> None:
        environment = {"AWS_ENDPOINT_URL": "http://a:1", "AWS_DEFAULT_REGION": "r1"}
        assert parse_s3_location("s3://b", environment).endpoint == "http://a:1"
        assert parse_s3_location("s3://b", environment).region == "r1"
        environment |= {"AWS_ENDPOINT_URL_S3": "https://b:2", "AWS_REGION": "r2"}
        assert parse_s3_location("s3://b", environment).endpoint == "https://b:2"
        assert parse_s3_location("s3://b", environment).region == "r2"
        assert (
            parse_s3_location("s3://b?endpoint=https://c:3&region=r3", environment).endpoint == "https://c:3"
        )

    @pytest.mark.parametrize(
        ("url", "words"),
        [
            ("s3://", "s3://BUCKET"),
            ("s3:///prefix", "s3://BUCKET"),
            ("s3://key:secret@b", "s3://BUCKET"),
            ("s3://b?endpoints=x", "'endpoints' is unknown"),
            ("s3://b?region=a&region=b", "repeated"),
            ("s3://b?allow_http=perhaps", "true or false"),
            ("s3://b?endpoint=http://x&allow_http=false", "use https"),
            ("s3://b?endpoint=x:1", "must begin with"),
        ],
    )
    def test_invalid_s3_urls_are_named(self, url: str, words: str) -> None:
        with pytest.raises(ValueError, match=words):
            parse_s3_location(url, AWS)
