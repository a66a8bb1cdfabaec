"""DescribeTopicPartitions returns every partition once for any page size."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from ponor_broker.handlers.metadata.describe_topic_partitions import (
    PARTITIONS_MAX,
    describe_topic_partitions,
)
from ponor_kafka.errors import ErrorCode
from ponor_kafka.messages.describe_topic_partitions import (
    DescribeTopicPartitionsRequest,
    DescribeTopicPartitionsRequestCursor,
    DescribeTopicPartitionsResponse,
    TopicRequest,
)

from services.broker.tests.image_kit import NODE, ImageKit, context


async def ask(
    kit: ImageKit, *names: str, limit: int = 100, cursor: tuple[str, int] | None = None
) -> DescribeTopicPartitionsResponse:
    request = DescribeTopicPartitionsRequest(
        [TopicRequest(name) for name in names],
        limit,
        None if cursor is None else DescribeTopicPartitionsRequestCursor(*cursor),
    )
    return await describe_topic_partitions(kit.topics, request, context(0))


@given(
    st.dictionaries(st.sampled_from(("a", "b", "c", "d")), st.integers(1, 7)),
    st.integers(-1, 9),
    st.booleans(),
)
async def test_pages_hold_every_partition_once_and_in_order(
    sizes: dict[str, int], limit: int, by_name: bool
) -> None:
    kit = ImageKit()
    for name, count in sizes.items():
        kit.put_topic(name, count)
    names = tuple(sizes) if by_name else ()
    if not names and by_name:
        return
    seen: list[tuple[str | None, int]] = []
    cursor: tuple[str, int] | None = None
    while True:
        page = await ask(kit, *names, limit=limit, cursor=cursor)
        found = [(topic.name, each.partition_index) for topic in page.topics for each in topic.partitions]
        assert len(found) <= max(limit, 1)
        seen += found
        if page.next_cursor is None:
            break
        assert found, "a page that leads on holds something"
        cursor = (page.next_cursor.topic_name, page.next_cursor.partition_index)
    assert seen == [(name, number) for name in sorted(sizes) for number in range(sizes[name])]


async def test_unknown_topics_and_invalid_cursors() -> None:
    kit = ImageKit()
    kit.put_topic("t", 3)
    page = await ask(kit, "t", "none", "bad name", "t", limit=1)
    assert [(topic.name, topic.error_code) for topic in page.topics] == [
        ("bad name", ErrorCode.INVALID_TOPIC_EXCEPTION),
        ("none", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        ("t", ErrorCode.NONE),
    ]
    for cursor in (("t", -1), ("zz", 0)):
        (topic,) = (await ask(kit, "t", cursor=cursor)).topics
        assert (topic.error_code, topic.partitions) == (ErrorCode.INVALID_REQUEST, ())
    (topic,) = (await ask(kit, "t", cursor=("t", 99))).topics
    assert (topic.error_code, list(topic.partitions)) == (ErrorCode.NONE, [])


async def test_a_partition_without_leader_and_an_oversized_limit() -> None:
    kit = ImageKit()
    kit.put_topic("t", PARTITIONS_MAX + 1)
    kit.put_broker(NODE, fenced=True)
    page = await ask(kit, limit=1_000_000)
    (topic,) = page.topics
    assert len(topic.partitions) == PARTITIONS_MAX
    assert page.next_cursor is not None
    first = topic.partitions[0]
    assert (first.error_code, first.leader_id, list(first.offline_replicas)) == (
        ErrorCode.LEADER_NOT_AVAILABLE,
        -1,
        [NODE],
    )
