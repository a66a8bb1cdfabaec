"""The table of validators by kind of operation."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, Final, TypeAlias

from ponor.controller.v1 import session_service_pb2 as wire

from ponor_controller.domains.compaction.offering import Offering
from ponor_controller.domains.compaction.operations import (
    commit_compaction,
    end_compaction,
    lease_compaction,
    renew_compaction,
)
from ponor_controller.domains.moves.operations import cancel_moves, elect_moved, move_partitions
from ponor_controller.domains.nodes.operations import leave_cluster, set_drain
from ponor_controller.domains.objects.operations import claim_objects, confirm_deleted, prepare_objects
from ponor_controller.domains.objects.uploads import commit_upload
from ponor_controller.domains.security.acls import create_acls, delete_acls
from ponor_controller.domains.security.scram_credentials import alter_scram_credentials
from ponor_controller.domains.streams.operations import (
    close_streams,
    create_streams,
    delete_streams,
    open_streams,
    trim_streams,
)
from ponor_controller.domains.streams.wal_operations import close_wal, open_wal, verify_epoch
from ponor_controller.domains.topics.configs import (
    alter_broker_configs,
    alter_group_configs,
    alter_topic_configs,
)
from ponor_controller.domains.topics.keys import put_key, put_keys
from ponor_controller.domains.topics.operations import (
    allocate_producer_ids,
    create_partitions,
    create_topic,
    delete_topic,
)
from ponor_controller.kernel.decisions import Decision, Situation, Validate, invalid

Validator: TypeAlias = Callable[[Any, Situation], Decision]

VALIDATORS: Final[Mapping[str, Validator]] = {
    "create_streams": create_streams,
    "open_streams": open_streams,
    "close_streams": close_streams,
    "trim_streams": trim_streams,
    "delete_streams": delete_streams,
    "prepare_objects": prepare_objects,
    "commit_upload": commit_upload,
    "claim_objects": claim_objects,
    "confirm_deleted": confirm_deleted,
    "put_key": put_key,
    "put_keys": put_keys,
    "create_topic": create_topic,
    "delete_topic": delete_topic,
    "create_partitions": create_partitions,
    "alter_topic_configs": alter_topic_configs,
    "alter_broker_configs": alter_broker_configs,
    "alter_group_configs": alter_group_configs,
    "move_partitions": move_partitions,
    "cancel_moves": cancel_moves,
    "elect_moved": elect_moved,
    "allocate_producer_ids": allocate_producer_ids,
    "open_wal": open_wal,
    "close_wal": close_wal,
    "verify_epoch": verify_epoch,
    "set_drain": set_drain,
    "leave_cluster": leave_cluster,
    "renew_compaction": renew_compaction,
    "alter_scram_credentials": alter_scram_credentials,
    "create_acls": create_acls,
    "delete_acls": delete_acls,
}


def validator_of_all(offers: Offering) -> Validate:
    """Return a validator for operations of all kinds; `offers` provides the compaction tasks."""
    validators: dict[str, Validator] = {
        **VALIDATORS,
        "lease_compaction": partial(lease_compaction, offers=offers),
        "commit_compaction": partial(commit_compaction, offers=offers),
        "end_compaction": partial(end_compaction, offers=offers),
    }

    def validate(operation: wire.Operation, situation: Situation, kind: str | None) -> Decision:
        if kind is None:
            raise invalid("the operation has an unknown kind; upgrade the controller first")
        if operation.traceparent:
            situation = replace(situation, traceparent=operation.traceparent)
        return validators[kind](getattr(operation, kind), situation)

    return validate
