"""kafka-consumer-groups with an active group of two members, one of them static: its output must be
the same for Ponor and for a real Kafka.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from tests.tools.java_programs import Output, tool

pytestmark = [pytest.mark.usefixtures("kafka_tools"), pytest.mark.timeout(1_800)]

TOOL: Final = "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand"
JOIN_S_MAX: Final = 240.0
GROUP: Final = ("--group", "alive")

Both = Callable[..., str]


def _quiet(bootstrap: str, **settings: str | bool) -> dict[str, str | int | float | bool]:
    dotted = {name.replace("_", "."): value for name, value in settings.items()}
    return {"bootstrap.servers": bootstrap, "log_level": 2, **dotted}


@contextmanager
def _living_group(bootstrap: str) -> Iterator[None]:
    """`alive` reads `alive-a` (2 partitions) with two members and has an old commit of `alive-b`."""
    admin = AdminClient(_quiet(bootstrap))
    for made in admin.create_topics([NewTopic("alive-a", 2, 1), NewTopic("alive-b", 1, 1)]).values():
        made.result(240)
    producer = Producer(_quiet(bootstrap))
    for number in range(10):
        producer.produce("alive-a", b"x", partition=number % 2)
    producer.produce("alive-b", b"x")
    assert producer.flush(240) == 0
    before = Consumer(_quiet(bootstrap, group_id="alive", auto_offset_reset="earliest"))
    before.commit(offsets=[TopicPartition("alive-b", 0, 1, "old")], asynchronous=False)
    before.close()
    members = [
        Consumer(
            _quiet(
                bootstrap,
                group_id="alive",
                client_id=name,
                group_instance_id=name,
                enable_auto_commit=False,
                # No member polls while the tools run, and each tool starts a JVM.
                max_poll_interval_ms="3600000",
                session_timeout_ms="180000",
                partition_assignment_strategy="range",
            )
        )
        for name in ("first", "second")
    ]
    try:
        for member in members:
            member.subscribe(["alive-a"])
        deadline = time.monotonic() + JOIN_S_MAX
        while any(len(member.assignment()) != 1 for member in members):
            assert time.monotonic() < deadline, "the group did not become stable"
            for member in members:
                member.poll(0.1)
        for member in members:
            (place,) = member.assignment()
            member.commit(offsets=[TopicPartition("alive-a", place.partition, 3, "note")], asynchronous=False)
        yield
    finally:
        for member in members:
            member.close()


@pytest.fixture(scope="module")
def both(ponor: str, kafka: str) -> Iterator[Both]:
    """Run the tool for both groups; the normalized outputs must be equal. Returns the output."""

    def say(*words: str, code: int | None = 0) -> str:
        theirs, ours = (
            _alike(tool(TOOL, "--bootstrap-server", bootstrap, *words, code=code), bootstrap)
            for bootstrap in (kafka, ponor)
        )
        assert ours == theirs
        return "\n".join(ours)

    with ExitStack() as groups:
        for bootstrap in (kafka, ponor):
            groups.enter_context(_living_group(bootstrap))
        yield say


def _alike(output: Output, bootstrap: str) -> list[str]:
    text = output.out.replace(bootstrap, "BROKER").replace("(65536)", "(1)")
    text = re.sub(r"-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", "-ID", text)
    rows = [" ".join(line.split()) for line in text.splitlines() if line.strip()]
    # Groups of other tests exist too.
    return sorted(row for row in rows if not row.startswith(("\tat ", "Caused by")))


def test_an_active_group_is_listed_by_state_and_type(both: Both) -> None:
    def mine(said: str) -> list[str]:
        return [row for row in said.splitlines() if row.startswith("alive")]

    assert mine(both("--list", "--state", "stable", "--type", "classic")) == ["alive Classic Stable"]
    assert mine(both("--list", "--state", "Dead,Empty", "--type", "classic")) == []
    assert mine(both("--list", "--type", "consumer")) == []


def test_an_active_group_is_described_in_every_way(both: Both) -> None:
    offsets = both("--describe", *GROUP, "--timeout", "120000")
    assert "alive alive-a 0 3 5 2" in offsets
    assert "alive alive-b 0 1 1 0 - - -" in offsets
    members = both("--describe", *GROUP, "--members", "--verbose")
    assert members.count("alive-a") == 2
    assert "alive BROKER (1) range Stable 2" in both("--describe", *GROUP, "--state")
    both("--describe", *GROUP, "--state", "--verbose")


def test_subscribed_offsets_are_not_deleted_nor_reset(both: Both) -> None:
    both("--reset-offsets", *GROUP, "--topic", "alive-a", "--to-earliest", "--execute", code=None)
    both("--delete-offsets", *GROUP, "--topic", "alive-a", code=None)
    both("--delete", *GROUP, code=None)
    assert "alive alive-a 0 3 5 2" in both("--describe", *GROUP)
    both("--delete-offsets", *GROUP, "--topic", "alive-b")
    assert "alive-b" not in both("--describe", *GROUP)


def test_an_exported_plan_is_applied_from_its_file(both: Both, tmp_path: Path) -> None:
    plan = tmp_path / "plan.csv"
    plan.write_text("alive-a,0,2\nalive-a,1,4\n")
    moved = both("--reset-offsets", "--group", "planned", "--from-file", str(plan), "--execute")
    assert "planned alive-a 1 4" in moved
    both("--describe", "--group", "planned", "--offsets")
    both("--delete", "--group", "planned")
