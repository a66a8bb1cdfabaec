"""Stories about ACLs. They are not recorded, because the oracle's Kafka has no authorizer."""

from __future__ import annotations

from ponor_kafka.messages.create_acls import AclCreation, CreateAclsRequest
from ponor_kafka.messages.delete_acls import DeleteAclsFilter, DeleteAclsRequest
from ponor_kafka.messages.describe_acls import DescribeAclsRequest

from tests.oracle.narrator import Narrator
from tests.oracle.story import story

ANY, MATCH, LITERAL, PREFIXED = 1, 2, 3, 4
TOPIC, GROUP, CLUSTER, TRANSACTIONAL_ID, DELEGATION_TOKEN, USER = 2, 3, 4, 5, 6, 7
ALL, READ, WRITE, DESCRIBE = 2, 3, 4, 8
DENY, ALLOW = 2, 3
LATEST = 3


def creation(
    name: str,
    *,
    resource: int = TOPIC,
    pattern: int = LITERAL,
    principal: str = "User:alice",
    host: str = "*",
    operation: int = READ,
    permission: int = ALLOW,
) -> AclCreation:
    """An ACL to create."""
    return AclCreation(resource, name, pattern, principal, host, operation, permission)


def describe(
    name: str | None = None,
    *,
    resource: int = ANY,
    pattern: int = ANY,
    principal: str | None = None,
    host: str | None = None,
    operation: int = ANY,
    permission: int = ANY,
) -> DescribeAclsRequest:
    """A description."""
    return DescribeAclsRequest(resource, name, pattern, principal, host, operation, permission)


def deletion(
    name: str | None = None,
    *,
    resource: int = ANY,
    pattern: int = ANY,
    principal: str | None = None,
    host: str | None = None,
    operation: int = ANY,
    permission: int = ANY,
) -> DeleteAclsFilter:
    """A filter of ACLs to delete."""
    return DeleteAclsFilter(resource, name, pattern, principal, host, operation, permission)


@story("ACLs are created, described and deleted with every kind of filter")
def filters(k: Narrator) -> None:
    rules = [
        creation("orders"),
        creation("orders", operation=WRITE, permission=DENY, principal="User:bob"),
        creation("ord", pattern=PREFIXED, host="10.0.0.1"),
        creation("*", operation=DESCRIBE, principal="User:*"),
        creation("*", pattern=PREFIXED, operation=DESCRIBE),
        creation("readers", resource=GROUP),
        creation("kafka-cluster", resource=CLUSTER, operation=ALL),
        creation("tx", resource=TRANSACTIONAL_ID, operation=WRITE),
        creation("token", resource=DELEGATION_TOKEN, operation=DESCRIBE),
        creation("User:carol", resource=USER, operation=13),
    ]
    k.ask(CreateAclsRequest(rules), LATEST, "ten")
    k.ask(CreateAclsRequest([rules[0], rules[0], creation("new")]), LATEST, "two that exist, one new")
    for version in (1, 2, 3):
        k.ask(describe(resource=TOPIC), version, "topics")
    wanted = [
        ("all", describe()),
        ("groups", describe(resource=GROUP)),
        ("users", describe(resource=USER)),
        ("one name", describe("orders")),
        ("one name, literal", describe("orders", pattern=LITERAL, resource=TOPIC)),
        ("one name, prefixed", describe("orders", pattern=PREFIXED)),
        ("one prefix", describe("ord", pattern=PREFIXED)),
        ("matching a name", describe("orders", pattern=MATCH, resource=TOPIC)),
        ("matching a longer name", describe("orders-2", pattern=MATCH, resource=TOPIC)),
        ("matching the asterisk", describe("*", pattern=MATCH, resource=TOPIC)),
        ("the asterisk", describe("*", resource=TOPIC)),
        ("matching any name", describe(pattern=MATCH)),
        ("literal patterns", describe(pattern=LITERAL)),
        ("prefixed patterns", describe(pattern=PREFIXED)),
        ("a principal", describe(principal="User:bob")),
        ("every principal", describe(principal="User:*")),
        ("a host", describe(host="10.0.0.1")),
        ("any host", describe(host="*")),
        ("an operation", describe(operation=WRITE)),
        ("operation ALL", describe(operation=ALL)),
        ("denials", describe(permission=DENY)),
        ("the empty name", describe("")),
        ("an unknown resource type", describe(resource=99)),
        ("an unknown pattern type", describe(pattern=99)),
        ("an unknown operation", describe(operation=99)),
        ("an unknown permission", describe(permission=99)),
    ]
    for note, request in wanted:
        k.ask(request, LATEST, note)
    k.ask(DeleteAclsRequest([deletion("orders", principal="User:bob")]), 1, "one deleted")
    k.ask(DeleteAclsRequest([deletion("orders", principal="User:bob")]), 2, "nothing left to delete")
    k.ask(
        DeleteAclsRequest([deletion(resource=GROUP), deletion("readers"), deletion("none")]),
        LATEST,
        "two filters select the same",
    )
    k.ask(DeleteAclsRequest([deletion("orders-2", resource=TOPIC, pattern=MATCH)]), LATEST, "matching a name")
    k.ask(DeleteAclsRequest([]), LATEST, "no filter")
    k.ask(describe(), LATEST, "what is left")
    k.ask(DeleteAclsRequest([deletion()]), LATEST, "everything")
    k.ask(describe(), LATEST, "nothing is left")


@story("ACLs that cannot be created, filters that cannot be used")
def refusals(k: Narrator) -> None:
    broken = {
        "another name of the cluster": creation("c", resource=CLUSTER),
        "no name": creation(""),
        "resource type ANY": creation("x", resource=ANY),
        "resource type 99": creation("x", resource=99),
        "pattern type ANY": creation("x", pattern=ANY),
        "pattern type MATCH": creation("x", pattern=MATCH),
        "pattern type 99": creation("x", pattern=99),
        "operation ANY": creation("x", operation=ANY),
        "operation 99": creation("x", operation=99),
        "permission ANY": creation("x", permission=ANY),
        "permission 99": creation("x", permission=99),
        "a principal without a type": creation("x", principal="alice"),
        "an empty principal": creation("x", principal=""),
        "a principal of another type": creation("x", principal="Group:staff"),
        "an empty host": creation("x", host=""),
        "a host name": creation("x", host="host.example"),
        "an operation that the type does not support": creation("x", resource=GROUP, operation=9),
        "operation 15": creation("x", resource=TRANSACTIONAL_ID, operation=15),
    }
    for note, each in broken.items():
        k.ask(CreateAclsRequest([each]), LATEST, note)
    k.ask(
        CreateAclsRequest(
            [creation("good"), creation(""), creation("x", operation=99), creation("c", resource=CLUSTER)]
        ),
        LATEST,
        "one of four is valid",
    )
    k.ask(CreateAclsRequest([]), LATEST, "none")
    k.ask(describe(), LATEST, "what was created")
    for note, unknown in {
        "resource type 99": deletion(resource=99),
        "pattern type 99": deletion(pattern=99),
        "operation 99": deletion(operation=99),
        "permission 99": deletion(permission=99),
    }.items():
        k.ask(DeleteAclsRequest([unknown, deletion("none")]), LATEST, note)
    k.ask(DeleteAclsRequest([deletion()]), LATEST, "everything")


STORIES = (filters, refusals)
UNSET_IN_KAFKA = (
    "resource type ANY",
    "pattern type ANY",
    "pattern type MATCH",
    "operation ANY",
    "permission ANY",
)
"""Creations that Kafka answers with UNKNOWN_SERVER_ERROR, for all ACLs of the request. Ponor never answers
with this code."""
