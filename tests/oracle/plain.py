"""Messages as plain JSON in a canonical form that is equal for equivalent answers of two brokers.

Named rules canonicalize ids, addresses, times and the order of unordered arrays. A rule applies to
every story; `allowed` lists differences of single places. A rule never drops a value: a missing id
stays visible.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any, Final

from ponor_kafka.codec import M, decode_versioned
from ponor_kafka.errors import ErrorCode, KafkaWireError
from ponor_kafka.message import ZERO_UUID, Struct
from ponor_kafka.messages.consumer_protocol_assignment import ConsumerProtocolAssignment
from ponor_kafka.messages.consumer_protocol_subscription import ConsumerProtocolSubscription
from ponor_kafka.messages.describe_quorum import (
    DescribeQuorumResponsePartitionData,
    Listener,
    ReplicaState,
)
from ponor_kafka.primitives import Buffer
from ponor_kafka.record_batch import LENGTH_PREFIX_BYTES, BatchView, batch_bytes

DECOMPRESSED_BYTES_MAX: Final = 64 << 20
NEAR_NOW_MS: Final = 7 * 86_400_000
LONG_BYTES: Final = 64

IDENTITY: Final = (
    "api_key", "name", "topic_name", "topic", "group_id", "key", "partition_index", "partition", "partition_id", "index",  # noqa: E501
    "client_id", "user", "resource_type", "resource_name", "member_id", "group_instance_id", "source", "transactional_id",  # noqa: E501
)  # fmt: skip
"""Fields that identify the entries of an array, by which arrays are sorted."""

OF_ACLS: Final = (
    "resource_type", "resource_name", "pattern_type", "principal", "host", "operation", "permission_type",
)  # fmt: skip
"""Fields that identify ACLs and their resources."""

NAMELESS: Final = ("topic_id", "base_offset", "offset", "producer_id")
"""Identifying fields of entries without any of these."""


def identity(entry: Mapping[str, Any]) -> str:
    """Identity of an array entry; topics without a name use their id."""
    if "principal" in entry or "pattern_type" in entry:
        return ",".join(str(entry[field]) for field in OF_ACLS if field in entry)
    words = [str(entry[field]) for field in IDENTITY if entry.get(field) not in {None, ""}]
    return ",".join(words) or next((str(entry[field]) for field in NAMELESS if field in entry), "")


class Canon:
    """The rules, and the names of one broker's ids in one story."""

    def __init__(self, *, node_id: int, port: int, cluster_id: str) -> None:
        self._names: dict[tuple[str, object], str] = {("cluster_id", cluster_id): "the cluster"}
        self._node_id = node_id
        self._port = port
        self._rules: Mapping[str, Callable[[Any], Any]] = {
            **dict.fromkeys(NODE_FIELDS, self._node),
            "replica_directory_id": lambda value: (
                "no id" if value == ZERO_UUID else self._named("directory", value, none=())
            ),
            **dict.fromkeys(TIME_FIELDS, self._time),
            "cluster_id": lambda value: self._named("cluster_id", value, none=(None, "")),
            "member_id": lambda value: self._named("member_id", value, none=("",)),
            "leader": lambda value: self._named("member_id", value, none=("",)),
            **dict.fromkeys(PRODUCER_FIELDS, lambda value: self._named("producer_id", value, none=(-1,))),
            "producer_id_filters": lambda value: [
                self._named("producer_id", one, none=(-1,)) for one in value
            ],
            "session_id": lambda value: self._named("session_id", value, none=(0,)),
            "port": lambda value: "its port" if value == self._port else value,
            "finalized_features_epoch": lambda value: "an epoch" if value >= 0 else value,
            "error_code": _error,
            "partition_error_code": _error,
            "error_message": _wording,
            "batch_index_error_message": _wording,
            "documentation": _wording,
            "total_bytes": lambda value: "some bytes" if value > 0 else value,
            "usable_bytes": lambda value: "some bytes" if value > 0 else value,
            "resource_name": lambda value: "the broker" if value == str(self._node_id) else value,
            "log_dir": lambda value: "a directory" if value else value,
            "records": lambda value: None if value is None else self._batches(value),
        }

    def call(self, kind: str, value: object, name: str) -> None:
        """Set the name of an id."""
        self._names[kind, value] = name

    def message(self, message: Struct) -> dict[str, Any]:
        """All fields of a message or struct."""
        fields = {name: self._field(message, name) for name in type(message).__slots__}
        return dict(fields)

    def _field(self, owner: Struct, name: str) -> Any:
        value = getattr(owner, name)
        if name == "topic_id":
            return self._topic_id(value, getattr(owner, "name", None) or getattr(owner, "topic", None))
        rule = RULES_OF_ONE.get((type(owner), name)) or self._rules.get(name)
        if rule is not None:
            return rule(value)
        if name in {"metadata", "member_metadata"} and isinstance(value, bytes):
            return _consumer_protocol(ConsumerProtocolSubscription, value, self)
        if name in {"assignment", "member_assignment"} and isinstance(value, bytes):
            return _consumer_protocol(ConsumerProtocolAssignment, value, self)
        return self._value(value)

    def _value(self, value: Any) -> Any:
        if isinstance(value, Struct):
            return self.message(value)
        if isinstance(value, list | tuple):
            return _ordered([self._value(entry) for entry in value])
        if isinstance(value, bytes | bytearray | memoryview):
            return _bytes(value)
        return value

    def _named(self, kind: str, value: object, *, none: tuple[object, ...]) -> object:
        """Ids assigned by a broker: the first one is #1."""
        if value in none:
            return value
        known = sum(1 for seen, _ in self._names if seen == kind)
        return self._names.setdefault((kind, value), f"{kind} #{known + 1}")

    def _topic_id(self, value: bytes, topic: str | None) -> object:
        """Topic ids are named after their topic; a recreated topic has a new name."""
        if value == ZERO_UUID:
            return "no id"
        known = self._names.get(("topic_id", bytes(value)))
        if known is not None or not topic:
            return known or self._named("topic_id", bytes(value), none=())
        taken = sum(1 for called in self._names.values() if called.startswith(f"topic_id of {topic} #"))
        return self._names.setdefault(("topic_id", bytes(value)), f"topic_id of {topic} #{taken + 1}")

    def _node(self, value: Any) -> Any:
        """Kafka's node is 1, Ponor's first is 65536: both are the only broker."""
        if isinstance(value, list | tuple):
            return [self._node(entry) for entry in value]
        return "the broker" if value == self._node_id else value

    def _time(self, value: int) -> object:
        """Times from a clock. The fixed times of stories are far from it."""
        return "now" if abs(value - time.time() * 1000) < NEAR_NOW_MS else value

    def _batches(self, records: Buffer) -> list[dict[str, Any]]:
        """Record batches without the incomplete one that Kafka may return at the end, which clients skip."""
        view, position, batches = memoryview(bytes(records)), 0, []
        while len(view) - position >= LENGTH_PREFIX_BYTES:
            try:
                size = batch_bytes(view, position)
                if size > len(view) - position:
                    break
                batches.append(self._batch(BatchView(view[position : position + size])))
            except KafkaWireError:
                batches.append({"unreadable": _bytes(view[position:])})
                break
            position += size
        return batches

    def _batch(self, batch: BatchView) -> dict[str, Any]:
        records = [
            {
                "offset": record.offset,
                "timestamp": self._time(record.timestamp),
                "key": None if record.key is None else _bytes(record.key),
                "value": None if record.value is None else _bytes(record.value),
                "headers": [
                    [header.key, None if header.value is None else _bytes(header.value)]
                    for header in record.headers
                ],
            }
            for record in batch.records(DECOMPRESSED_BYTES_MAX)
        ]
        return {
            "base_offset": batch.base_offset,
            "leader_epoch": batch.leader_epoch,
            "attributes": batch.attributes,
            "last_offset_delta": batch.last_offset_delta,
            "first_timestamp": self._time(batch.first_timestamp),
            "max_timestamp": self._time(batch.max_timestamp),
            "producer_id": self._rules["producer_id"](batch.producer_id),
            "producer_epoch": batch.producer_epoch,
            "base_sequence": batch.base_sequence,
            "records": records,
        }


