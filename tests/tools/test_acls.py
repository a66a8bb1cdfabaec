"""Access control lists beside a real Kafka with StandardAuthorizer: its tool, the answers of the APIs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Final

import pytest

from tests.e2e.load.cluster import LocalCluster
from tests.oracle.compare import differences
from tests.oracle.telling import Listener
from tests.peers.kafka_peer import KafkaPeer
from tests.tools.acl_stories import STORIES, UNSET_IN_KAFKA
from tests.tools.java_programs import tool

pytestmark = [pytest.mark.usefixtures("kafka_tools"), pytest.mark.timeout(1_800)]

ACLS: Final = "org.apache.kafka.tools.AclCommand"
AUTHORIZER: Final = {
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "super.users": "User:ANONYMOUS",
}

Both = Callable[..., str]


@pytest.fixture(scope="module")
def authorizing_kafka(tmp_path_factory: pytest.TempPathFactory, kafka_tools: None) -> Iterator[KafkaPeer]:
    """A Kafka with an authorizer."""
    directory = tmp_path_factory.mktemp("acls") / "kafka"
    with KafkaPeer(directory, heap="512m", settings=AUTHORIZER) as peer:
        yield peer


@pytest.fixture(scope="module")
def authorizing_ponor(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """A Ponor with an authorizer."""
    directory = tmp_path_factory.mktemp("acls") / "ponor"
    settings = {"acls_enabled": "true", "super_users": "User:ANONYMOUS"}
    with LocalCluster(directory, settings=settings) as cluster:
        yield cluster


def test_the_apis_answer_as_kafka(authorizing_kafka: KafkaPeer, authorizing_ponor: LocalCluster) -> None:
    theirs = Listener("Kafka", authorizing_kafka.port)
    ours = Listener("Ponor", int(authorizing_ponor.bootstrap.rsplit(":", 1)[1]))
    found = [each for story in STORIES for each in differences(theirs.hear(story), ours.hear(story))]
    unexplained = [str(each) for each in found if each.note not in UNSET_IN_KAFKA]
    assert not unexplained, "\n".join(unexplained)
    codes = {(each.kafka, each.ponor) for each in found if each.path.endswith("error_code")}
    assert codes == {("UNKNOWN_SERVER_ERROR", "INVALID_REQUEST")}


@pytest.fixture
def both(authorizing_kafka: KafkaPeer, authorizing_ponor: LocalCluster) -> Both:
    """Run the tool on both; the outputs must have the same lines. Returns Ponor's output."""

    def say(*words: str, code: int = 0) -> str:
        with ThreadPoolExecutor(2) as pool:
            ours, theirs = (
                pool.submit(tool, ACLS, "--bootstrap-server", address, *words, code=code)
                for address in (authorizing_ponor.bootstrap, authorizing_kafka.bootstrap)
            )
        assert _lines(ours.result().out) == _lines(theirs.result().out)
        return ours.result().out

    return say


def _lines(text: str) -> list[str]:
    return sorted(line.strip() for line in text.splitlines() if line.strip())


def test_kafka_acls_adds_lists_and_removes(both: Both) -> None:
    alice = ("--allow-principal", "User:alice")
    both("--add", *alice, "--producer", "--topic", "orders", "--transactional-id", "tx-", "--idempotent")
    both("--add", *alice, "--consumer", "--topic", "orders", "--group", "readers")
    both("--add", "--deny-principal", "User:*", "--deny-host", "10.0.0.1", "--operation", "All", "--cluster")
    prefixed = ("--topic", "orders-", "--resource-pattern-type", "prefixed")
    both("--add", "--allow-principal", "User:bob", "--operation", "Read", *prefixed)
    listed = both("--list")
    assert "principal=User:bob" in listed
    assert "patternType=PREFIXED" in listed
    both("--list", "--topic", "orders-1", "--resource-pattern-type", "match")
    both("--list", "--principal", "User:alice")
    both("--remove", *alice, "--operation", "Read", "--topic", "orders", "--force")
    both("--list", "--topic", "orders")
    both("--remove", "--topic", "*", "--resource-pattern-type", "any", "--force")
    both("--remove", "--topic", "orders", "--resource-pattern-type", "any", "--force")
    both("--list")
