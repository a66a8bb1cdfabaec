"""A consumer that trusts nothing: it follows all partitions, goes back now and then, and compares everything with what anybody ever read.

What lives here: fetching, and what must hold of every answer.
"""

from __future__ import annotations

from typing import Final

from ponor_kafka.errors import ErrorCode
from ponor_kafka.messages.fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic
from ponor_kafka.messages.fetch import PartitionData as FetchedPartition
from ponor_kafka.record_batch import split_batches
from ponor_runtime.network import ConnectionClosedError
from ponor_runtime.runtime import Runtime

from ponor_simulation.cluster import KAFKA_ADDRESS
from ponor_simulation.kafka_client import KafkaClient
from ponor_simulation.workload.history import ClusterHistory, Value

VERSIONS: Final = (4, 11, 12)
SESSION_VERSIONS: Final = (11, 12)
SESSION_LOST: Final = frozenset({ErrorCode.FETCH_SESSION_ID_NOT_FOUND, ErrorCode.INVALID_FETCH_SESSION_EPOCH})
"""The broker restarted, or an answer was lost with its connection: the next fetch is a full one."""
REQUEST_TIMEOUT_S: Final = 30.0
RECORD_BYTES_MAX: Final = 1 << 20
RETRIABLE: Final = frozenset(
    {
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.KAFKA_STORAGE_ERROR,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.LEADER_NOT_AVAILABLE,
    }
)


class Consumer:
    """See the module's docstring. Its process never dies.

    Attributes:
        logs: what this consumer read, by partition, from offset 0 to its position.
        high_watermarks: the largest it was told, by partition; none after it may be lower.
    """

    def __init__(
        self, name: str, topic: str, partitions: int, history: ClusterHistory, *, pause_s_max: float = 0.02
    ) -> None:
        self.name = name
        self._pause_s_max = pause_s_max
        self._topic = topic
        self._history = history
        self.logs: list[list[Value]] = [[] for _ in range(partitions)]
        self.high_watermarks = [-1] * partitions
        self.errors = 0
        self.stop = False
        self._session_id = 0
        self._session_epoch = -1
        self._told_offsets: dict[int, int] = {}
        """What the broker remembers of us, by partition."""

    async def run(self, runtime: Runtime) -> None:
        """Read until stopped."""
        while not self.stop:
            try:
                client = await KafkaClient.connect(runtime, KAFKA_ADDRESS, self.name)
            except ConnectionClosedError:
                await runtime.clock.sleep(runtime.randomness.uniform(0.01, 0.1))
                continue
            try:
                while not self.stop:
                    await self._fetch(runtime, client)
            except ConnectionClosedError:
                pass
            finally:
                await client.close()

    @property
    def is_at_end(self) -> bool:
        """Whether it has read all that it was told of."""
        return self._is_told and list(map(len, self.logs)) == self.high_watermarks

    @property
    def _is_told(self) -> bool:
        return all(end >= 0 for end in self.high_watermarks)

    async def _fetch(self, runtime: Runtime, client: KafkaClient) -> None:
        randomness = runtime.randomness
        if randomness.below(60) == 0:
            log = self.logs[randomness.below(len(self.logs))]
            del log[randomness.below(len(log) + 1) :]
        asked = [len(log) for log in self.logs]
        version = VERSIONS[randomness.below(len(VERSIONS))]
        if self._session_id:
            version = SESSION_VERSIONS[randomness.below(len(SESSION_VERSIONS))]
        if not self._session_id:
            self._told_offsets = {}
            self._session_epoch = 0 if version in SESSION_VERSIONS and randomness.below(2) == 0 else -1
        changed = [
            (partition, offset)
            for partition, offset in enumerate(asked)
            if self._told_offsets.get(partition) != offset
        ]
        request = FetchRequest(
            max_wait_ms=(0, 50, 300)[randomness.below(3)],
            min_bytes=(1, 1, 5_000)[randomness.below(3)],
            max_bytes=(1, 3_000, 1 << 20)[randomness.below(3)],
            session_id=self._session_id,
            session_epoch=self._session_epoch,
            topics=[
                FetchTopic(
                    self._topic,
                    partitions=[
                        FetchPartition(
                            partition=partition,
                            fetch_offset=offset,
                            partition_max_bytes=(1, 4_000, 1 << 20)[randomness.below(3)],
                        )
                        for partition, offset in changed
                    ],
                )
            ],
        )
        response = await client.ask(request, version, FetchResponse, timeout_s=REQUEST_TIMEOUT_S)
        self._session_id = response.session_id
        self._session_epoch += 1
        self._told_offsets.update(changed)
        if response.error_code in SESSION_LOST:
            return
        assert response.error_code == ErrorCode.NONE
        for topic in response.responses:
            for answer in topic.partitions:
                self._take(answer, asked[answer.partition_index])
        await runtime.clock.sleep(randomness.uniform(0.0, self._pause_s_max))

    def _take(self, answer: FetchedPartition, asked_offset: int) -> None:
        partition = answer.partition_index
        code = ErrorCode(answer.error_code)
        if code is not ErrorCode.NONE:
            assert code in RETRIABLE, f"{self.name}: partition {partition} at {asked_offset}: {code.name}"
            self.errors += 1
            return
        known = self.high_watermarks[partition]  # -1: nothing yet
        assert answer.high_watermark >= known, (
            f"{self.name}: the high watermark of {partition} fell from {known} to {answer.high_watermark}"
        )
        self.high_watermarks[partition] = answer.high_watermark
        if answer.records:
            assert isinstance(answer.records, memoryview), "a decoded answer has slices of its frame"
            self._read(partition, asked_offset, answer.high_watermark, answer.records)

    def _read(self, partition: int, asked_offset: int, high_watermark: int, data: memoryview) -> None:
        log = self.logs[partition]
        for batch in split_batches(data):
            batch.check_crc()
            assert batch.next_offset <= high_watermark, (
                f"partition {partition}: read beyond the high watermark"
            )
            assert batch.next_offset > asked_offset, f"partition {partition}: a batch below {asked_offset}"
            for record in batch.records(RECORD_BYTES_MAX):
                assert record.value is not None
                value = Value.decode(bytes(record.value))
                self._history.see(partition, record.offset, value)
                if record.offset >= asked_offset:
                    assert record.offset == len(log), (
                        f"partition {partition}: {record.offset} after {len(log)}"
                    )
                    log.append(value)
