"""A consumer group with one rising offset, which it commits to its current coordinator. Between commits it
fetches the offset.

The partitions of the offsets topic move and fail over like all others. At the end the coordinator must return
the last acknowledged offset. Before that, an answer of a replaced coordinator may be old, but never too new.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
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
    """The group's only member. Its process never crashes.

    Attributes:
        group: its name.
        acknowledged: the newest acknowledged offset; -1 for none.
        commits: number of acknowledged commits; `coordinators`: number of changes of the
            coordinator.
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
        """Commit until `stop` is set and the last request is answered."""
        while not self.is_finished:
            with suppress(ConnectionClosedError):
                address = await self._coordinator(runtime)
                if address is not None:
                    async with KafkaClient.connected(runtime, address, self.group) as client:
                        await self._converse(runtime, client)
            await runtime.clock.sleep(runtime.randomness.uniform(0.02, 0.1))

    async def _coordinator(self, runtime: Runtime) -> str | None:
        """Find the coordinator through any broker."""
        address = self._bootstrap[runtime.randomness.below(len(self._bootstrap))]
        async with KafkaClient.connected(runtime, address, self.group) as client:
            request = FindCoordinatorRequest(key=self.group)
            found = await client.ask(request, 3, FindCoordinatorResponse, timeout_s=REQUEST_TIMEOUT_S)
        if found.error_code != ErrorCode.NONE:
            assert found.error_code in RETRIABLE, ErrorCode(found.error_code)
            return None
        self.coordinators += self._node not in {-1, found.node_id}
        self._node = found.node_id
        return f"{found.host}:{found.port}"

    async def _converse(self, runtime: Runtime, client: KafkaClient) -> None:
        """Use a broker until it no longer coordinates the group."""
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
        """Commit the next offset, or repeat a commit that was not acknowledged."""
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
        assert found <= self._sent, (
            f"group {self.group} has the offset {found}, but the last commit was of {self._sent}"
        )
        if self.stop:
            assert found == self.acknowledged, (
                f"group {self.group} has the offset {found}, but {self.acknowledged} was acknowledged"
            )
            self.is_finished = True
        return ErrorCode.NONE
