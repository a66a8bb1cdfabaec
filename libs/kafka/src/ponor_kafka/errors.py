"""Kafka's error codes, and the exceptions of this package.

Codes and retriability follow Apache Kafka 4.4 (`Errors` and the class of the Java exception). The
descriptions are not Kafka's texts.
"""

from enum import IntEnum
from typing import Final, Self


class KafkaWireError(ValueError):
    """Bytes from a peer violate the protocol. Close the connection."""


class KafkaEncodeError(ValueError):
    """A message cannot be encoded in the requested version: a bug of the caller, never caused by a peer."""


_RETRY: Final = True
_STOP: Final = False


class ErrorCode(IntEnum):
    """Every error code of a response. `retriable` tells whether clients retry."""

    retriable: bool
    meaning: str

    def __new__(cls, value: int, retriable: bool = False, meaning: str = "") -> Self:
        member = int.__new__(cls, value)
        member._value_ = value
        member.retriable = retriable
        member.meaning = meaning
        return member

    UNKNOWN_SERVER_ERROR = -1, _STOP, "unexpected error in the broker"
    NONE = 0, _STOP, "success"
    OFFSET_OUT_OF_RANGE = 1, _STOP, "the log has no such offset"
    CORRUPT_MESSAGE = 2, _RETRY, "the batch's checksum or shape is wrong"
    UNKNOWN_TOPIC_OR_PARTITION = 3, _RETRY, "the broker does not know the topic or partition"
    INVALID_FETCH_SIZE = 4, _STOP, "the fetch size is invalid"
    LEADER_NOT_AVAILABLE = 5, _RETRY, "the partition has no leader yet"
    NOT_LEADER_OR_FOLLOWER = 6, _RETRY, "another broker owns the partition"
    REQUEST_TIMED_OUT = 7, _RETRY, "the request timed out"
    BROKER_NOT_AVAILABLE = 8, _STOP, "the broker is not available"
    REPLICA_NOT_AVAILABLE = 9, _RETRY, "the replica cannot serve now"
    MESSAGE_TOO_LARGE = 10, _STOP, "the batch is larger than the topic allows"
    STALE_CONTROLLER_EPOCH = 11, _STOP, "the request comes from a former controller"
    OFFSET_METADATA_TOO_LARGE = 12, _STOP, "the metadata of a committed offset is too long"
    NETWORK_EXCEPTION = 13, _RETRY, "the connection broke before the response"
    COORDINATOR_LOAD_IN_PROGRESS = 14, _RETRY, "the coordinator is still loading its log"
    COORDINATOR_NOT_AVAILABLE = 15, _RETRY, "there is no coordinator yet"
    NOT_COORDINATOR = 16, _RETRY, "another broker is the coordinator"
    INVALID_TOPIC_EXCEPTION = (
        17,
        _STOP,
        "the topic's name is invalid, or the operation is not allowed on the topic",
    )
    RECORD_LIST_TOO_LARGE = 18, _STOP, "the batch is larger than a segment"
    NOT_ENOUGH_REPLICAS = 19, _RETRY, "too few replicas are in sync; nothing was written"
    NOT_ENOUGH_REPLICAS_AFTER_APPEND = 20, _RETRY, "the batch was written, but to too few replicas"
    INVALID_REQUIRED_ACKS = 21, _STOP, "acks is not 0, 1 or -1"
    ILLEGAL_GENERATION = 22, _STOP, "the member's generation is outdated"
    INCONSISTENT_GROUP_PROTOCOL = 23, _STOP, "the member and its group have no common protocol"
    INVALID_GROUP_ID = 24, _STOP, "the group id is empty or not allowed"
    UNKNOWN_MEMBER_ID = 25, _STOP, "the group has no such member"
    INVALID_SESSION_TIMEOUT = 26, _STOP, "the session timeout is outside the broker's limits"
    REBALANCE_IN_PROGRESS = 27, _STOP, "the group is rebalancing; the member should rejoin"
    INVALID_COMMIT_OFFSET_SIZE = 28, _STOP, "the commit is too large"
    TOPIC_AUTHORIZATION_FAILED = 29, _STOP, "not allowed on this topic"
    GROUP_AUTHORIZATION_FAILED = 30, _STOP, "not allowed on this group"
    CLUSTER_AUTHORIZATION_FAILED = 31, _STOP, "not allowed on the cluster"
    INVALID_TIMESTAMP = 32, _STOP, "a record's timestamp is outside the topic's limits"
    UNSUPPORTED_SASL_MECHANISM = 33, _STOP, "the broker does not offer this mechanism"
    ILLEGAL_SASL_STATE = 34, _STOP, "not allowed in this state of the authentication"
    UNSUPPORTED_VERSION = 35, _STOP, "the broker does not support this version"
    TOPIC_ALREADY_EXISTS = 36, _STOP, "the topic already exists"
    INVALID_PARTITIONS = 37, _STOP, "the partition count is not allowed"
    INVALID_REPLICATION_FACTOR = 38, _STOP, "the replication factor is not allowed"
    INVALID_REPLICA_ASSIGNMENT = 39, _STOP, "the replica assignment is not allowed"
    INVALID_CONFIG = 40, _STOP, "a setting is unknown or its value is invalid"
    NOT_CONTROLLER = 41, _RETRY, "this node is not the controller"
    INVALID_REQUEST = 42, _STOP, "the request is inconsistent or violates the protocol"
    UNSUPPORTED_FOR_MESSAGE_FORMAT = 43, _STOP, "the record format does not support this"
    POLICY_VIOLATION = 44, _STOP, "a policy of the cluster forbids it"
    OUT_OF_ORDER_SEQUENCE_NUMBER = 45, _STOP, "the producer skipped a sequence number"
    DUPLICATE_SEQUENCE_NUMBER = 46, _STOP, "the batch was already appended"
    INVALID_PRODUCER_EPOCH = 47, _STOP, "a newer instance of the producer exists"
    INVALID_TXN_STATE = 48, _STOP, "the transaction is in another state"
    INVALID_PRODUCER_ID_MAPPING = 49, _STOP, "the producer id does not belong to this transactional id"
    INVALID_TRANSACTION_TIMEOUT = 50, _STOP, "the transaction timeout exceeds the broker's limit"
    CONCURRENT_TRANSACTIONS = 51, _RETRY, "the previous transaction of this id is still completing"
    TRANSACTION_COORDINATOR_FENCED = 52, _STOP, "the marker comes from a former coordinator"
    TRANSACTIONAL_ID_AUTHORIZATION_FAILED = 53, _STOP, "not allowed on this transactional id"
    SECURITY_DISABLED = 54, _STOP, "security features are disabled"
    OPERATION_NOT_ATTEMPTED = 55, _STOP, "not attempted because another part of the request failed"
    KAFKA_STORAGE_ERROR = 56, _RETRY, "the storage failed"
    LOG_DIR_NOT_FOUND = 57, _STOP, "no such log directory"
    SASL_AUTHENTICATION_FAILED = 58, _STOP, "the credentials were refused"
    UNKNOWN_PRODUCER_ID = 59, _STOP, "the producer id is unknown"
    REASSIGNMENT_IN_PROGRESS = 60, _STOP, "a reassignment of the partition is in progress"
    DELEGATION_TOKEN_AUTH_DISABLED = 61, _STOP, "delegation tokens are disabled"
    DELEGATION_TOKEN_NOT_FOUND = 62, _STOP, "no such delegation token"
    DELEGATION_TOKEN_OWNER_MISMATCH = 63, _STOP, "the token belongs to another principal"
    DELEGATION_TOKEN_REQUEST_NOT_ALLOWED = 64, _STOP, "tokens are not available on this connection"
    DELEGATION_TOKEN_AUTHORIZATION_FAILED = 65, _STOP, "not allowed on this token"
    DELEGATION_TOKEN_EXPIRED = 66, _STOP, "the token has expired"
    INVALID_PRINCIPAL_TYPE = 67, _STOP, "no such kind of principal"
    NON_EMPTY_GROUP = 68, _STOP, "the group has members"
    GROUP_ID_NOT_FOUND = 69, _STOP, "no such group"
    FETCH_SESSION_ID_NOT_FOUND = 70, _RETRY, "no such fetch session"
    INVALID_FETCH_SESSION_EPOCH = 71, _RETRY, "the fetch session is at another epoch"
    LISTENER_NOT_FOUND = 72, _RETRY, "the leader has no listener of the requested name"
    TOPIC_DELETION_DISABLED = 73, _STOP, "topic deletion is disabled"
    FENCED_LEADER_EPOCH = 74, _RETRY, "the client's leader epoch is older than the broker's"
    UNKNOWN_LEADER_EPOCH = 75, _RETRY, "the client's leader epoch is newer than the broker's"
    UNSUPPORTED_COMPRESSION_TYPE = 76, _STOP, "the codec cannot be used in this version"
    STALE_BROKER_EPOCH = 77, _STOP, "the broker has registered again since"
    OFFSET_NOT_AVAILABLE = 78, _RETRY, "the new leader does not know the high watermark yet"
    MEMBER_ID_REQUIRED = 79, _STOP, "join again with the returned member id"
    PREFERRED_LEADER_NOT_AVAILABLE = 80, _RETRY, "the preferred leader is down"
    GROUP_MAX_SIZE_REACHED = 81, _STOP, "the group is full"
    FENCED_INSTANCE_ID = 82, _STOP, "another member took over the instance id"
    ELIGIBLE_LEADERS_NOT_AVAILABLE = 83, _RETRY, "no eligible replica is alive"
    ELECTION_NOT_NEEDED = 84, _RETRY, "the partition already has the right leader"
    NO_REASSIGNMENT_IN_PROGRESS = 85, _STOP, "no reassignment is in progress"
    GROUP_SUBSCRIBED_TO_TOPIC = 86, _STOP, "the group is still subscribed to the topic"
    INVALID_RECORD = 87, _STOP, "a record violates a rule of the topic"
    UNSTABLE_OFFSET_COMMIT = 88, _RETRY, "a transaction that commits offsets is still open"
    THROTTLING_QUOTA_EXCEEDED = 89, _RETRY, "the quota is exceeded"
    PRODUCER_FENCED = 90, _STOP, "a newer producer uses the transactional id"
    RESOURCE_NOT_FOUND = 91, _STOP, "no such resource"
    DUPLICATE_RESOURCE = 92, _STOP, "the request names a resource twice"
    UNACCEPTABLE_CREDENTIAL = 93, _STOP, "the credential does not meet the rules"
    INCONSISTENT_VOTER_SET = 94, _STOP, "the voters of sender and receiver differ"
    INVALID_UPDATE_VERSION = 95, _STOP, "the update version is not allowed"
    FEATURE_UPDATE_FAILED = 96, _STOP, "the feature level cannot be changed"
    PRINCIPAL_DESERIALIZATION_FAILURE = 97, _STOP, "a forwarded principal cannot be read"
    SNAPSHOT_NOT_FOUND = 98, _STOP, "no such snapshot"
    POSITION_OUT_OF_RANGE = 99, _STOP, "the position is outside the snapshot"
    UNKNOWN_TOPIC_ID = 100, _RETRY, "no topic has this id"
    DUPLICATE_BROKER_REGISTRATION = 101, _STOP, "a broker with this id is registered and alive"
    BROKER_ID_NOT_REGISTERED = 102, _STOP, "no broker of this id is registered"
    INCONSISTENT_TOPIC_ID = 103, _RETRY, "the topic was recreated with another id"
    INCONSISTENT_CLUSTER_ID = 104, _STOP, "the request is for another cluster"
    TRANSACTIONAL_ID_NOT_FOUND = 105, _STOP, "no such transactional id"
    FETCH_SESSION_TOPIC_ID_ERROR = 106, _RETRY, "a fetch session mixes topic names and ids"
    INELIGIBLE_REPLICA = 107, _STOP, "the replica may not join the in-sync set"
    NEW_LEADER_ELECTED = 108, _STOP, "the change made another broker leader"
    OFFSET_MOVED_TO_TIERED_STORAGE = 109, _STOP, "the offset is in remote storage"
    FENCED_MEMBER_EPOCH = 110, _STOP, "the member's epoch is fenced; join again"
    UNRELEASED_INSTANCE_ID = 111, _STOP, "another member still holds the instance id"
    UNSUPPORTED_ASSIGNOR = 112, _STOP, "the broker has no such assignor"
    STALE_MEMBER_EPOCH = 113, _STOP, "the member's epoch is outdated"
    MISMATCHED_ENDPOINT_TYPE = 114, _STOP, "the request went to the wrong kind of endpoint"
    UNSUPPORTED_ENDPOINT_TYPE = 115, _STOP, "no such kind of endpoint"
    UNKNOWN_CONTROLLER_ID = 116, _STOP, "no such controller"
    UNKNOWN_SUBSCRIPTION_ID = 117, _STOP, "the telemetry subscription is outdated"
    TELEMETRY_TOO_LARGE = 118, _STOP, "the telemetry is larger than allowed"
    INVALID_REGISTRATION = 119, _STOP, "the registration is not allowed"
    TRANSACTION_ABORTABLE = 120, _STOP, "the transaction must be aborted; the producer may continue"
    INVALID_RECORD_STATE = 121, _STOP, "the record is not acquired by this share consumer"
    SHARE_SESSION_NOT_FOUND = 122, _RETRY, "no such share session"
    INVALID_SHARE_SESSION_EPOCH = 123, _RETRY, "the share session is at another epoch"
    FENCED_STATE_EPOCH = 124, _STOP, "the share state has a newer owner"
    INVALID_VOTER_KEY = 125, _STOP, "the voter key is not the receiver's"
    DUPLICATE_VOTER = 126, _STOP, "the voter is already in the set"
    VOTER_NOT_FOUND = 127, _STOP, "the voter is not in the set"
    INVALID_REGULAR_EXPRESSION = 128, _STOP, "the regular expression is invalid"
    REBOOTSTRAP_REQUIRED = 129, _STOP, "the client must rebootstrap"
    STREAMS_INVALID_TOPOLOGY = 130, _STOP, "the streams topology is invalid"
    STREAMS_INVALID_TOPOLOGY_EPOCH = 131, _STOP, "the streams topology epoch is invalid"
    STREAMS_TOPOLOGY_FENCED = 132, _STOP, "the streams topology epoch is outdated"
    SHARE_SESSION_LIMIT_REACHED = 133, _RETRY, "the broker has no room for more share sessions"
    GROUP_DELETION_FAILED = 134, _STOP, "the group could not be deleted"
    STREAMS_TOPOLOGY_DESCRIPTION_UPDATE_FAILED = 135, _STOP, "the streams topology description was not stored"
    CONTROLLER_ID_NOT_REGISTERED = 136, _STOP, "no controller of this id is registered"


def error_of(code: int) -> ErrorCode:
    """Return the error code. A code of a newer broker becomes UNKNOWN_SERVER_ERROR, which is not
    retriable.
    """
    try:
        return ErrorCode(code)
    except ValueError:
        return ErrorCode.UNKNOWN_SERVER_ERROR
