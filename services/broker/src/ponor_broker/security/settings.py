"""Settings of authentication and authorization, with Kafka's defaults."""

from __future__ import annotations

from dataclasses import dataclass

from ponor_runtime.settings import setting


@dataclass(frozen=True, slots=True)
class SecuritySettings:
    """Who may do what. Each `doc` names Kafka's setting, if there is one."""

    acls_enabled: bool = setting(
        False,
        doc="Kafka's authorizer.class.name: whether the ACL APIs manage access control lists. They do not"
        " authorize requests yet.",
    )
    super_users: str = setting(
        "", doc="Kafka's super.users: principals that may do everything, separated by semicolons."
    )
    allow_everyone_if_no_acl_found: bool = setting(
        False, doc="Kafka's allow.everyone.if.no.acl.found: whether resources without ACLs are open to all."
    )
    reauthentication_ms_max: int = setting(
        0,
        within=(0, 365 * 86_400_000),
        doc="Kafka's connections.max.reauth.ms: time after which a client must authenticate again with SASL;"
        " 0: never.",
    )
