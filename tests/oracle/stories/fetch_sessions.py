"""Fetch sessions (KIP-227): ids, epochs, omitted and forgotten partitions."""

from __future__ import annotations

from ponor_kafka.messages.fetch import FetchPartition, FetchRequest, FetchTopic, ForgottenTopic

from tests.oracle.asking import batch
from tests.oracle.narrator import Narrator, Topic
from tests.oracle.story import story


def session(
    topic: Topic,
    partitions: dict[int, int],
    *,
    id: int = 0,  # noqa: A002  # the protocol's own word
    epoch: int = 0,
    forget: tuple[int, ...] = (),
    wait_ms: int = 0,
) -> FetchRequest:
    """Fetch `partitions` (number to offset) in a session."""
    wanted = [
        FetchPartition(number, -1, offset, partition_max_bytes=1 << 20)
        for number, offset in partitions.items()
    ]
    return FetchRequest(
        max_wait_ms=wait_ms,
        min_bytes=1 if wait_ms else 0,
        session_id=id,
        session_epoch=epoch,
        topics=[FetchTopic(topic.name, topic.id, wanted)] if wanted else [],
        forgotten_topics_data=[ForgottenTopic(topic.name, topic.id, list(forget))] if forget else [],
    )


def begin(k: Narrator, topic: Topic, partitions: dict[int, int], version: int) -> int:
    """A full fetch that begins a session; its id."""
    return int(k.ask(session(topic, partitions), version, "a full fetch begins a session").session_id)


@story("A session shows only what changed")
def session_incremental(k: Narrator) -> None:
    topic = k.topic("session-incremental", 3)
    k.fill(topic, [batch(2)])
    for version in (7, 12, 13, 17):
        id = begin(k, topic, {0: 0, 1: 0, 2: 0}, version)  # noqa: A001
        k.ask(session(topic, {0: 2}, id=id, epoch=1), version, "read to the end: nothing is new")
        k.ask(session(topic, {}, id=id, epoch=2), version, "nothing is new")
        k.ask(session(topic, {1: 5}, id=id, epoch=3), version, "an offset out of range shows at once")
        k.ask(session(topic, {1: 0}, id=id, epoch=4), version, "corrected")
        k.ask(session(topic, {}, id=id, epoch=-1), version, "closed: a full fetch of nothing")


@story("A session with appends, new partitions and forgotten partitions")
def session_changes(k: Narrator) -> None:
    topic = k.topic("session-changes", 3)
    id = begin(k, topic, {0: 0, 1: 0}, 12)  # noqa: A001
    k.fill(topic, [batch(2)], partition=1)
    k.ask(session(topic, {}, id=id, epoch=1), 12, "an append to partition 1")
    k.ask(session(topic, {1: 2}, id=id, epoch=2), 12, "read")
    k.ask(session(topic, {2: 0}, id=id, epoch=3), 12, "partition 2 joins")
    k.ask(session(topic, {}, id=id, epoch=4, forget=(1,)), 12, "partition 1 is forgotten")
    k.fill(topic, [batch(1)], partition=1)
    k.fill(topic, [batch(1)], partition=2)
    k.ask(session(topic, {}, id=id, epoch=5), 12, "appends to 1 and 2: only 2 shows")
    k.ask(session(topic, {}, id=id, epoch=6, forget=(7, 1)), 12, "what is not there cannot be forgotten")
    k.ask(session(topic, {2: 1}, id=id, epoch=7, wait_ms=50), 12, "waits for nothing")
    waiting = k.send(session(topic, {}, id=id, epoch=8, wait_ms=60_000), 12, "waits for an append")
    k.fill(topic, [batch(1)])
    k.take(waiting)


@story("Wrong epochs and unknown ids of a session")
def session_errors(k: Narrator) -> None:
    topic = k.topic("session-errors")
    k.fill(topic, [batch(2)])
    for version in (7, 12, 13):
        id = begin(k, topic, {0: 0}, version)  # noqa: A001
        k.ask(session(topic, {}, id=id, epoch=3), version, "epoch 3 where 1 is due")
        k.ask(session(topic, {}, id=id, epoch=1), version, "epoch 1 is still right")
        k.ask(session(topic, {}, id=id, epoch=1), version, "epoch 1 again")
        k.ask(session(topic, {}, id=1_234_567, epoch=1), version, "an id that was never assigned")
        k.ask(session(topic, {0: 0}, id=0, epoch=1), version, "no id and an epoch")
        k.ask(session(topic, {0: 0}, id=0, epoch=-1), version, "no session wanted")
        k.ask(session(topic, {0: 0}, id=id, epoch=0), version, "begun anew in place of the old")
        k.ask(session(topic, {}, id=id, epoch=2), version, "the old id is gone")


@story("Topics that do not exist, in a session")
def session_unknown_topics(k: Narrator) -> None:
    topic = k.topic("session-unknown")
    k.fill(topic, [batch(1)])
    missing = Topic("session-missing", bytes(range(16)))
    for version in (12, 13):
        wanted = [FetchPartition(0, partition_max_bytes=1 << 20)]
        both = [FetchTopic(topic.name, topic.id, wanted), FetchTopic(missing.name, missing.id, wanted)]
        answer = k.ask(FetchRequest(session_epoch=0, topics=both), version, "one of two does not exist")
        k.ask(session(topic, {}, id=answer.session_id, epoch=1), version, "still does not")
        k.ask(session(missing, {}, id=answer.session_id, epoch=2, forget=(0,)), version, "forgotten")
        k.ask(session(topic, {}, id=answer.session_id, epoch=3), version, "shows no more")


@story("A session cannot switch between topic names and ids")
def session_names_and_ids(k: Narrator) -> None:
    topic = k.topic("session-names-and-ids")
    by_name = begin(k, topic, {0: 0}, 12)
    k.ask(session(topic, {0: 0}, id=by_name, epoch=1), 13, "begun by name, goes on by id")
    by_id = begin(k, topic, {0: 0}, 13)
    k.ask(session(topic, {0: 0}, id=by_id, epoch=1), 12, "begun by id, goes on by name")
