"""The APIs of groups: versions and handlers. They translate between the wire and
`ponor_broker.groups`.
"""

from __future__ import annotations

from ponor_kafka.api import ApiKey
from ponor_runtime.clock import Clock

from ponor_broker.coordination.ports import TopicDirectory
from ponor_broker.coordination.share_persister import SharePersister
from ponor_broker.coordination.transactional_append import Verification
from ponor_broker.groups.coordinator import GroupCoordinator
from ponor_broker.handlers.groups.consumer_group_describe import ConsumerGroupDescribeHandler
from ponor_broker.handlers.groups.consumer_group_heartbeat import ConsumerGroupHeartbeatHandler
from ponor_broker.handlers.groups.group_admin import GroupAdminHandlers
from ponor_broker.handlers.groups.group_membership import GroupMembershipHandlers
from ponor_broker.handlers.groups.group_offsets import GroupOffsetsHandlers
from ponor_broker.handlers.groups.share_group_membership import ShareGroupMembershipHandlers
from ponor_broker.handlers.groups.share_group_offsets import EndOffsetsPort, ShareGroupOffsetsHandlers
from ponor_broker.handlers.groups.streams_group_describe import StreamsGroupDescribeHandler
from ponor_broker.handlers.groups.streams_group_heartbeat import StreamsGroupHeartbeatHandler
from ponor_broker.handlers.groups.transactional_offsets import TransactionalOffsetsHandler
from ponor_broker.requests.api_handler import ApiHandler, Handle, WhenFenced
from ponor_broker.transactions.verification import TransactionVerifier


def group_handlers(
    coordinator: GroupCoordinator,
    topics: TopicDirectory,
    clock: Clock,
    verifier: TransactionVerifier[Verification] | None = None,
) -> list[ApiHandler]:
    """Return the handlers of the APIs of classic groups and consumer groups."""
    members = GroupMembershipHandlers(coordinator)
    offsets = GroupOffsetsHandlers(coordinator, topics, clock)
    admin = GroupAdminHandlers(coordinator)
    consumers = ConsumerGroupHeartbeatHandler(coordinator)
    describe_consumers = ConsumerGroupDescribeHandler(coordinator, topics)
    streams = StreamsGroupHeartbeatHandler(coordinator)
    describe_streams = StreamsGroupDescribeHandler(coordinator)
    rows: tuple[tuple[ApiKey, int, int, Handle], ...] = (
        (ApiKey.JOIN_GROUP, 0, 9, members.join),
        (ApiKey.SYNC_GROUP, 0, 5, members.sync),
        (ApiKey.HEARTBEAT, 0, 4, members.heartbeat),
        (ApiKey.LEAVE_GROUP, 0, 5, members.leave),
        (ApiKey.OFFSET_COMMIT, 2, 10, offsets.commit),
        (ApiKey.OFFSET_FETCH, 1, 10, offsets.fetch),
        (ApiKey.OFFSET_DELETE, 0, 0, offsets.delete),
        (ApiKey.DESCRIBE_GROUPS, 0, 6, admin.describe),
        (ApiKey.LIST_GROUPS, 0, 5, admin.list_groups),
        (ApiKey.DELETE_GROUPS, 0, 3, admin.delete),
        (ApiKey.CONSUMER_GROUP_HEARTBEAT, 0, 1, consumers.handle),
        (ApiKey.CONSUMER_GROUP_DESCRIBE, 0, 1, describe_consumers.handle),
        (ApiKey.STREAMS_GROUP_HEARTBEAT, 0, 1, streams.handle),
        (ApiKey.STREAMS_GROUP_DESCRIBE, 0, 0, describe_streams.handle),
    )
    if verifier is not None:
        transactional = TransactionalOffsetsHandler(coordinator, topics, clock, verifier)
        rows = (*rows, (ApiKey.TXN_OFFSET_COMMIT, 0, 5, transactional.commit))
    return [ApiHandler(*row, when_fenced=WhenFenced.REFUSES) for row in rows]


def share_group_handlers(
    coordinator: GroupCoordinator, persister: SharePersister, topics: TopicDirectory, ends: EndOffsetsPort
) -> list[ApiHandler]:
    """Return the handlers of the APIs of share groups."""
    members = ShareGroupMembershipHandlers(coordinator, topics)
    offsets = ShareGroupOffsetsHandlers(coordinator, persister, topics, ends)
    rows: tuple[tuple[ApiKey, int, int, Handle], ...] = (
        (ApiKey.SHARE_GROUP_HEARTBEAT, 1, 1, members.heartbeat),
        (ApiKey.SHARE_GROUP_DESCRIBE, 1, 1, members.describe),
        (ApiKey.DESCRIBE_SHARE_GROUP_OFFSETS, 0, 1, offsets.describe),
        (ApiKey.ALTER_SHARE_GROUP_OFFSETS, 0, 0, offsets.alter),
        (ApiKey.DELETE_SHARE_GROUP_OFFSETS, 0, 0, offsets.delete),
    )
    return [ApiHandler(*row, when_fenced=WhenFenced.REFUSES) for row in rows]
