"""The handlers of consumer group APIs. They translate between the wire and `ponor_broker.groups`."""

from __future__ import annotations

from ponor_runtime.clock import Clock

from ponor_broker.groups.coordinator import GroupCoordinator
from ponor_broker.groups.ports import TopicDirectory
from ponor_broker.handlers.groups.find_coordinator import FindCoordinatorHandler
from ponor_broker.handlers.groups.group_admin import GroupAdminHandlers
from ponor_broker.handlers.groups.group_membership import GroupMembershipHandlers
from ponor_broker.handlers.groups.group_offsets import GroupOffsetsHandlers, OffsetDeleteHandler
from ponor_broker.requests.api_handler import ApiHandler


def group_handlers(coordinator: GroupCoordinator, topics: TopicDirectory, clock: Clock) -> list[ApiHandler]:
    """Return the handlers of the eleven APIs of classic groups."""
    return [
        FindCoordinatorHandler(coordinator).api,
        *GroupMembershipHandlers(coordinator).apis,
        *GroupOffsetsHandlers(coordinator, topics, clock).apis,
        *GroupAdminHandlers(coordinator).apis,
        OffsetDeleteHandler(coordinator, topics).api,
    ]
