"""The differences from Kafka that are meant, each with a name and its reason; and those that are known and not meant.

What lives here: data, and how an entry is matched. An entry that matches nothing any more is an error of its own: the list says what is, not what was.
Rules that make answers comparable everywhere (ids, addresses, times, words) are in `plain`.
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
    """A difference by intent. `story`, `api` and `note` are globs, `path` a regular expression over the whole path; `fits` judges the two values."""

    name: str
    reason: str
    story: str = "*"
    api: str = "*"
    note: str = "*"
    path: str = ".*"
    fits: Callable[[Any, Any], bool] = field(default=lambda _kafka, _ponor: True)

    def covers(self, difference: Difference) -> bool:
        """Whether this entry is the reason for a difference."""
        return (
            fnmatch(difference.story, self.story)
            and fnmatch(difference.api, self.api)
            and fnmatch(difference.note, self.note)
            and re.fullmatch(self.path, difference.path) is not None
            and self.fits(difference.kafka, difference.ponor)
        )


def _only_kafka(_kafka: Any, ponor: Any) -> bool:
    return ponor is None


def _more_words(kafka: Any, ponor: Any) -> bool:
    return kafka is None and ponor == "some words"


ALLOWED: Final[Sequence[Allowed]] = (
    Allowed(
        "fewer APIs",
        "only what is handled is advertised: no transactions, security, quotas, share groups, streams groups and KIP-848 yet",
        api="ApiVersions",
        path=r"api_keys\[\d+\]",
        fits=_only_kafka,
    ),
    Allowed(
        "no features finalized",
        "a feature whose APIs are missing must not be finalized: clients would use them",
        api="ApiVersions",
        path=r"(supported|finalized)_features(\[.*\]|_epoch)",
    ),
    Allowed(
        "a name that is no UTF-8 ends the connection",
        "bytes that are no text are malformed in every body here; Kafka replaces them and then finds the name bad",
        story="bodies_malformed",
        api="ApiVersions",
    ),
    Allowed(
        "newer versions",
        "ApiVersions 5 (KIP-1242) and DeleteGroups 3 are Kafka 4.4's",
        api="ApiVersions",
        path=r"api_keys\[(18|42)\]\.max_version",
        fits=lambda kafka, ponor: ponor == kafka + 1,
    ),
    Allowed(
        "more words",
        "an error says what is wrong where Kafka sends none",
        path=r".*error_message",
        fits=_more_words,
    ),
    Allowed(
        "the replication factor has no effect",
        "any is accepted: durability is the log's and the object store's",
        story="create_topics_numbers",
        api="CreateTopics",
        path=r"topics\[create-numbers\]\..*",
    ),
    Allowed(
        "named errors where Kafka fails",
        "Kafka answers UNKNOWN_SERVER_ERROR or not at all, which clients take for fatal; here the error has a name",
        api="Produce",
        fits=lambda kafka, ponor: (
            kafka in ("UNKNOWN_SERVER_ERROR", {"silent": True}) and ponor not in (None, "NONE")
        ),
    ),
    Allowed(
        "a codec that does not exist is unsupported",
        "it is refused as zstd is where a client cannot know it; Kafka fails with UNKNOWN_SERVER_ERROR, beside which it says where the log starts",
        story="produce_forbidden_bits",
        api="Produce",
        path=r".*\.log_start_offset",
        fits=lambda kafka, ponor: (kafka, ponor) == (0, -1),
    ),
    Allowed(
        "a batch that is not whole is corrupt",
        "what does not end where it should was damaged on its way, and the client may send it again; Kafka ignores the bytes behind the last whole batch",
        story="produce_damaged",
        api="Produce",
        path=r".*\.(error_code|base_offset|log_start_offset)",
        fits=lambda kafka, ponor: ponor in ("CORRUPT_MESSAGE", -1) and kafka in ("INVALID_RECORD", "NONE", 0),
    ),
    Allowed(
        "nothing of it was stored",
        "follows from the batch with bytes behind it, which Kafka stored",
        story="produce_damaged",
        api="ListOffsets",
        path=r"topics\[produce-damaged\]\.partitions\[0\]\.offset",
        fits=lambda kafka, ponor: (kafka, ponor) == (3, 0),
    ),
    Allowed(
        "a duplicate has no append time",
        "the topic's time is the producer's; Kafka answers a duplicate with the batch's largest timestamp, a first time with -1",
        story="*produce*",
        api="Produce",
        path=r".*\.log_append_time_ms",
        fits=lambda kafka, ponor: (kafka, ponor) == (1_000_000, -1),
    ),
    Allowed(
        "a producer's id wants an epoch",
        "a batch with an id and no epoch is no producer's; Kafka stores it",
        story="produce_idempotent_edges",
        api="Produce",
        path=r"responses\[produce-idempotent-edges\]\.partition_responses\[2\]\..*",
    ),
    Allowed(
        "no eligible leader replicas",
        "for them Kafka sets min.insync.replicas for all brokers when a cluster is made; replicas are a fiction here",
        path=r".*configs\[min\.insync\.replicas\].*",
    ),
    Allowed(
        "no id for a topic that is not made",
        "Kafka answers a check with an id that no topic will ever have",
        story="create_topics*",
        api="CreateTopics",
        path=r"topics\[.*\]\.topic_id",
    ),
    Allowed(
        "the settings that Kafka has are all there are",
        "Kafka keeps any name that is set for a broker, misspelt ones too; here it is refused",
        story="alter_broker_configs",
        api="IncrementalAlterConfigs",
        path=r"responses\[4\]\.error_code",
        fits=lambda kafka, ponor: (kafka, ponor) == ("NONE", "INVALID_REQUEST"),
    ),
    Allowed(
        "named errors where Kafka fails, of settings and topics",
        "Kafka answers UNKNOWN_SERVER_ERROR, which clients take for fatal; here the error has a name",
        api="IncrementalAlterConfigs",
        path=r".*error_code",
        fits=lambda kafka, ponor: (kafka, ponor) == ("UNKNOWN_SERVER_ERROR", "INVALID_REQUEST"),
    ),
    Allowed(
        "a bad topic does not spoil the answer",
        "a request with a topic that has neither name nor id fails as a whole in Kafka",
        story="metadata_of_nothing",
        api="Metadata",
        fits=lambda kafka, _ponor: kafka in (None, -1, "UNKNOWN_SERVER_ERROR"),
    ),
    Allowed(
        "an old duplicate is called one",
        "DUPLICATE_SEQUENCE_NUMBER lets a client go on, since the record is stored; Kafka's OUT_OF_ORDER_SEQUENCE_NUMBER ends its producer",
        story="produce_idempotent",
        api="Produce",
        path=r".*\.error_code",
        fits=lambda kafka, ponor: (
            (kafka, ponor) == ("OUT_OF_ORDER_SEQUENCE_NUMBER", "DUPLICATE_SEQUENCE_NUMBER")
        ),
    ),
    Allowed(
        "deleted records are not the newest",
        "the offset of the largest timestamp lies in the log; Kafka answers with one that DeleteRecords took away",
        story="delete_records",
        api="ListOffsets",
        note="the largest timestamp of nothing",
    ),
    Allowed(
        "no disk to be full",
        "the data is in the object store: a log directory has no size of its own (-1 by KIP-827)",
        api="DescribeLogDirs",
        path=r"results\[.*\]\.(total|usable)_bytes",
        fits=lambda kafka, ponor: (kafka, ponor) == ("some bytes", -1),
    ),
    Allowed(
        "replicas are nobody",
        "there is no replication by fetching: whatever replica a client claims to be, it is served as a consumer",
        story="fetch_as_replica",
        note="a replica that is none",
    ),
    Allowed(
        "a negative rebalance timeout is refused",
        "it would end every rebalance before it began; Kafka takes it",
        story="group_joins_refused",
        note="a negative rebalance timeout",
    ),
    Allowed(
        "a format of the future is unknown, not damaged",
        "sending it again will not help: INVALID_RECORD is final, Kafka's CORRUPT_MESSAGE is tried again",
        story="produce_damaged",
        note="magic 3",
        path=r".*\.error_code",
    ),
    Allowed(
        "a producer was last heard of when its batch came",
        "by the broker's clock; Kafka shows the timestamp that the producer wrote into the batch",
        story="describe_producers",
        path=r".*\.last_timestamp",
        fits=lambda kafka, ponor: (kafka, ponor) == (1_000_000, "now"),
    ),
    Allowed(
        "controllers are nodes of their own",
        "Kafka's peer is broker and controller in one process",
        story="describe_quorum",
        api="DescribeQuorum",
        path=r".*(leader_id|replica_id|node_id)",
        fits=lambda kafka, ponor: kafka == "the broker" and isinstance(ponor, int) and ponor > 0,
    ),
    Allowed(
        "every voter has a directory id",
        "Kafka's peer has a static quorum (KIP-595); here voters always go by node and directory (KIP-853)",
        story="describe_quorum",
        api="DescribeQuorum",
        path=r".*replica_directory_id",
        fits=lambda kafka, ponor: kafka == "no id" and ponor == "directory #1",
    ),
)

TO_REPAIR: Final[Sequence[Allowed]] = ()
"""Differences that are known and not meant; the reason says what is to be done. They are matched as the allowed ones are."""

NOT_YET: Final[dict[str, str]] = {}
"""Stories in which Ponor is wrong or silent today, and what is missing. A story that comes out right must leave this list."""


def reason_for(difference: Difference) -> Allowed | None:
    """The entry that allows a difference."""
    return next((entry for entry in (*ALLOWED, *TO_REPAIR) if entry.covers(difference)), None)
