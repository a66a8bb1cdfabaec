"""Random rule sets put to a real Kafka: the authorizer decides as Kafka does.

Kafka's decisions are read from its answers: authorized operations of topics, groups, the cluster (KIP-430),
error codes for resources that a client must not describe, and InitProducerId (KIP-679).
"""

from __future__ import annotations

import random
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any, Final, NamedTuple

import pytest
from ponor.metadata.v1.records_pb2 import AclRule
from ponor_broker.security.authorizer import CLUSTER_NAME, Authorizer
from ponor_kafka.codec import decode_response, encode
from ponor_kafka.errors import ErrorCode
from ponor_kafka.headers import decode_response_header, encode_request_header
from ponor_kafka.message import Message
from ponor_kafka.messages.create_acls import AclCreation, CreateAclsRequest
from ponor_kafka.messages.create_topics import CreatableTopic, CreateTopicsRequest
from ponor_kafka.messages.delete_acls import DeleteAclsFilter, DeleteAclsRequest
from ponor_kafka.messages.describe_acls import DescribeAclsRequest
from ponor_kafka.messages.describe_cluster import DescribeClusterRequest
from ponor_kafka.messages.describe_groups import DescribeGroupsRequest
from ponor_kafka.messages.find_coordinator import FindCoordinatorRequest
from ponor_kafka.messages.init_producer_id import InitProducerIdRequest
from ponor_kafka.messages.metadata import MetadataRequest, MetadataRequestTopic
from ponor_kafka.messages.sasl_authenticate import SaslAuthenticateRequest
from ponor_kafka.messages.sasl_handshake import SaslHandshakeRequest
from ponor_metadata.image.image import MetadataImage
from ponor_metadata.nouns.acls import (
    ACLS,
    AclOperation,
    AclPermission,
    PatternType,
    ResourceType,
    acl_row,
)
from ponor_runtime.turns import at_once

from tests.peers.kafka_peer import KafkaPeer
from tests.ports import free_port

pytestmark = [pytest.mark.usefixtures("kafka_tools"), pytest.mark.timeout(1_800)]

RULE_SETS: Final = 25
QUESTIONS: Final = 12
WAIT_S_MAX: Final = 120.0
ANY: Final = 1
NAMES: Final = ("orders", "orders-1", "orders-1-a", "o", "payments", "hardcode")
PATTERNS: Final = ("*", "o", "orders", "orders-", "orders-1", "p", "pay", "payments", "hard", "x")
USERS: Final = ("alice", "bob")
HOSTS: Final = ("127.0.0.1", "127.0.0.2")
OPERATIONS: Final = tuple(AclOperation)
TOPIC, GROUP, CLUSTER = ResourceType.TOPIC, ResourceType.GROUP, ResourceType.CLUSTER
REFUSED: Final = {TOPIC: ErrorCode.TOPIC_AUTHORIZATION_FAILED, GROUP: ErrorCode.GROUP_AUTHORIZATION_FAILED}


class Client:
    """A connection from an address of this machine, authenticated with PLAIN unless the user is empty."""

    def __init__(self, port: int, user: str = "", host: str = HOSTS[0]) -> None:
        self.principal, self.host = f"User:{user}", host
        self._socket = socket.create_connection(("127.0.0.1", port), WAIT_S_MAX, source_address=(host, 0))
        if user:
            self.ask(SaslHandshakeRequest("PLAIN"), 1)
            token = f"\0{user}\0{user}-secret".encode()
            assert self.ask(SaslAuthenticateRequest(token), 1).error_code == 0

    def ask(self, request: Message, version: int) -> Any:
        """Send a request and return the answer."""
        key = request.API_KEY
        frame = encode_request_header(key, version, 7, "decisions") + encode(request, version)
        self._socket.sendall(len(frame).to_bytes(4, "big") + frame)
        answer = self._exactly(int.from_bytes(self._exactly(4), "big"))
        _, position = decode_response_header(key, version, answer)
        return decode_response(key, version, answer, position)[0]

    def close(self) -> None:
        """Disconnect."""
        self._socket.close()

    def _exactly(self, count: int) -> bytes:
        data = b""
        while len(data) < count:
            part = self._socket.recv(count - len(data))
            assert part, "Kafka closed the connection"
            data += part
        return data


