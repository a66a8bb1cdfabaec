"""Rules for the rows of a quiescent cluster.

Each stream and key belongs to an existing partition, and the partition's leader holds the streams open. Each
object is committed, or a current process is writing it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Final

from ponor_metadata.nouns.keys import KEYS
from ponor_metadata.nouns.nodes import is_current
from ponor_metadata.nouns.objects import OBJECTS, ObjectState
from ponor_metadata.nouns.streams import PARTITION_TAG, STREAMS, TOPIC_TAG
from ponor_metadata.nouns.topics import PARTITIONS
from ponor_metadata.tables.schema import View

KEY_PREFIX: Final = "partition/"
KIND_TAG: Final = "kind"


def unexplained(view: View) -> list[str]:
    """Describe streams and keys without a partition, and streams that their leader does not hold open."""
    return [*_streams(view), *_keys(view)]


def abandoned_objects(view: View) -> list[str]:
    """Describe rows of objects that will never be committed or used again."""
    found = []
    for row in view[OBJECTS]:
        if row.state is ObjectState.PREPARED:
            if row.expires_at_ms < view.cluster_time_ms:
                found.append(f"object {row.object_id} is still prepared, but its lease has expired")
            elif not is_current(view, row.node_id, row.node_epoch):
                found.append(
                    f"object {row.object_id} is prepared for an earlier process of node {row.node_id}"
                )
        elif row.state is not ObjectState.COMMITTED:
            found.append(f"object {row.object_id} is destroyed, but its row remains")
    return found


def _streams(view: View) -> Iterator[str]:
    kinds: Counter[tuple[bytes, int, str]] = Counter()
    for row in view[STREAMS]:
        tags = row.tags
        if TOPIC_TAG not in tags:
            continue
        key = (bytes.fromhex(tags[TOPIC_TAG]), int(tags[PARTITION_TAG]))
        name = f"stream {row.stream_id} ({tags.get(KIND_TAG)}) of partition {key[1]} of topic {key[0].hex()}"
        partition = view[PARTITIONS].get(key)
        if partition is None:
            yield f"{name}: this partition does not exist"
            continue
        kinds[(*key, tags.get(KIND_TAG, ""))] += 1
        if kinds[(*key, tags.get(KIND_TAG, ""))] > 1:
            yield f"{name} exists twice"
        held = (row.open, row.node_id, row.stream_epoch)
        if held != (True, partition.leader_id, partition.leader_epoch):
            yield f"{name} is not open at its leader, node {partition.leader_id}, at epoch {partition.leader_epoch}"  # noqa: E501


def _keys(view: View) -> Iterator[str]:
    for row in view[KEYS]:
        if row.key.startswith(KEY_PREFIX):
            topic, _, number = row.key.removeprefix(KEY_PREFIX).partition("/")
            if (bytes.fromhex(topic), int(number)) not in view[PARTITIONS]:
                yield f"key {row.key} belongs to a partition that does not exist"
