"""A consumer group's offset that only rises: committed by way of whoever coordinates the group now, and asked for in between.

What lives here: one client, its coordinator and its patience. The offsets topic moves and fails over like any other; what was acknowledged must be what its last coordinator knows at the end. In between
an answer may be old, of a coordinator that was replaced and was not told yet, but never of the future.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from ponor_kafka.errors import ErrorCode
from ponor_kafka.messages.find_coordinator import FindCoordinatorRequest, FindCoordinatorResponse
from ponor_kafka.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
)
from ponor_kafka.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestTopic,
    OffsetFetchResponse,
)
from ponor_runtime.network import ConnectionClosedError
from ponor_runtime.runtime import Runtime

from ponor_cluster_simulation.workload.kafka_client import KafkaClient

REQUEST_TIMEOUT_S: Final = 4.0
RETRIABLE: Final = frozenset(
    {
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.REQUEST_TIMED_OUT,
        ErrorCode.KAFKA_STORAGE_ERROR,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    }
)


class Committer:
    """See the module's docstring. Its process never dies.

    Attributes:
        group: its name.
        acknowledged: the newest offset whose commit was acknowledged; -1: none.
        commits: how many were acknowledged, and `coordinators` how often another broker coordinated than before.
    """

    def __init__(self, group: str, topic: str, *, bootstrap: Sequence[str], pause_s_max: float) -> None:
        self.group = group
        self._topic = topic
        self._bootstrap = tuple(bootstrap)
        self._pause_s_max = pause_s_max
        self._sent = 0
        self.acknowledged = -1
        self._node = -1
        self.commits = 0
        self.coordinators = 0
        self.stop = False
        self.is_finished = False

    async def run(self, runtime: Runtime) -> None:
        """Until stopped and answered."""
        while not self.is_finished:
            try:
                address = await self._coordinator(runtime)
                if address is not None:
                    client = await KafkaClient.connect(runtime, address, self.group)
                    try:
                        await self._converse(runtime, client)
                    finally:
                        await client.close()
            except ConnectionClosedError:
                pass
            await runtime.clock.sleep(runtime.randomness.uniform(0.02, 0.1))

    async def _coordinator(self, runtime: Runtime) -> str | None:
        """Where any broker says that the group is coordinated."""
        address = self._bootstrap[runtime.randomness.below(len(self._bootstrap))]
        client = await KafkaClient.connect(runtime, address, self.group)
        try:
            request = FindCoordinatorRequest(key=self.group)
            found = await client.ask(request, 3, FindCoordinatorResponse, timeout_s=REQUEST_TIMEOUT_S)
        finally:
            await client.close()
        if found.error_code != ErrorCode.NONE:
            assert found.error_code in RETRIABLE, ErrorCode(found.error_code)
            return None
        self.coordinators += self._node not in {-1, found.node_id}
        self._node = found.node_id
        return f"{found.host}:{found.port}"

    async def _converse(self, runtime: Runtime, client: KafkaClient) -> None:
        """Until the broker coordinates the group no more."""
        while not self.is_finished:
            is_known = self.acknowledged == self._sent
            if is_known and (self.stop or runtime.randomness.below(3) == 0):
                code = await self._fetch(client)
            else:
                code = await self._commit(client)
            if code is not ErrorCode.NONE:
                assert code in RETRIABLE, code.name
                return
            await runtime.clock.sleep(runtime.randomness.uniform(0.01, self._pause_s_max))

    async def _commit(self, client: KafkaClient) -> ErrorCode:
        """The next offset, or the same again if nobody said that it was taken."""
        if self.acknowledged == self._sent:
            self._sent += 1
        row = OffsetCommitRequestPartition(0, self._sent, committed_metadata=None)
        topic = OffsetCommitRequestTopic(self._topic, partitions=[row])
        request = OffsetCommitRequest(group_id=self.group, topics=[topic])
        response = await client.ask(request, 7, OffsetCommitResponse, timeout_s=REQUEST_TIMEOUT_S)
        code = ErrorCode(response.topics[0].partitions[0].error_code)
        if code is ErrorCode.NONE:
            self.acknowledged = self._sent
            self.commits += 1
        return code

    async def _fetch(self, client: KafkaClient) -> ErrorCode:
        topic = OffsetFetchRequestTopic(self._topic, [0])
        request = OffsetFetchRequest(group_id=self.group, topics=[topic])
        response = await client.ask(request, 5, OffsetFetchResponse, timeout_s=REQUEST_TIMEOUT_S)
        if response.error_code != ErrorCode.NONE:
            return ErrorCode(response.error_code)
        row = response.topics[0].partitions[0]
        if row.error_code != ErrorCode.NONE:
            return ErrorCode(row.error_code)
        found = row.committed_offset
        assert found <= self._sent, f"group {self.group} is at {found}, and {self._sent} was sent last"
        if self.stop:
            assert found == self.acknowledged, (
                f"group {self.group} is at {found}, and {self.acknowledged} was acknowledged"
            )
            self.is_finished = True
        return ErrorCode.NONE
