"""Operations that create and delete access control lists. Brokers decide with them."""

from __future__ import annotations

from typing import Final

from ponor.controller.v1 import session_service_pb2 as wire
from ponor.metadata.v1 import records_pb2
from ponor_metadata.nouns.acls import ACLS, AclRow, acl_row
from ponor_metadata.nouns.cluster import TENANTS

from ponor_controller.kernel.decisions import Decision, Situation, invalid, require_count, require_role

ACLS_PER_OPERATION_MAX: Final = 500
NAME_CHARACTERS_MAX: Final = 1_024
"""Longest resource name, principal and host. Kafka accepts 32,767 bytes, but every broker keeps all ACLs in
memory."""


def create_acls(body: wire.CreateAcls, situation: Situation) -> Decision:
    """Create ACLs, all or none. Equal ACLs are created once."""
    require_role(situation, records_pb2.NODE_ROLE_BROKER)
    require_count(len(body.rules), ACLS_PER_OPERATION_MAX, "ACLs")
    present = situation.view[ACLS]
    new: dict[bytes, records_pb2.AclRule] = {}
    for rule in body.rules:
        row = _checked(rule, situation)
        if row.acl_id not in present:
            new[row.acl_id] = rule
    after, acls_max = len(present) + len(new), situation.settings.acls_max
    if new and after > acls_max:
        raise invalid(
            f"the cluster would have {after} ACLs; the maximum (acls_max) is {acls_max}; delete unused ones,"
            " or use prefixes"
        )
    return Decision(
        [records_pb2.Record(acl_created=records_pb2.AclCreated(rule=rule)) for rule in new.values()]
    )


def delete_acls(body: wire.DeleteAcls, situation: Situation) -> Decision:
    """Delete the named ACLs that exist; answer with their ids."""
    require_role(situation, records_pb2.NODE_ROLE_BROKER)
    require_count(len(body.acl_ids), ACLS_PER_OPERATION_MAX, "ACLs")
    present = situation.view[ACLS]
    ids = [acl_id for acl_id in dict.fromkeys(body.acl_ids) if acl_id in present]
    return Decision(
        [records_pb2.Record(acl_deleted=records_pb2.AclDeleted(acl_id=acl_id)) for acl_id in ids],
        wire.OperationResult(acls_deleted=wire.AclsDeleted(acl_ids=ids)),
    )


def _checked(rule: records_pb2.AclRule, situation: Situation) -> AclRow:
    """Return the row of a rule.

    Raises:
        OperationError: INVALID_REQUEST.
    """
    try:
        row = acl_row(rule)
    except ValueError as error:
        raise invalid(f"an ACL has an unknown type, operation or permission: {error}") from None
    if row.tenant_id not in situation.view[TENANTS]:
        raise invalid(f"there is no tenant {row.tenant_id!r}; create it first")
    if not row.name:
        raise invalid("an ACL does not name a resource")
    for text, what in ((row.name, "resource name"), (row.principal, "principal"), (row.host, "host")):
        if len(text) > NAME_CHARACTERS_MAX:
            raise invalid(
                f"the {what} of an ACL has {len(text)} characters; the limit is {NAME_CHARACTERS_MAX}"
            )
    return row