NODE_FIELDS: Final = (
    "node_id", "leader_id", "controller_id", "broker_id", "replica_nodes", "isr_nodes", "eligible_leader_replicas", "last_known_elr",  # noqa: E501
    "offline_replicas", "replicas", "replica_id", "preferred_read_replica",
)  # fmt: skip
PRODUCER_FIELDS: Final = ("producer_id", "v3_and_below_producer_id")
TIME_FIELDS: Final = (
    "log_append_time_ms",
    "timestamp",
    "last_timestamp",
    "last_fetch_timestamp",
    "last_caught_up_timestamp",
    "transaction_start_time_ms",
)


def _progress(value: int) -> object:
    """Position of the metadata log, which grows with every story."""
    return "somewhere" if value > 0 else value


RULES_OF_ONE: Final[Mapping[tuple[type[Struct], str], Callable[[Any], Any]]] = {
    (DescribeQuorumResponsePartitionData, "leader_epoch"): _progress,
    (DescribeQuorumResponsePartitionData, "high_watermark"): _progress,
    (ReplicaState, "log_end_offset"): _progress,
    (Listener, "port"): lambda value: "a port" if value > 0 else value,
}
"""Rules for a field of one message whose name has another meaning elsewhere."""


def _error(code: int) -> str:
    return ErrorCode(code).name if code in ErrorCode.__members__.values() else f"code {code}"


def _wording(text: str | None) -> str | None:
    """Only the presence of a message is compared, because texts differ."""
    return "some words" if text else None


def _bytes(value: Buffer) -> str:
    data = bytes(value)
    if len(data) > LONG_BYTES:
        return f"{len(data)} bytes, beginning with {data[:8].hex()}"
    return data.decode() if data.isascii() and data.decode().isprintable() else "0x" + data.hex()


def _consumer_protocol(message_class: type[M], value: bytes, canon: Canon) -> Any:
    """Metadata and assignments of members are opaque to brokers; they are decoded for readability."""
    try:
        return canon.message(decode_versioned(message_class, value)[0])
    except KafkaWireError:
        return _bytes(value)


def _ordered(entries: list[Any]) -> list[Any]:
    """Arrays in Kafka's answers have the order of its hash maps; entries are matched by their identity."""
    if not all(isinstance(entry, dict) for entry in entries):
        return entries
    return sorted(entries, key=identity)
