"""DescribeQuorum and UpdateFeatures: a broker's handlers with three real controllers, in virtual time."""

from __future__ import annotations

import uuid
from collections.abc import Awaitable, Callable
from typing import TypeAlias

from ponor_broker.handlers.cluster.api_versions import FEATURE_PREFIX
from ponor_broker.handlers.cluster.describe_quorum import METADATA_TOPIC, DescribeQuorumHandler
from ponor_broker.handlers.cluster.update_features import update_features
from ponor_broker.requests.api_handler import RequestContext
from ponor_broker.requests.connection import ConnectionContext
from ponor_kafka.codec import encode
from ponor_kafka.errors import ErrorCode
from ponor_kafka.message import ZERO_UUID
from ponor_kafka.messages.describe_quorum import (
    DescribeQuorumRequest,
    DescribeQuorumRequestPartitionData,
    DescribeQuorumRequestTopicData,
    DescribeQuorumResponse,
    DescribeQuorumResponsePartitionData,
)
from ponor_kafka.messages.update_features import (
    FeatureUpdateKey,
    UpdateFeaturesRequest,
    UpdateFeaturesResponse,
)
from ponor_metadata.client.quorum_client import QuorumClient
from ponor_metadata.nouns.cluster import LATEST_LEVEL, METADATA_LEVEL
from ponor_runtime.runtime import Runtime
from ponor_simulation.process import wait_until

from services.controller.tests.quorum_rig import QuorumRig, member

ADDRESSES = ("c0:7000", "c1:7000", "c2:7000")
FEATURE = f"{FEATURE_PREFIX}{METADATA_LEVEL}"
LOG = DescribeQuorumRequest(
    [DescribeQuorumRequestTopicData(METADATA_TOPIC, [DescribeQuorumRequestPartitionData(0)])]
)
TIMEOUT_MS = 5_000


class Broker:
    """The two handlers and the quorum."""

    def __init__(self, rig: QuorumRig, runtime: Runtime) -> None:
        self.rig = rig
        quorum = QuorumClient(runtime.network, runtime.clock, ADDRESSES)
        self.clock = runtime.clock
        self._describe = DescribeQuorumHandler(quorum, runtime.clock, timeout_ms=TIMEOUT_MS)
        self._quorum = quorum

    async def describe(self, version: int = 2) -> DescribeQuorumResponse:
        """Handle a request; check that the answer can be encoded in its version."""
        answer = await self._describe.handle(LOG, _context(version))
        assert encode(answer, version)
        return answer

    async def update(
        self,
        *updates: FeatureUpdateKey,
        version: int = 2,
        validate_only: bool = False,
        timeout_ms: int = 10_000,
    ) -> UpdateFeaturesResponse:
        request = UpdateFeaturesRequest(timeout_ms, updates, validate_only)
        answer = await update_features(self._quorum, request, _context(version))
        assert encode(answer, version)
        return answer


def _context(version: int) -> RequestContext:
    return RequestContext(version, "tool", ConnectionContext("tool:1"))


Story: TypeAlias = Callable[[Broker], Awaitable[None]]


def tell(story: Story) -> None:
    """Run a story in its own process next to three controllers."""
    rig = QuorumRig(2)

    async def main(runtime: Runtime) -> None:
        await story(Broker(rig, runtime))

    broker = rig.simulation.process("broker", main)

    async def scenario() -> None:
        rig.start()
        await rig.until_led()
        broker.start()
        await wait_until(lambda: not broker.running, timeout_s=300)
        if broker.failure is not None:
            raise broker.failure

    with rig.watching():
        rig.simulation.run(scenario())


def partition(answer: DescribeQuorumResponse) -> DescribeQuorumResponsePartitionData:
    """Return the only element."""
    assert answer.error_code == ErrorCode.NONE, answer.error_message
    (topic,) = answer.topics
    (found,) = topic.partitions
    return found


