"""ACLs of a cluster without an authorizer."""

from __future__ import annotations

from ponor_kafka.messages.create_acls import AclCreation, CreateAclsRequest
from ponor_kafka.messages.delete_acls import DeleteAclsFilter, DeleteAclsRequest
from ponor_kafka.messages.describe_acls import DescribeAclsRequest

from tests.oracle.narrator import Narrator
from tests.oracle.story import story

TOPIC, LITERAL, READ, ALLOW, ANY = 2, 3, 3, 3, 1


@story("ACLs are described, created and deleted without an authorizer")
def acls(k: Narrator) -> None:
    creation = AclCreation(TOPIC, "orders", LITERAL, "User:alice", "*", READ, ALLOW)
    wanted = DeleteAclsFilter(TOPIC, "orders", LITERAL, None, None, ANY, ANY)
    for version in (1, 2, 3):
        k.ask(DescribeAclsRequest(ANY, None, ANY, None, None, ANY, ANY), version, "all")
        k.ask(CreateAclsRequest([creation, creation]), version, "two")
        k.ask(DeleteAclsRequest([wanted]), version, "one filter")