class Question(NamedTuple):
    """What a client asks about."""

    kind: ResourceType
    name: str


class SecuredKafka:
    """A Kafka with an authorizer, the clients, and an admin that is a super user."""

    def __init__(self, stack: ExitStack, directory: Path, *, allow_without_acls: bool) -> None:
        port, secured_port, controller_port = free_port(), free_port(), free_port()
        users = " ".join(f'user_{user}="{user}-secret"' for user in USERS)
        module = "org.apache.kafka.common.security.plain.PlainLoginModule"
        settings = {
            "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
            "super.users": "User:ANONYMOUS",
            "allow.everyone.if.no.acl.found": str(allow_without_acls).lower(),
            "controller.quorum.voters": f"1@127.0.0.1:{controller_port}",
            "listeners": f"PLAINTEXT://127.0.0.1:{port},SECURED://127.0.0.1:{secured_port},"
            f"CONTROLLER://127.0.0.1:{controller_port}",
            "advertised.listeners": f"PLAINTEXT://127.0.0.1:{port},SECURED://127.0.0.1:{secured_port}",
            "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,"
            "SECURED:SASL_PLAINTEXT",
            "sasl.enabled.mechanisms": "PLAIN",
            "listener.name.secured.plain.sasl.jaas.config": f"{module} required {users};",
        }
        stack.enter_context(KafkaPeer(directory, heap="512m", settings=settings, port=port))
        self.admin = stack.enter_context(closing(Client(port)))
        self.clients = [
            stack.enter_context(closing(Client(secured_port, user, host))) for user in USERS for host in HOSTS
        ]
        self.allow_without_acls = allow_without_acls
        topics = [CreatableTopic(name, 1, 1) for name in NAMES]
        created = self.admin.ask(CreateTopicsRequest(topics, 60_000), 6)
        assert {each.error_code for each in created.topics} == {0}
        self._wait_for_groups()

    def replace_rules(self, rules: list[AclRule]) -> None:
        """Replace all ACLs; return when the broker uses them."""
        everything = DeleteAclsFilter(ANY, None, ANY, None, None, ANY, ANY)
        self.admin.ask(DeleteAclsRequest([everything]), 3)
        creations = [
            AclCreation(
                rule.resource_type,
                rule.name,
                rule.pattern_type,
                rule.principal,
                rule.host,
                rule.operation,
                rule.permission,
            )
            for rule in rules
        ]
        answer = self.admin.ask(CreateAclsRequest(creations), 3)
        assert {each.error_code for each in answer.results} == {0}
        wanted = sorted(map(_fields, creations))
        deadline = time.monotonic() + WAIT_S_MAX
        while self._described() != wanted:
            assert time.monotonic() < deadline, "Kafka's broker does not use the ACLs"
            time.sleep(0.02)

    def _described(self) -> list[tuple[object, ...]]:
        everything = DescribeAclsRequest(ANY, None, ANY, None, None, ANY, ANY)
        return sorted(
            _fields(
                AclCreation(
                    resource.resource_type,
                    resource.resource_name,
                    resource.pattern_type,
                    acl.principal,
                    acl.host,
                    acl.operation,
                    acl.permission_type,
                )
            )
            for resource in self.admin.ask(everything, 3).resources
            for acl in resource.acls
        )

    def _wait_for_groups(self) -> None:
        deadline = time.monotonic() + WAIT_S_MAX
        while True:
            self.admin.ask(FindCoordinatorRequest(key_type=0, coordinator_keys=list(NAMES)), 4)
            described = self.admin.ask(DescribeGroupsRequest(list(NAMES), True), 5)
            if {each.error_code for each in described.groups} == {0}:
                return
            assert time.monotonic() < deadline, "Kafka's group coordinator does not start"
            time.sleep(0.2)


def _fields(creation: AclCreation) -> tuple[object, ...]:
    return tuple(getattr(creation, name) for name in AclCreation.__slots__)


