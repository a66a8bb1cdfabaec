"""Check that the caller leads the partition whose streams it creates, opens or deletes, or whose key it puts.

The tags of a stream and the name of a key contain the partition. Without these checks a broker that
opens a partition during the deletion of its topic, or during an election, could leave streams and
keys whose partition does not exist, or take streams from the new leader.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from ponor.common.v1 import error_pb2
from ponor_metadata.nouns.streams import PARTITION_TAG, TOPIC_TAG
from ponor_metadata.nouns.topics import PARTITIONS, TOPICS, PartitionRow, parse_topic_id

from ponor_controller.kernel.decisions import Situation, invalid, refuse

KEY_PREFIX: Final = "partition/"


def require_tagged_rights(tags: Mapping[str, str], situation: Situation) -> None:
    """Check the tags of a new stream. A stream without a topic tag belongs to no partition.

    Raises:
        OperationError: INVALID_REQUEST (a malformed topic id or number), TOPIC_NOT_FOUND, STREAM_FENCED (the
            caller does not lead the partition).
    """
    topic, partition = tags.get(TOPIC_TAG), tags.get(PARTITION_TAG)
    if topic is None:
        return
    topic_id = _topic_id(topic)
    if topic_id not in situation.view[TOPICS]:
        raise refuse(
            error_pb2.ERROR_CODE_TOPIC_NOT_FOUND,
            f"topic {topic} does not exist; no stream can be created for it",
        )
    if partition is not None:
        _require_led(topic_id, _number(partition), situation)


def require_key_rights(key: str, situation: Situation) -> None:
    """Check the key of a put operation. Only keys of partitions are restricted.

    Raises:
        OperationError: as `require_tagged_rights`.
    """
    if key.startswith(KEY_PREFIX):
        topic, _, number = key.removeprefix(KEY_PREFIX).partition("/")
        _require_led(_topic_id(topic), _number(number), situation)


def require_stream_rights(
    tag_pairs: Sequence[str], situation: Situation, stream_epoch: int | None = None
) -> None:
    """Check the tags of a stream. The caller opens the stream at `stream_epoch`, or deletes it if
    `stream_epoch` is None.

    Raises:
        OperationError: TOPIC_NOT_FOUND, STREAM_FENCED.
    """
    tags = dict(zip(tag_pairs[::2], tag_pairs[1::2], strict=True))
    if TOPIC_TAG not in tags or PARTITION_TAG not in tags:
        return
    topic_id, number = _topic_id(tags[TOPIC_TAG]), _number(tags[PARTITION_TAG])
    if stream_epoch is None and (topic_id, number) not in situation.view[PARTITIONS]:
        return  # the topic is deleted, so the stream is unused
    row = _require_led(topic_id, number, situation)
    if stream_epoch is not None and stream_epoch != row.leader_epoch:
        raise refuse(
            error_pb2.ERROR_CODE_STREAM_FENCED,
            f"{_name(topic_id, number)} is at leader epoch {row.leader_epoch}; its streams cannot be opened"
            f" at epoch {stream_epoch}",
        )


def _require_led(topic_id: bytes, number: int, situation: Situation) -> PartitionRow:
    row = situation.view[PARTITIONS].get((topic_id, number))
    if row is None:
        raise refuse(
            error_pb2.ERROR_CODE_TOPIC_NOT_FOUND,
            f"{_name(topic_id, number)} does not exist; it was deleted or never created",
        )
    if row.leader_id != situation.caller.node_id:
        raise refuse(
            error_pb2.ERROR_CODE_STREAM_FENCED,
            f"{_name(topic_id, number)} is led by broker {row.leader_id} at epoch {row.leader_epoch}, not by"
            f" node {situation.caller.node_id}",
        )
    return row


def _topic_id(text: str) -> bytes:
    topic_id = parse_topic_id(text)
    if topic_id is None:
        raise invalid(f"{text!r} is not a topic id in hex")
    return topic_id


def _number(text: str) -> int:
    if not (text.isascii() and text.isdecimal()):
        raise invalid(f"{text!r} is not a partition number")
    return int(text)


def _name(topic_id: bytes, number: int) -> str:
    return f"partition {number} of topic {topic_id.hex()}"