def test_voters_have_directories_and_addresses_from_version_2_on() -> None:
    async def story(broker: Broker) -> None:
        leader = await broker.rig.until_led()
        for version in (0, 1, 2):
            answer = await broker.describe(version)
            seen = partition(answer)
            assert seen.leader_id == leader.driver.node.own.node_id
            assert seen.leader_epoch == leader.driver.node.term
            assert [each.replica_id for each in seen.current_voters] == [member(n).node_id for n in range(3)]
            directories = [each.replica_directory_id for each in seen.current_voters]
            ready = [uuid.UUID(broker.rig.ready[f"c{n}"]["directory_id"]).bytes for n in range(3)]
            assert directories == (ready if version == 2 else [ZERO_UUID] * 3)
            assert len(answer.nodes) == (3 if version == 2 else 0)
        (listener,) = answer.nodes[1].listeners
        assert (listener.host, listener.port) == ("c1", 7000)

    tell(story)


def test_a_lagging_voter_is_shown_as_lagging() -> None:
    async def story(broker: Broker) -> None:
        leader = await broker.rig.until_led()
        dead = next(each for each in broker.rig.processes if each is not broker.rig.process_of(leader))
        await broker.rig.until_equal()
        dead.crash()
        await broker.clock.sleep(0.7)
        await leader.control.take_snapshot()
        seen = partition(await broker.describe())
        ends = {each.replica_id: each for each in seen.current_voters}
        gone = ends[broker.rig.lives[dead.name].driver.node.own.node_id]
        own = ends[seen.leader_id]
        assert own.log_end_offset == seen.high_watermark == leader.driver.node.last_index + 1
        assert own.last_fetch_timestamp - gone.last_fetch_timestamp >= 500

    tell(story)


def test_without_a_majority_the_request_fails_in_time() -> None:
    async def story(broker: Broker) -> None:
        leader = await broker.rig.until_led()
        for process in broker.rig.processes:
            if process is not broker.rig.process_of(leader):
                process.crash()
        answer = await broker.describe()
        assert answer.error_code == ErrorCode.REQUEST_TIMED_OUT
        assert "no answer from the controllers" in (answer.error_message or "")
        refused = await broker.update(FeatureUpdateKey(FEATURE, LATEST_LEVEL), timeout_ms=500)
        assert refused.error_code == ErrorCode.REQUEST_TIMED_OUT

    tell(story)


def test_finalized_levels_succeed_and_old_versions_list_each_feature() -> None:
    async def story(broker: Broker) -> None:
        update = FeatureUpdateKey(FEATURE, LATEST_LEVEL)
        for version, features in ((0, [FEATURE]), (1, [FEATURE]), (2, [])):
            answer = await broker.update(update, version=version)
            assert answer.error_code == ErrorCode.NONE, answer.error_message
            assert [each.feature for each in answer.results] == features
        assert (await broker.update(update, validate_only=True)).error_code == ErrorCode.NONE
        assert (await broker.update()).error_code == ErrorCode.NONE, "nothing to do is no error"

    tell(story)


def test_impossible_updates_get_kafkas_error_code_and_change_nothing() -> None:
    async def story(broker: Broker) -> None:
        leader = await broker.rig.until_led()
        before = leader.driver.node.last_index
        refused = [
            (FeatureUpdateKey("metadata.version", 20), "is unknown"),
            (FeatureUpdateKey(FEATURE, 0), "can only be raised"),
            (FeatureUpdateKey(FEATURE, 1, upgrade_type=2), "can only be raised"),
            (FeatureUpdateKey(FEATURE, 1, allow_downgrade=True, upgrade_type=3), "can only be raised"),
            (FeatureUpdateKey(FEATURE, LATEST_LEVEL + 1), "upgrade the controllers first"),
            (FeatureUpdateKey(f"{FEATURE_PREFIX}colour", 1), "is unknown"),
        ]
        for update, words in refused:
            answer = await broker.update(update, version=1)
            assert answer.error_code == ErrorCode.INVALID_UPDATE_VERSION, update
            assert words in (answer.error_message or "")
            assert list(answer.results) == []
        twice = await broker.update(*[FeatureUpdateKey(FEATURE, LATEST_LEVEL)] * 2)
        assert "updates the feature" in (twice.error_message or "")
        assert leader.driver.node.last_index == before

    tell(story)
