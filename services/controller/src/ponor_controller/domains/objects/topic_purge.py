"""Delete the streams and keys of topics that were deleted or do not exist.

A stream names its topic by a tag, a key by its name (`partition/TOPIC/NUMBER`). A stream or key whose topic
has no row is an orphan: it was created after the topic was deleted. `find_orphans` finds their topics, which
are then purged like deleted topics.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from ponor.metadata.v1 import records_pb2
from ponor_metadata.image.memory_table import index_keys
from ponor_metadata.image.overlay import Overlay
from ponor_metadata.nouns.keys import KEYS
from ponor_metadata.nouns.streams import STREAMS, STREAMS_OF_TOPIC
from ponor_metadata.nouns.topics import DELETIONS, TOPICS, parse_topic_id
from ponor_metadata.tables.schema import View

KEYS_OF_PARTITIONS: Final = "partition/"
KEYS_PER_LOOK: Final = 256


def purge(view: Overlay, topic_id: bytes, limit: int) -> list[records_pb2.Record]:
    """Records that delete at most `limit` streams and keys of a deleted topic.

    If none is left: the record that completes the deletion.
    """
    records: list[records_pb2.Record] = []
    named = topic_id.hex()
    for stream in view.image[STREAMS].find(STREAMS_OF_TOPIC, named)[:limit]:
        if stream.stream_id in view[STREAMS]:
            deleted = records_pb2.StreamDeleted(stream_id=stream.stream_id)
            records.append(records_pb2.Record(stream_deleted=deleted))
    prefix = f"{KEYS_OF_PARTITIONS}{named}/"
    for row in view.image[KEYS].after(prefix, max(0, limit - len(records))):
        if not row.key.startswith(prefix):
            break
        if row.key in view[KEYS]:
            records.append(records_pb2.Record(key_deleted=records_pb2.KeyDeleted(key=row.key)))
    # Streams in proposed batches count too; keys cannot be proposed, because a key needs the row of its
    # topic.
    if not records and not len(view[STREAMS].find(STREAMS_OF_TOPIC, named)):
        purged = records_pb2.TopicPurged(topic_id=topic_id)
        records.append(records_pb2.Record(topic_purged=purged))
    return records


def find_orphans(view: Overlay) -> Iterator[bytes | None]:
    """Search for topics to which streams or keys refer, but which neither exist nor are being deleted.

    Yields:
        For each index key or row that was read: the id of such a topic, or None.
    """
    image = view.image
    for named in index_keys(image[STREAMS], STREAMS_OF_TOPIC):
        yield _orphaned(view, named)
    after = KEYS_OF_PARTITIONS
    while some := image[KEYS].after(after, KEYS_PER_LOOK):
        for row in some:
            if not row.key.startswith(KEYS_OF_PARTITIONS):
                return
            yield _orphaned(view, row.key.removeprefix(KEYS_OF_PARTITIONS).partition("/")[0])
        after = some[-1].key


def _orphaned(view: View, named: str) -> bytes | None:
    topic_id = parse_topic_id(named)
    if topic_id is None or topic_id in view[TOPICS] or topic_id in view[DELETIONS]:
        return None
    return topic_id