@pytest.fixture(params=[False, True], ids=["deny-by-default", "allow-without-acls"])
def kafka(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[SecuredKafka]:
    """A Kafka for each default."""
    with ExitStack() as stack:
        yield SecuredKafka(stack, tmp_path / "kafka", allow_without_acls=request.param)


def _rules(chance: random.Random) -> list[AclRule]:
    rules = {}
    for _ in range(chance.randrange(1, 12)):
        kind = chance.choice((TOPIC, TOPIC, TOPIC, GROUP, CLUSTER))
        is_prefix = kind is not CLUSTER and chance.random() < 0.5
        rule = AclRule(
            resource_type=kind,
            pattern_type=PatternType.PREFIXED if is_prefix else PatternType.LITERAL,
            name=CLUSTER_NAME if kind is CLUSTER else chance.choice(PATTERNS),
            principal=chance.choice(("User:alice", "User:alice", "User:bob", "User:*", "Group:alice")),
            host=chance.choice(("*", "*", *HOSTS)),
            operation=chance.choice((*OPERATIONS, AclOperation.ALL, AclOperation.READ, AclOperation.WRITE)),
            permission=chance.choice((AclPermission.ALLOW, AclPermission.ALLOW, AclPermission.DENY)),
        )
        rules[acl_row(rule).acl_id] = rule
    return list(rules.values())


def _of_kafka(client: Client, question: Question) -> int:
    """The authorized operations in Kafka's answer; 0: the client must not describe the resource."""
    if question.kind is CLUSTER:
        operations = client.ask(DescribeClusterRequest(True), 0).cluster_authorized_operations
        assert isinstance(operations, int)
        return operations
    if question.kind is TOPIC:
        request = MetadataRequest([MetadataRequestTopic(name=question.name)], False, False, True)
        (row,) = client.ask(request, 9).topics
        operations = row.topic_authorized_operations
    else:
        (row,) = client.ask(DescribeGroupsRequest([question.name], True), 5).groups
        operations = row.authorized_operations
    if row.error_code == REFUSED[question.kind]:
        return 0
    assert row.error_code == 0, ErrorCode(row.error_code)
    assert isinstance(operations, int)
    return operations


def _of_ours(authorizer: Authorizer, client: Client, question: Question) -> int:
    asked = client.principal, client.host
    if not authorizer.authorize(*asked, AclOperation.DESCRIBE, *question):
        return 0
    return authorizer.authorized_operations(*asked, *question)


def _initialized(client: Client) -> int:
    """The error code of InitProducerId, after Kafka's broker got its first producer ids."""
    deadline = time.monotonic() + WAIT_S_MAX
    while True:
        code = client.ask(InitProducerIdRequest(None, 60_000), 2).error_code
        if code in {0, ErrorCode.CLUSTER_AUTHORIZATION_FAILED}:
            assert isinstance(code, int)
            return code
        assert time.monotonic() < deadline, f"InitProducerId fails: {ErrorCode(code)}"
        time.sleep(0.05)


def _may_produce(authorizer: Authorizer, client: Client) -> bool:
    asked = client.principal, client.host
    return authorizer.authorize(*asked, AclOperation.IDEMPOTENT_WRITE, CLUSTER, CLUSTER_NAME) or at_once(
        authorizer.authorize_by_resource_type(*asked, AclOperation.WRITE, TOPIC)
    )


def test_decisions_equal_those_of_kafka(kafka: SecuredKafka) -> None:
    chance = random.Random(19)
    decided: set[bool] = set()
    for number in range(RULE_SETS):
        rules = _rules(chance)
        kafka.replace_rules(rules)
        image = MetadataImage()
        for rule in rules:
            image[ACLS].put(acl_row(rule))
        authorizer = Authorizer(allow_without_acls=kafka.allow_without_acls)
        at_once(authorizer.load(image))
        for _ in range(QUESTIONS):
            client = chance.choice(kafka.clients)
            kind = chance.choice((TOPIC, TOPIC, GROUP, CLUSTER))
            question = Question(kind, CLUSTER_NAME if kind is CLUSTER else chance.choice(NAMES))
            theirs, ours = _of_kafka(client, question), _of_ours(authorizer, client, question)
            assert ours == theirs, (number, client.principal, client.host, question, rules)
            decided.add(ours > 0)
        for client in kafka.clients:
            code = _initialized(client)
            assert _may_produce(authorizer, client) == (code == 0), (
                number,
                client.principal,
                client.host,
                rules,
            )
    assert decided == {True, False}
