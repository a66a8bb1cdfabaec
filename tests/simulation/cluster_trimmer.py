"""A client of a topic with short retention: it writes, deletes from the front, and records the log starts.

The log start never goes back, no record at or above it is lost, and no record below it is readable.
"""

from __future__ import annotations

from typing import Final

from ponor_cluster_simulation.cluster.sim_cluster import KAFKA_ADDRESS
from ponor_cluster_simulation.workload.kafka_client import KafkaClient
from ponor_kafka.errors import ErrorCode
from ponor_kafka.messages.create_topics import (
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
    CreateTopicsResponse,
)
from ponor_kafka.messages.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteRecordsTopic,
)
from ponor_kafka.messages.fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic
from ponor_kafka.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
)
from ponor_kafka.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from ponor_kafka.record_batch import split_batches
from ponor_kafka.record_builder import build_batch
from ponor_runtime.network import ConnectionClosedError
from ponor_runtime.runtime import Runtime

TOPIC: Final = "window"
RETENTION_MS: Final = 3_000
REQUEST_TIMEOUT_S: Final = 5.0
RECORD_BYTES_MAX: Final = 1 << 20
EARLIEST: Final = -2
RETRIABLE: Final = frozenset(
    {
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.KAFKA_STORAGE_ERROR,
        ErrorCode.REQUEST_TIMED_OUT,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.LEADER_NOT_AVAILABLE,
    }
)


