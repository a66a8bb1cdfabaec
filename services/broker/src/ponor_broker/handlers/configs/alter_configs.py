"""AlterConfigs and IncrementalAlterConfigs: changes of the configs of topics, brokers and groups
(KIP-133, KIP-226, KIP-339, KIP-848).

The controller applies the changes, one operation per resource, so a refused resource does not delay
the others.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Final, TypeAlias

from ponor_kafka.configs.changes import ChangeKind, ConfigChange
from ponor_kafka.errors import ErrorCode
from ponor_kafka.messages import alter_configs, incremental_alter_configs
from ponor_metadata.nouns.nodes import ALL_BROKERS

from ponor_broker.handlers.configs.config_resources import ResourceType, require_broker, require_topic_name
from ponor_broker.partitions.errors import PartitionError
from ponor_broker.partitions.topics.topic_admin import TopicAdmin
from ponor_broker.partitions.topics.topics import Topics
from ponor_broker.requests.api_handler import RequestContext
from ponor_broker.requests.bounded_gather import bounded_gather

CHANGE_KINDS: Final = frozenset(int(kind) for kind in ChangeKind)


Changes: TypeAlias = Sequence[tuple[str, int, str | None]]
"""Name, kind and value of each config of one resource."""
Row: TypeAlias = tuple[ErrorCode, str | None, int, str]
"""Code, message, type and name of one resource of an answer."""


class AlterConfigsHandler:
    """Sends changes to the controller."""

    def __init__(self, topics: Topics, admin: TopicAdmin, *, node_id: int) -> None:
        self._topics = topics
        self._admin = admin
        self._node_id = node_id

    async def replace(
        self, request: alter_configs.AlterConfigsRequest, _: RequestContext
    ) -> alter_configs.AlterConfigsResponse:
        """Replace all configs of a resource; configs that the request does not name get their defaults."""
        wanted = [
            (
                each.resource_type,
                each.resource_name,
                [(row.name, ChangeKind.SET, row.value) for row in each.configs],
            )
            for each in request.resources
        ]
        rows = await self._alter_all(wanted, replace=True, validate_only=request.validate_only)
        return alter_configs.AlterConfigsResponse(
            responses=[alter_configs.AlterConfigsResourceResponse(*row) for row in rows]
        )

    async def change(
        self, request: incremental_alter_configs.IncrementalAlterConfigsRequest, _: RequestContext
    ) -> incremental_alter_configs.IncrementalAlterConfigsResponse:
        """Change the named configs of a resource; the others stay."""
        wanted = [
            (
                each.resource_type,
                each.resource_name,
                [(row.name, row.config_operation, row.value) for row in each.configs],
            )
            for each in request.resources
        ]
        rows = await self._alter_all(wanted, replace=False, validate_only=request.validate_only)
        return incremental_alter_configs.IncrementalAlterConfigsResponse(
            responses=[incremental_alter_configs.AlterConfigsResourceResponse(*row) for row in rows]
        )

    async def _alter_all(
        self, wanted: Sequence[tuple[int, str, Changes]], *, replace: bool, validate_only: bool
    ) -> list[Row]:
        times = Counter((kind, name) for kind, name, _ in wanted)

        async def alter(kind: int, name: str, changes: Changes) -> Row:
            try:
                if times[kind, name] > 1:
                    raise PartitionError(ErrorCode.INVALID_REQUEST, "Each resource must appear at most once.")
                await self._alter(kind, name, _checked(changes), replace=replace, validate_only=validate_only)
            except PartitionError as error:
                return error.code, str(error), kind, name
            return ErrorCode.NONE, None, kind, name

        return await bounded_gather(alter(*each) for each in wanted)

    async def _alter(
        self, kind: int, name: str, changes: list[ConfigChange], *, replace: bool, validate_only: bool
    ) -> None:
        if kind == ResourceType.TOPIC:
            if name == "":
                raise PartitionError(ErrorCode.INVALID_REQUEST, "Default topic resources are not allowed.")
            require_topic_name(name)
            topic = self._topics.by_name(name)
            if topic is None:
                raise PartitionError(
                    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"The topic '{name}' does not exist."
                )
            await self._admin.alter_topic_configs(
                topic.topic_id, changes, replace=replace, validate_only=validate_only
            )
        elif kind == ResourceType.BROKER:
            if name != "":
                require_broker(name, self._node_id)
            await self._admin.alter_broker_configs(
                self._node_id if name else ALL_BROKERS, changes, replace=replace, validate_only=validate_only
            )
        elif kind == ResourceType.GROUP:
            if name == "":
                raise PartitionError(ErrorCode.INVALID_REQUEST, "Default group resources are not allowed.")
            await self._admin.alter_group_configs(name, changes, replace=replace, validate_only=validate_only)
        else:
            raise PartitionError(
                ErrorCode.INVALID_REQUEST, f"configs of resource type {kind} are not supported"
            )


def _checked(changes: Changes) -> list[ConfigChange]:
    """Check the changes of one resource and return them.

    Raises:
        PartitionError: with Kafka's message, for a change that is invalid for every config.
    """
    times = Counter(name for name, _, _ in changes)
    if any(count > 1 for count in times.values()):
        raise PartitionError(ErrorCode.INVALID_REQUEST, "Error due to duplicate config keys")
    unknown = [name for name, kind, _ in changes if kind not in CHANGE_KINDS]
    if unknown:
        raise PartitionError(
            ErrorCode.INVALID_REQUEST, f"Unknown operation on config keys: {','.join(unknown)}"
        )
    null = [name for name, kind, value in changes if value is None and kind != ChangeKind.DELETE]
    if null:
        raise PartitionError(ErrorCode.INVALID_REQUEST, f"Null value not supported for : {','.join(null)}")
    return [ConfigChange(name, ChangeKind(kind), value or "") for name, kind, value in changes]
