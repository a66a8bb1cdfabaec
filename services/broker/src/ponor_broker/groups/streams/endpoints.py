"""Which instance of the application has the records of which partitions, for interactive queries."""

from __future__ import annotations

from collections.abc import Collection

from ponor_broker.groups.streams.assignment import TaskId
from ponor_broker.groups.streams.configured_topology import PartitionsOf
from ponor_broker.groups.streams.events import EndpointPartitions
from ponor_broker.groups.streams.record_codec import by_subtopology
from ponor_broker.groups.streams.state import StreamsState
from ponor_broker.groups.streams.topology import Topology


class Endpoints:
    """The endpoints of one group. Rows are computed once and kept until the member's tasks change."""

    def __init__(self, contents: StreamsState) -> None:
        self._contents = contents
        self._rows: dict[str, EndpointPartitions] = {}
        self.epoch = 0
        """Raised when the tasks of an instance with an endpoint change. A load begins again at 0."""

    def changed(self, member_id: str) -> None:
        """Note that the tasks of a member changed."""
        self.forget(member_id)
        member = self._contents.members.get(member_id)
        if member is not None and member.endpoint is not None:
            self.epoch += 1

    def forget(self, member_id: str) -> None:
        """Compute the row of a member again."""
        self._rows.pop(member_id, None)

    def clear(self) -> None:
        """Compute all rows again, because an event was undone or topics changed."""
        self._rows.clear()

    def rows(self, partitions_of: PartitionsOf) -> tuple[EndpointPartitions, ...]:
        """Return the partitions of each member with an endpoint."""
        contents = self._contents
        for member_id, member in contents.members.items():
            if member.endpoint is not None and member_id not in self._rows and contents.topology is not None:
                tasks = contents.current_of(member_id).tasks
                self._rows[member_id] = EndpointPartitions(
                    member.endpoint,
                    _partitions(tasks.active, contents.topology, partitions_of),
                    _partitions(tasks.standby, contents.topology, partitions_of),
                )
        return tuple(self._rows[member_id] for member_id in contents.members if member_id in self._rows)


def _partitions(
    tasks: Collection[TaskId], topology: Topology, partitions_of: PartitionsOf
) -> dict[str, list[int]]:
    """Return the partitions that tasks read. A topic may have fewer partitions than its subtopology tasks."""
    sources = {each.subtopology_id: each.sources for each in topology.subtopologies}
    found: dict[str, list[int]] = {}
    for subtopology_id, indexes in by_subtopology(tasks):
        for name in sources.get(subtopology_id, ()):
            count = partitions_of(name) or 0
            kept = [index for index in indexes if index < count]
            if kept:
                found.setdefault(name, []).extend(kept)
    return found
