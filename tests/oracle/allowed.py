"""Differences from Kafka: intended ones with a name and a reason, and known ones to repair.

An entry that no longer matches a difference is an error. Rules that make answers comparable
everywhere (ids, addresses, times, messages) are in `plain`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatch
from typing import Any, Final

from tests.oracle.compare import Difference


@dataclass(frozen=True, slots=True)
class Allowed:
    """An intended difference. `story`, `api` and `note` are globs, `path` is a regular expression
    for the whole path, `fits` checks the two values.
    """

    name: str
    reason: str
    story: str = "*"
    api: str = "*"
    note: str = "*"
    path: str = ".*"
    fits: Callable[[Any, Any], bool] = field(default=lambda _kafka, _ponor: True)

    def covers(self, difference: Difference) -> bool:
        """Whether this entry explains a difference."""
        return (
            fnmatch(difference.story, self.story)
            and fnmatch(difference.api, self.api)
            and fnmatch(difference.note, self.note)
            and re.fullmatch(self.path, difference.path) is not None
            and self.fits(difference.kafka, difference.ponor)
        )


def _only_kafka(_kafka: Any, ponor: Any) -> bool:
    return ponor is None


def _equal_words(kafka: Any, ponor: Any) -> bool:
    return sorted(re.findall(r"[\w-]+", kafka)) == sorted(re.findall(r"[\w-]+", ponor))


def _more_words(kafka: Any, ponor: Any) -> bool:
    return kafka is None and ponor == "some words"


ALLOWED: Final[Sequence[Allowed]] = (
    Allowed(
        "fewer APIs",
        "Ponor advertises only supported APIs, and does not support security and quotas yet",
        api="ApiVersions",
        path=r"api_keys\[\d+\]",
        fits=_only_kafka,
    ),
    Allowed(
        "equal state batches are joined",
        "Kafka does not join batches of equal state that become neighbours when another batch is split; the"
        " states of all offsets are the same",
        story="share_state",
        api="ReadShareGroupState",
        note="the higher delivery count wins",
        path=r".*\.state_batches",
    ),
    Allowed(
        "missing internal topics are sorted",
        "Kafka lists them in the order of a hash table",
        story="streams_group_internal_topics",
        api="StreamsGroupHeartbeat",
        path=r"status\[\d+\]\.status_detail",
        fits=lambda kafka, ponor: (
            sorted(kafka.replace(",", "").split()) == sorted(ponor.replace(",", "").split())
        ),
    ),
    Allowed(
        "no features finalized",
        "a feature whose APIs are missing must not be finalized: clients would use them",
        api="ApiVersions",
        path=r"(supported|finalized)_features(\[.*\]|_epoch)",
    ),
    Allowed(
        "a name that is not UTF-8 ends the connection",
        "Ponor treats invalid UTF-8 in any body as malformed; Kafka replaces it and then rejects the name",
        story="bodies_malformed",
        api="ApiVersions",
    ),
    Allowed(
        "newer versions",
        "Ponor also supports ApiVersions 5 (KIP-1242), DeleteGroups 3 and StreamsGroupHeartbeat 1"
        " of Kafka 4.4",
        api="ApiVersions",
        path=r"api_keys\[(18|42|88)\]\.max_version",
        fits=lambda kafka, ponor: ponor == kafka + 1,
    ),
    Allowed(
        "no SASL tokens without a header",
        "after SaslHandshake 0, tokens have no request header; clients from Kafka 1.0 on use version 1",
        api="ApiVersions",
        path=r"api_keys\[17\]\.min_version",
        fits=lambda kafka, ponor: (kafka, ponor) == (0, 1),
    ),
    Allowed(
        "more words",
        "Ponor sends an error message where Kafka sends none",
        path=r".*error_message",
        fits=_more_words,
    ),
    Allowed(
        "the replication factor has no effect",
        "Ponor accepts any value, because the write-ahead log and the object store provide durability",
        story="create_topics_numbers",
        api="CreateTopics",
        path=r"topics\[create-numbers\]\..*",
    ),
    Allowed(
        "named errors where Kafka fails",
        "Kafka answers UNKNOWN_SERVER_ERROR or not at all, which is fatal to clients; Ponor returns a"
        " specific error",
        api="Produce",
        fits=lambda kafka, ponor: (
            kafka in ("UNKNOWN_SERVER_ERROR", {"silent": True}) and ponor not in (None, "NONE")
        ),
    ),
    Allowed(
        "a codec that does not exist is unsupported",
        "Ponor refuses the codec as it refuses zstd in an old version; Kafka fails with UNKNOWN_SERVER_ERROR"
        " and also returns the log start",
        story="produce_forbidden_bits",
        api="Produce",
        path=r".*\.log_start_offset",
        fits=lambda kafka, ponor: (kafka, ponor) == (0, -1),
    ),
    Allowed(
        "an incomplete batch is corrupt",
        "wrong lengths are damage in transit, so the client may retry; Kafka ignores the bytes after the"
        " last whole batch",
        story="produce_damaged",
        api="Produce",
        path=r".*\.(error_code|base_offset|log_start_offset)",
        fits=lambda kafka, ponor: ponor in ("CORRUPT_MESSAGE", -1) and kafka in ("INVALID_RECORD", "NONE", 0),
    ),
    Allowed(
        "no part of an incomplete batch is stored",
        "Kafka stores the batch that is followed by extra bytes",
        story="produce_damaged",
        api="ListOffsets",
        path=r"topics\[produce-damaged\]\.partitions\[0\]\.offset",
        fits=lambda kafka, ponor: (kafka, ponor) == (3, 0),
    ),
    Allowed(
        "a duplicate has no append time",
        "the topic uses the producer's timestamps; Kafka answers a duplicate with the batch's largest"
        " timestamp, a first batch with -1",
        story="*produce*",
        api="Produce",
        path=r".*\.log_append_time_ms",
        fits=lambda kafka, ponor: (kafka, ponor) == (1_000_000, -1),
    ),
    Allowed(
        "a producer id requires an epoch",
        "Ponor refuses a batch with a producer id and without an epoch; Kafka stores it",
        story="produce_idempotent_edges",
        api="Produce",
        path=r"responses\[produce-idempotent-edges\]\.partition_responses\[2\]\..*",
    ),
    Allowed(
        "no eligible leader replicas",
        "for eligible leader replicas, Kafka sets min.insync.replicas for all brokers when a cluster is"
        " created; Ponor has no replicas",
        path=r".*configs\[min\.insync\.replicas\].*",
    ),
    Allowed(
        "no id for a topic that is not created",
        "Kafka answers a validate-only request with an unused id",
        story="create_topics*",
        api="CreateTopics",
        path=r"topics\[.*\]\.topic_id",
    ),
    Allowed(
        "unknown settings are refused",
        "Kafka stores any name that is set for a broker, including misspelt ones",
        story="alter_broker_configs",
        api="IncrementalAlterConfigs",
        path=r"responses\[4\]\.error_code",
        fits=lambda kafka, ponor: (kafka, ponor) == ("NONE", "INVALID_REQUEST"),
    ),
    Allowed(
        "named errors where Kafka fails, of settings and topics",
        "Kafka answers UNKNOWN_SERVER_ERROR, which is fatal to clients; Ponor returns a specific error",
        api="IncrementalAlterConfigs",
        path=r".*error_code",
        fits=lambda kafka, ponor: (kafka, ponor) == ("UNKNOWN_SERVER_ERROR", "INVALID_REQUEST"),
    ),
    Allowed(
        "an invalid topic does not fail the whole request",
        "in Kafka, a topic without name and id fails the whole request",
        story="metadata_of_nothing",
        api="Metadata",
        fits=lambda kafka, _ponor: kafka in (None, -1, "UNKNOWN_SERVER_ERROR"),
    ),
    Allowed(
        "an old duplicate is reported as a duplicate",
        "DUPLICATE_SEQUENCE_NUMBER lets a client continue, because the record is stored; Kafka's"
        " OUT_OF_ORDER_SEQUENCE_NUMBER ends the producer",
        story="produce_idempotent",
        api="Produce",
        path=r".*\.error_code",
        fits=lambda kafka, ponor: (
            (kafka, ponor) == ("OUT_OF_ORDER_SEQUENCE_NUMBER", "DUPLICATE_SEQUENCE_NUMBER")
        ),
    ),
    Allowed(
        "deleted records are not the newest",
        "Ponor returns only an offset that is in the log; Kafka may return a deleted offset",
        story="delete_records",
        api="ListOffsets",
        note="the largest timestamp of an empty log",
    ),
    Allowed(
        "log directories have no size",
        "the data is in the object store: a log directory has no size of its own (-1 by KIP-827)",
        api="DescribeLogDirs",
        path=r"results\[.*\]\.(total|usable)_bytes",
        fits=lambda kafka, ponor: (kafka, ponor) == ("some bytes", -1),
    ),
    Allowed(
        "replica ids are ignored",
        "Ponor does not replicate by fetching, so a client with any replica id is served as a consumer",
        story="fetch_as_replica",
        note="an invalid replica id",
    ),
    Allowed(
        "a negative rebalance timeout is refused",
        "the timeout would end every rebalance before it starts; Kafka accepts it",
        story="group_joins_refused",
        note="a negative rebalance timeout",
    ),
    Allowed(
        "an unknown batch format is not damage",
        "a retry cannot succeed: INVALID_RECORD is final, but clients retry after Kafka's CORRUPT_MESSAGE",
        story="produce_damaged",
        note="magic 3",
        path=r".*\.error_code",
    ),
    Allowed(
        "a producer's last activity is the arrival of its batch",
        "Ponor uses the broker's clock; Kafka shows the timestamp in the batch",
        story="describe_producers",
        path=r".*\.last_timestamp",
        fits=lambda kafka, ponor: (kafka, ponor) == (1_000_000, "now"),
    ),
    Allowed(
        "controllers have separate node ids",
        "Kafka's peer runs broker and controller in one process",
        story="describe_quorum",
        api="DescribeQuorum",
        path=r".*(leader_id|replica_id|node_id)",
        fits=lambda kafka, ponor: kafka == "the broker" and isinstance(ponor, int) and ponor > 0,
    ),
    Allowed(
        "every voter has a directory id",
        "Kafka's peer has a static quorum (KIP-595); Ponor identifies voters by node and directory (KIP-853)",
        story="describe_quorum",
        api="DescribeQuorum",
        path=r".*replica_directory_id",
        fits=lambda kafka, ponor: kafka == "no id" and ponor == "directory #1",
    ),
)

TO_REPAIR: Final[Sequence[Allowed]] = ()
"""Known differences to repair; the reason names the repair. They match like the allowed ones."""

NOT_YET: Final[dict[str, str]] = {}
"""Stories that Ponor does not pass yet, and what is missing. A story that passes must be removed
from this list."""


def reason_for(difference: Difference) -> Allowed | None:
    """Return the entry that explains a difference."""
    return next((entry for entry in (*ALLOWED, *TO_REPAIR) if entry.covers(difference)), None)
