"""The smallest timestamp that a partition passes to its stream: no record of the batch has a smaller one, on
either path.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Final

import pytest
from hypothesis import given
from hypothesis import strategies as st
from ponor_broker.partitions.batch_validation import BatchValidator
from ponor_broker.partitions.topics.topic_config import TopicConfig
from ponor_kafka.compression import Codec
from ponor_kafka.plain_produce import walk_plain_batch
from ponor_kafka.record_batch import BatchView
from ponor_kafka.record_builder import NewRecord, build_batch
from ponor_kafka.record_rules import INT64_MIN

from services.broker.tests.partition_rig import PartitionRig, batch

NOW: Final = 1_700_000_000_000
MIB: Final = 1 << 20
VALIDATOR: Final = BatchValidator(decompressed_batch_bytes_max=8 * MIB)
CONFIGS: Final = {
    "CreateTime": TopicConfig(),
    "LogAppendTime": TopicConfig(is_log_append_time=True),
    "recompressed": TopicConfig(compression="lz4"),
    "recompressed, LogAppendTime": TopicConfig(compression="gzip", is_log_append_time=True),
}
timestamps = st.one_of(
    st.integers(NOW - 50, NOW + 50), st.just(-1), st.integers(-50, 50), st.integers(-NOW, NOW)
)


@pytest.mark.parametrize("name", CONFIGS)
@given(
    times=st.lists(timestamps, min_size=1, max_size=6),
    codec=st.sampled_from([Codec.NONE, Codec.LZ4, Codec.ZSTD]),
    claims_one_time=st.booleans(),
)
def test_the_smallest_timestamp_is_above_no_record(
    name: str, times: list[int], codec: Codec, claims_one_time: bool
) -> None:
    """Out of order, without a time, before 1970; a producer that claims one time for all records is not
    believed, and nothing is known.
    """
    config = CONFIGS[name]
    claims_one_time = claims_one_time and not config.is_log_append_time
    sent = build_batch(
        [NewRecord(time, b"key", b"value") for time in times],
        codec=codec,
        log_append_time_ms=NOW - 5 if claims_one_time else None,
    )
    stored, bound = VALIDATOR.validate(memoryview(sent), 9, config, NOW)
    read = [record.timestamp for record in stored.records(MIB)]
    assert read == ([NOW] * len(times) if config.is_log_append_time else times)
    assert bound == min(read)


@given(st.lists(timestamps, min_size=1, max_size=6).filter(lambda times: max(times) >= -1))
def test_the_fast_path_computes_the_same_timestamp(times: list[int]) -> None:
    sent = build_batch([NewRecord(time, b"key", b"value") for time in times])
    found = walk_plain_batch(bytearray(sent), 0, len(sent))
    assert found is not None
    assert found[:2] == (max(times), min(times))


async def test_the_stream_gets_the_smallest_timestamp_of_clients_batches() -> None:
    rig = PartitionRig()
    partition = await rig.open()
    partition.append(batch(3, timestamp=7), 0, lambda _: None, min_timestamp=7)
    frame = bytearray(batch(3, timestamp=20).view)
    plain = SimpleNamespace(
        position=0,
        size_bytes=len(frame),
        count=3,
        max_timestamp=22,
        min_timestamp=20,
        producer=None,
        settled=lambda _: None,
    )
    partition.append_plain(frame, plain, 0)
    partition.append_batch(bytearray(batch(2, timestamp=9).view))
    found = [(each.max_timestamp, each.min_timestamp) for each, _ in rig.stream("log").waiting]
    assert found == [(9, 7), (22, 20), (10, INT64_MIN)]
    for each, _ in rig.stream("log").waiting:
        assert BatchView(memoryview(bytes(each.payload))).max_timestamp == each.max_timestamp