class Trimmer:
    """The client. Its process never crashes.

    Attributes:
        start_offset: the highest log start received.
        deletions: acknowledged DeleteRecords requests.
        retained: how often retention alone advanced the start.
    """

    def __init__(self) -> None:
        self.start_offset = 0
        self.end_offset = 0
        self.deletions = 0
        self.retained = 0
        self.reads = 0
        self.stop = False
        self.is_finished = False
        self._values: dict[int, bytes] = {}
        self._number = 0

    async def run(self, runtime: Runtime) -> None:
        """Run until stopped, and then read the whole log."""
        while not self.is_finished:
            try:
                client = await KafkaClient.connect(runtime, KAFKA_ADDRESS, "trimmer")
            except ConnectionClosedError:
                await runtime.clock.sleep(0.05)
                continue
            try:
                await self._create(client)
                while not self.is_finished:
                    await self._step(runtime, client)
            except ConnectionClosedError:
                pass
            finally:
                await client.close()

    async def _create(self, client: KafkaClient) -> None:
        configs = [CreatableTopicConfig("retention.ms", str(RETENTION_MS))]
        topic = CreatableTopic(TOPIC, num_partitions=1, replication_factor=1, configs=configs)
        request = CreateTopicsRequest(topics=[topic], timeout_ms=3_000)
        response = await client.ask(request, 5, CreateTopicsResponse, timeout_s=REQUEST_TIMEOUT_S)
        code = ErrorCode(response.topics[0].error_code)
        known = {ErrorCode.NONE, ErrorCode.TOPIC_ALREADY_EXISTS, ErrorCode.REQUEST_TIMED_OUT}
        assert code in known, code.name

    async def _step(self, runtime: Runtime, client: KafkaClient) -> None:
        randomness = runtime.randomness
        if self.stop:
            self.is_finished = await self._ask_start(client) and await self._read(client, self.start_offset)
        elif (chance := randomness.below(10)) < 5:
            await self._produce(client, runtime.clock.wall_ms(), randomness.below(3) + 1)
        elif chance < 7:
            await self._ask_start(client)
        elif chance == 7:
            await self._delete(client, self.start_offset + randomness.below(8))
        else:
            await self._read(client, self.start_offset)
        await runtime.clock.sleep(randomness.uniform(0.005, 0.15))

    async def _produce(self, client: KafkaClient, now_ms: int, count: int) -> None:
        """Produce without idempotence; an unacknowledged record may be in the log."""
        values = [b"%d" % (self._number + index) * 300 for index in range(count)]
        self._number += count
        batch = memoryview(bytes(build_batch([(now_ms, None, value) for value in values])))
        topic = TopicProduceData(TOPIC, partition_data=[PartitionProduceData(0, batch)])
        request = ProduceRequest(acks=-1, timeout_ms=2_000, topic_data=[topic])
        response = await client.ask(request, 9, ProduceResponse, timeout_s=REQUEST_TIMEOUT_S)
        row = response.responses[0].partition_responses[0]
        if self._is_fine(row.error_code):
            assert row.base_offset >= self.end_offset, f"{row.base_offset} was assigned before"
            self._values.update(zip(range(row.base_offset, row.base_offset + count), values, strict=True))
            self.end_offset = row.base_offset + count

    async def _ask_start(self, client: KafkaClient) -> bool:
        topic = ListOffsetsTopic(TOPIC, partitions=[ListOffsetsPartition(0, timestamp=EARLIEST)])
        request = ListOffsetsRequest(replica_id=-1, topics=[topic])
        response = await client.ask(request, 5, ListOffsetsResponse, timeout_s=REQUEST_TIMEOUT_S)
        row = response.topics[0].partitions[0]
        if not self._is_fine(row.error_code):
            return False
        self._told_of_start(row.offset)
        return True

    def _told_of_start(self, offset: int) -> None:
        assert offset >= self.start_offset, f"the log start fell from {self.start_offset} to {offset}"
        self.retained += offset > self.start_offset
        self.start_offset = offset

    async def _delete(self, client: KafkaClient, offset: int) -> None:
        topic = DeleteRecordsTopic(TOPIC, partitions=[DeleteRecordsPartition(0, offset)])
        request = DeleteRecordsRequest(topics=[topic], timeout_ms=3_000)
        response = await client.ask(request, 1, DeleteRecordsResponse, timeout_s=REQUEST_TIMEOUT_S)
        row = response.topics[0].partitions[0]
        if row.error_code == ErrorCode.OFFSET_OUT_OF_RANGE:
            assert offset > self.end_offset, f"{offset} is below {self.end_offset}, which is acknowledged"
        elif self._is_fine(row.error_code):
            assert row.low_watermark >= offset, f"{offset} was requested, {row.low_watermark} is the start"
            assert row.low_watermark >= self.start_offset, "the log start fell"
            self.start_offset = row.low_watermark
            self.deletions += 1

    async def _read(self, client: KafkaClient, offset: int) -> bool:
        """Read from the log start; the whole log after the stop. Return whether it reached the
        acknowledged end.
        """
        while True:
            partition = FetchPartition(0, fetch_offset=offset, partition_max_bytes=8_000)
            request = FetchRequest(
                max_wait_ms=0,
                min_bytes=0,
                max_bytes=8_000,
                topics=[FetchTopic(TOPIC, partitions=[partition])],
            )
            response = await client.ask(request, 11, FetchResponse, timeout_s=REQUEST_TIMEOUT_S)
            row = response.responses[0].partitions[0]
            if row.error_code == ErrorCode.OFFSET_OUT_OF_RANGE:
                return False  # the start has advanced: request it again
            if not self._is_fine(row.error_code):
                return False
            self._told_of_start(row.log_start_offset)
            self.reads += 1
            assert isinstance(row.records, memoryview)
            offset = self._compare(row.records, offset)
            if not self.stop or offset >= self.end_offset:
                return offset >= self.end_offset

    def _compare(self, data: memoryview, offset: int) -> int:
        for batch in split_batches(data):
            batch.check_crc()
            assert batch.base_offset <= offset, (
                f"no record is at {offset}, the next is at {batch.base_offset}"
            )
            for record in batch.records(RECORD_BYTES_MAX):
                expected = self._values.get(record.offset, record.value)
                assert record.value == expected, f"another record is at {record.offset}"
            offset = batch.next_offset
        assert data or offset >= self.end_offset, f"lost: {offset} of {self.end_offset} are in the log"
        return offset

    def _is_fine(self, code: int) -> bool:
        assert code == ErrorCode.NONE or code in RETRIABLE, ErrorCode(code).name
        return code == ErrorCode.NONE
