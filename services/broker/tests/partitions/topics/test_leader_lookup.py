"""The look-up of a partition's leader for the transaction coordinator."""

from __future__ import annotations

from ponor_broker.transactions.marker_sender import NO_LEADER as NO_LEADER_OF_SENDER
from ponor_metadata.nouns.topics import NO_LEADER

from services.broker.tests.image_kit import NODE, OTHER_NODE, ImageKit


def test_the_leader_of_a_partition_is_found_by_name() -> None:
    kit = ImageKit()
    row = kit.put_topic("t", 2, leader=NODE)
    kit.elect(row, 1, OTHER_NODE, 5)

    assert [kit.topics.leader_id("t", index) for index in range(3)] == [NODE, OTHER_NODE, None]
    assert kit.topics.leader_id("missing", 0) is None


def test_a_partition_without_a_leader_exists() -> None:
    kit = ImageKit()
    kit.elect(kit.put_topic("t"), 0, NO_LEADER, 5)

    assert kit.topics.leader_id("t", 0) == NO_LEADER == NO_LEADER_OF_SENDER
