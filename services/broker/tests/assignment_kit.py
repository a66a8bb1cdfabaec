"""Short notation for assignments: "x01 y2" means partitions 0 and 1 of topic x, and 2 of topic y."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from ponor_broker.groups.assignors.assignment_input import Assignor, Subscriber, Targets
from ponor_runtime.turns import at_once


def topic_id(name: str) -> bytes:
    return name.encode().ljust(16, b"\0")


def owned(text: str) -> dict[bytes, frozenset[int]]:
    return {topic_id(part[0]): frozenset(map(int, part[1:])) for part in text.split()}


def subscriber(topics: str, previous: str = "", instance_id: str | None = None) -> Subscriber:
    return Subscriber(frozenset(map(topic_id, topics)), owned(previous), instance_id)


def counts(**partitions: int) -> dict[bytes, int]:
    return {topic_id(name): count for name, count in partitions.items()}


def assign(
    assignor: Assignor, members: Mapping[str, Subscriber], partition_counts: Mapping[bytes, int]
) -> Targets:
    return at_once(assignor.assign(members, partition_counts, None))


def targets(**members: str) -> Targets:
    return {member: owned(text) for member, text in members.items()}


def partitions_of(assignment: Mapping[bytes, Iterable[int]]) -> set[tuple[bytes, int]]:
    return {(topic, partition) for topic, partitions in assignment.items() for partition in partitions}


def with_owned(members: Mapping[str, Subscriber], result: Targets) -> dict[str, Subscriber]:
    """Return the members with the result as their previous target."""
    return {
        member_id: Subscriber(member.topics, result[member_id], member.instance_id, member.rack_id)
        for member_id, member in members.items()
    }


def large_group(*, equal: bool) -> tuple[dict[str, Subscriber], dict[bytes, int]]:
    """Return 1,000 members and 10,000 partitions of 200 topics; half of the partitions have owners."""
    topics = [topic_id(f"{number}") for number in range(200)]
    members = {
        f"member-{number}": Subscriber(
            frozenset(topics if equal else topics[number % 20 :: 1 + number % 7]),
            {topics[number % 200]: frozenset(range(number // 200 * 5, number // 200 * 5 + 5))},
        )
        for number in range(1_000)
    }
    return members, dict.fromkeys(topics, 50)
