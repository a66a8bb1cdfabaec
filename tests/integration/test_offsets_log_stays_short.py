"""A group that commits continuously: its partition of `__consumer_offsets` is rewritten and trimmed
by a running broker, and survives restarts.
"""

from __future__ import annotations

import time
from pathlib import Path

from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from tests.integration.cluster_in_process import RunningCluster, running_cluster

SETTINGS = {"offsets_rewrite_log_bytes_min": "16384", "offsets_topic_partitions": "1"}
TRIM_S_MAX = 240.0


def consumer(cluster: RunningCluster, group: str) -> Consumer:
    return Consumer({"bootstrap.servers": cluster.kafka, "group.id": group, "log_level": 2})


def committed(cluster: RunningCluster, group: str) -> int:
    reader = consumer(cluster, group)
    (place,) = reader.committed([TopicPartition("t", 0)], timeout=TRIM_S_MAX)
    reader.close()
    return int(place.offset)


def log_range(cluster: RunningCluster) -> tuple[int, int]:
    reader = consumer(cluster, "looking")
    low, high = reader.get_watermark_offsets(TopicPartition("__consumer_offsets", 0), timeout=TRIM_S_MAX)
    reader.close()
    return low, high


def test_the_log_read_at_a_start_does_not_grow_with_the_number_of_commits(tmp_path: Path) -> None:
    low = 0
    for life in range(3):
        with running_cluster(tmp_path, SETTINGS) as cluster:
            if life == 0:
                admin = AdminClient({"bootstrap.servers": cluster.kafka, "log_level": 2})
                admin.create_topics([NewTopic("t", 1, 1)])["t"].result(TRIM_S_MAX)
                quiet = consumer(cluster, "quiet")
                quiet.commit(offsets=[TopicPartition("t", 0, 42, "said once")], asynchronous=False)
                quiet.close()
            busy = consumer(cluster, "busy")
            for number in range(200):
                place = TopicPartition("t", 0, life * 1_000 + number, "x" * 1_000)
                busy.commit(offsets=[place], asynchronous=False)
            deadline = time.monotonic() + TRIM_S_MAX
            while True:
                begin, end = log_range(cluster)
                if begin > low and end - begin < 100:  # its whole content is two groups
                    break
                assert time.monotonic() < deadline, f"the log is {begin} to {end}: not trimmed behind {low}"
                busy.commit(offsets=[place], asynchronous=False)  # checked after each write
                time.sleep(0.1)
            low = begin
            busy.close()
            assert committed(cluster, "busy") == life * 1_000 + 199
            assert committed(cluster, "quiet") == 42
            assert not cluster.failures
