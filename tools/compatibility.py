"""Compatibility pages: every API of Kafka and Ponor's support, every setting and its effect.

Kafka's APIs come from a recorded response of Kafka 4.3.1 (tests/oracle/recordings), the settings from the
catalogue (`ponor_kafka.configs`), Ponor's APIs from the broker's registry. Only the remarks are written by
hand.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final

from ponor_kafka.api import ApiKey
from ponor_kafka.configs.catalogue import (
    BROKER_CONFIGS,
    GROUP_BOUNDS,
    GROUP_CONFIGS,
    GROUP_SYNONYMS,
    TOPIC_CONFIGS,
    TOPIC_SYNONYMS,
)
from ponor_kafka.configs.definition import ConfigDefinition, Effect, Scope

from tools.advertised_apis import advertised_apis

RECORDING: Final = (
    Path(__file__).resolve().parents[1] / "tests" / "oracle" / "recordings" / "api_versions.json"
)
SECURITY: Final = "there is no security yet"
QUOTAS: Final = "there are no quotas yet"
QUORUM: Final = "`ponor cluster quorum` does this"

REMARKS: Final[Mapping[str, str]] = {
    "PRODUCE": "version 0 is advertised because librdkafka derives the supported codecs from it"
    " (KAFKA-18659); the broker closes the connection on versions 0–2, as Kafka "
    "does. acks 0, 1 and −1 have the same durability; `timeout_ms` applies to 1 and −1, at least 100 ms",
    "FETCH": "fetch sessions (KIP-227); followers have no privileges; with read_committed, an incremental"
    " answer reports the high watermark of an idle partition when its last stable offset changes",
    "WRITE_TXN_MARKERS": "for transaction coordinators of other brokers, and for tools that abort hanging"
    " transactions",
    "LIST_OFFSETS": "timestamp −4 (earliest local offset) equals earliest: there is no local tier",
    "METADATA": "creates topics if the client and `auto_create_topics` allow it",
    "OFFSET_COMMIT": "stored in `__consumer_offsets` in Kafka's record format",
    "JOIN_GROUP": "classic protocol, static members",
    "API_VERSIONS": "version 5 is KIP-1242 of Kafka 4.4: a client that expects another broker or cluster gets"
    " REBOOTSTRAP_REQUIRED",
    "CREATE_TOPICS": "any replication factor is accepted; a partition has one replica",
    "FIND_COORDINATOR": "for groups, transactional ids and share partitions",
    "DESCRIBE_CONFIGS": "topics, groups and brokers, Kafka's and Ponor's settings (`ponor.*`); no loggers or"
    " client metrics",
    "ALTER_CONFIGS": "topics, groups and brokers",
    "INCREMENTAL_ALTER_CONFIGS": "topics, groups and brokers; a broker setting that Kafka does not know is"
    " refused",
    "LIST_CONFIG_RESOURCES": "topics, brokers, and groups with configs of their own",
    "ELECT_LEADERS": "no election is needed, because a partition has one replica;"
    " PREFERRED_LEADER_NOT_AVAILABLE for a moving partition until its source has closed it",
    "ALTER_PARTITION_REASSIGNMENTS": "moves a partition to the named broker, without copying; null cancels a"
    " move, another broker replaces the target; several brokers: INVALID_REPLICA_ASSIGNMENT",
    "LIST_PARTITION_REASSIGNMENTS": "moves in progress: the target broker is added, the leader is removed",
    "ALTER_REPLICA_LOG_DIRS": "a broker has one virtual directory: LOG_DIR_NOT_FOUND for any other",
    "OFFSET_DELETE": "refused for a topic to which a live consumer of the group subscribes",
    "DESCRIBE_QUORUM": "the controllers: voters, and learners as observers; brokers are not included because"
    " they only subscribe",
    "UPDATE_FEATURES": "Ponor's features (`ponor.*`); levels can only increase; `transaction.version` is"
    " always 2; `group.version`, `share.version` and `streams.version` are always 1",
    "UNREGISTER_BROKER": "`ponor cluster unregister` does this",
    "SASL_HANDSHAKE": "from version 1 on; SCRAM-SHA-256, SCRAM-SHA-512 and PLAIN on listeners with SASL",
    "DESCRIBE_ACLS": "SECURITY_DISABLED, as in Kafka without an authorizer, unless `acls_enabled` is set;"
    " requests are not authorized yet",
    "CREATE_ACLS": "likewise; atomic for each 500 ACLs; INVALID_REQUEST for ANY and MATCH, where Kafka"
    " answers UNKNOWN_SERVER_ERROR",
    "DELETE_ACLS": "likewise; atomic for each 500 ACLs; at most 1,000 filters",
    "DESCRIBE_USER_SCRAM_CREDENTIALS": "results are sorted by user",
    "ALTER_USER_SCRAM_CREDENTIALS": "at most 1,000 alterations; user names have at most 256 characters, salts"
    " 256 bytes; an empty salted password is refused with UNACCEPTABLE_CREDENTIAL",
    "ADD_RAFT_VOTER": QUORUM,
    "REMOVE_RAFT_VOTER": QUORUM,
    "CONSUMER_GROUP_HEARTBEAT": "names and regular expressions, static members, assignors `uniform` and"
    " `range`; a group changes its type only while it is empty",
    "STREAMS_GROUP_HEARTBEAT": "no static members, task offsets or changed topologies, as in Kafka 4.3.1;"
    " version 1 of Kafka 4.4 without topology descriptions (KIP-1331)",
    "INITIALIZE_SHARE_GROUP_STATE": "a repeated request changes nothing; Kafka begins again at the"
    " start offset",
    "READ_SHARE_GROUP_STATE": "for leaders of partitions",
    "WRITE_SHARE_GROUP_STATE": "for leaders of partitions; the start offset never falls in a state"
    " epoch; invalid state batches are refused",
    "DELETE_SHARE_GROUP_STATE": "for group coordinators",
    "READ_SHARE_GROUP_STATE_SUMMARY": "for group coordinators",
    "SHARE_GROUP_HEARTBEAT": "assignor `simple`",
    "SHARE_FETCH": "the limit of records in flight cuts a batch, so a batch may be acquired in parts;"
    " markers are never acquired",
    "ALTER_SHARE_GROUP_OFFSETS": "raises the group epoch, which Kafka does not",
    "GET_TELEMETRY_SUBSCRIPTIONS": "Kafka advertises it only with a metrics receiver",
    "PUSH_TELEMETRY": "Kafka advertises it only with a metrics receiver",
}
_MISSING_BY_WORD: Final[Mapping[str, str]] = {
    "ACLS": SECURITY,
    "DELEGATION": SECURITY,
    "QUOTAS": QUOTAS,
}


def apis_page(notice: str) -> str:
    """docs/compatibility-apis.md."""
    kafka, ours = kafka_ranges(), {row.key: (row.version_min, row.version_max) for row in advertised_apis()}
    lines = [
        "# APIs",
        "",
        notice,
        (
            "The APIs that Kafka 4.3.1 advertises to clients, and those that this broker handles. A broker"
            " advertises only handled APIs; a request for any other closes the connection, as in Kafka."
        ),
        "",
        f"{len(ours)} of {len(kafka)} APIs.",
        "",
        "| key | API | Kafka 4.3.1 | Ponor | remarks |",
        "|---:|---|---|---|---|",
    ]
    for key in sorted(kafka.keys() | ours.keys()):
        name = ApiKey(key).name
        mine = _range(ours[key]) if key in ours else "–"
        lines.append(
            f"| {key} | {_spoken(name)} | {_range(kafka[key])} | {mine} |"
            f" {remark(name, handled=key in ours)} |"
        )
    return "\n".join([*lines, ""])


def kafka_ranges() -> dict[int, tuple[int, int]]:
    """Read the version ranges of a recorded ApiVersions response of Kafka 4.3.1."""
    exchanges = json.loads(RECORDING.read_text(encoding="utf-8"))["exchanges"]
    rows = exchanges[0]["answer"]["body"]["api_keys"]
    return {row["api_key"]: (row["min_version"], row["max_version"]) for row in rows}


def remark(name: str, *, handled: bool) -> str:
    """Return the remark on an API."""
    if name in REMARKS:
        return REMARKS[name]
    if handled:
        return ""
    return next((why for word, why in _MISSING_BY_WORD.items() if word in name), "not supported yet")


def configs_page(notice: str) -> str:
    """docs/compatibility-configs.md."""
    definitions = [*TOPIC_CONFIGS.values(), *GROUP_CONFIGS.values(), *BROKER_CONFIGS.values()]
    effects = {effect: sum(each.effect is effect for each in definitions) for effect in Effect}
    lines = [
        "# Settings",
        "",
        notice,
        (
            "Every setting of topics, groups and brokers of Kafka 4.3.1 is described, and validated when it"
            " is set, as in Kafka. Effects in Ponor:"
        ),
        "",
        f"- **in force** ({effects[Effect.IN_FORCE]}): the same effect as in Kafka;",
        f"- **no effect** ({effects[Effect.NONE]}): the value is stored and shown, but not used;",
        f"- **fixed** ({effects[Effect.FIXED]}): the behaviour is always that of the default.",
        "",
        (
            "A broker setting that is in force is configured at the start under its name in Ponor"
            " ([settings](operations/settings.md)) or, if it is dynamic, with"
        ),
        (
            "`kafka-configs` for one broker or for all. Changes take effect within a second. A topic setting"
            " defaults to the listed broker settings."
        ),
        "",
        "## Topics",
        "",
        "| setting | default | valid | here | broker settings | meaning |",
        "|---|---|---|---|---|---|",
        *(_topic_row(definition) for definition in TOPIC_CONFIGS.values()),
        "",
        "## Groups",
        "",
        (
            "`kafka-configs --entity-type groups` changes them. Members get a new value with their next"
            " heartbeat. At most 10,000 groups have settings of their own."
        ),
        "",
        "| setting | default | valid | here | broker setting | meaning |",
        "|---|---|---|---|---|---|",
        *(_group_row(definition) for definition in GROUP_CONFIGS.values()),
        "",
        "## Brokers",
        "",
        "| setting | default | valid | changes | here | meaning |",
        "|---|---|---|---|---|---|",
        *(_broker_row(definition) for definition in BROKER_CONFIGS.values()),
        "",
    ]
    return "\n".join(lines)


def _topic_row(definition: ConfigDefinition) -> str:
    synonyms = ", ".join(f"`{each.name}`" for each in TOPIC_SYNONYMS.get(definition.name, ()))
    return _row([*_facts(definition), definition.effect.value, synonyms, _meaning(definition)])


def _group_row(definition: ConfigDefinition) -> str:
    name, default, valid = _facts(definition)
    limits = {
        each.is_lower: BROKER_CONFIGS[each.bound].default
        for each in GROUP_BOUNDS
        if each.name == definition.name
    }
    if limits:
        valid = f"{limits.get(True, '0')}..{limits.get(False, '')}"
    synonym = GROUP_SYNONYMS.get(definition.name)
    cells = [name, default, valid, definition.effect.value, f"`{synonym}`" if synonym else "", definition.doc]
    return _row(cells)


def _broker_row(definition: ConfigDefinition) -> str:
    changes = "" if definition.scope is Scope.READ_ONLY else definition.scope.value
    return _row([*_facts(definition), changes, definition.effect.value, _meaning(definition)])


def _facts(definition: ConfigDefinition) -> list[str]:
    default = f"`{definition.default}`" if definition.default else ""
    return [f"`{definition.name}`", default, "" if definition.rule is None else str(definition.rule)]


def _meaning(definition: ConfigDefinition) -> str:
    return definition.doc if not definition.note else f"{definition.doc} {definition.note.capitalize()}."


def _row(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _range(versions: tuple[int, int]) -> str:
    low, high = versions
    return str(low) if low == high else f"{low}–{high}"


def _spoken(name: str) -> str:
    return "".join(word.capitalize() for word in name.split("_"))
