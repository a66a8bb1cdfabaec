"""Recovery of a broker that will not return, from its file write-ahead log: `ponor broker recover`.

Composition root of a broker without clients. It registers under the dead node's id, which ends the rights of
any other process of that node. It then recovers the log, moves the partitions to other brokers, and leaves
the cluster. Only a log in a file needs this: another broker recovers a log in the object store automatically.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import PurePath
from typing import Final

from ponor.controller.v1.session_service_pb2 import ElectMoved, Operation, PartitionName
from ponor_journal.errors import JournalIdentityError
from ponor_metadata.client.joining import Joined, Membership, join
from ponor_metadata.nouns.nodes import NodeRow, WalKind
from ponor_metadata.nouns.streams import PARTITION_TAG, STREAMS, STREAMS_OPEN_AT, TOPIC_TAG, StreamRow
from ponor_metadata.nouns.topics import MOVES, MOVES_FROM, PARTITIONS, PARTITIONS_LED_BY, TOPICS, MoveRow
from ponor_rpc.errors import OperationError
from ponor_runtime.object_store import ObjectStore, ObjectStoreUnavailableError
from ponor_runtime.runtime import Runtime
from ponor_runtime.tasks import BackgroundTasks
from s3stream.errors import WalCorruptError
from s3stream.recovery import STREAMS_PER_CALL_MAX, RecoveryReport
from s3stream.settings import StorageSettings

from ponor_broker.drain import Drain
from ponor_broker.node import Node
from ponor_broker.partitions.log.stream_port import state_of
from ponor_broker.storage.start import StoragePorts, start_on_file

LOG: Final = logging.getLogger("ponor.broker")
POLL_INTERVAL_S: Final = 0.1
MOVES_PER_CALL_MAX: Final = 1_000
CURRENT_MS_MAX: Final = 30_000
JOIN_S_MAX: Final = 60.0


@dataclass(frozen=True, slots=True)
class TruncatedStream:
    """A stream that was closed at its committed end: acknowledged records after it are lost.
    `offset` is a stream offset.
    """

    topic: str
    partition: int
    kind: str
    stream_id: int
    offset: int


@dataclass(frozen=True, slots=True)
class RescueReport:
    """Result of a rescue.

    `recovered` is None if the log could not be used; then `reason` gives the cause and `open_ends`
    the possible losses. `partitions_left` counts partitions that no other broker took.
    """

    recovered: RecoveryReport | None
    reason: str
    open_ends: tuple[TruncatedStream, ...]
    partitions_left: int


async def rescue(
    runtime: Runtime,
    settings: StorageSettings,
    dead: NodeRow,
    *,
    controllers: tuple[str, ...],
    store: ObjectStore,
    wal: PurePath | None,
    accept_loss: bool,
    ms_max: int,
) -> RescueReport:
    """Register under the dead node's id, recover its log, close its streams, let the controllers move its
    partitions to live brokers, and then leave the cluster.

    Args:
        runtime: ports to the outside world.
        settings: settings of the storage; the sizes of the log must equal those that the dead node used.
        dead: the node's row; its address for clients stays until its partitions have moved.
        controllers: addresses of the cluster's controllers.
        store: the cluster's object store.
        wal: directory of the node's write-ahead log; None if the log is lost.
        accept_loss: close streams at their committed ends where the log cannot be read.
        ms_max: longest wait for the moves.

    Raises:
        WrongClusterError: the store belongs to another cluster; nothing was changed.
        ObjectStoreUnavailableError: controllers or store did not answer in time; nothing was changed.
        OperationError: the controllers refuse this node, for example because their log is an older
            copy; nothing was changed.
        WalCorruptError, JournalIdentityError: the log is damaged, or the directory contained no log although
            the node has open streams, or the log belongs to another node. No stream was closed.
        BlockingIOError: a process has locked the directory: the node is not dead.
    """
    joined = await _join(runtime, dead, controllers, store)
    tasks = BackgroundTasks(runtime.fail_stop)
    node = Node(
        runtime,
        node_id=dead.node_id,
        cluster_id=joined.marker.cluster_id,
        seen=joined.seen,
        controllers=controllers,
        wal=WalKind.FILE,
        kafka_host=dead.kafka_host,
        kafka_port=dead.kafka_port,
        listeners={},
    )
    node.start(tasks)
    try:
        await node.register()
        ports = StoragePorts.of(node, store, settings, runtime.clock)
        recovered, reason = await _recover(
            runtime, settings, node, ports, wal, tasks, accept_loss=accept_loss
        )
        lost = await _close_at_committed_ends(node, ports) if recovered is None else ()
        await _give_away(runtime, node, tasks, ms_max)
        return RescueReport(recovered, reason, lost, len(_led(node)))
    finally:
        node.part()
        await node.close()
        await tasks.close()


async def _join(runtime: Runtime, dead: NodeRow, controllers: tuple[str, ...], store: ObjectStore) -> Joined:
    # A registered node has found the cluster's marker in the store. So a store without the marker is the
    # wrong store (`has_marked`), even if it contains other clusters (`share_store`). There is no local copy,
    # so the store must answer.
    membership = Membership(share_store=True, has_marked=True)
    try:
        async with asyncio.timeout(JOIN_S_MAX):
            joined = await join(runtime, controllers, dead.node_id, membership, store, asyncio.Event())
    except TimeoutError as error:
        raise ObjectStoreUnavailableError(
            f"could not check the cluster's marker in the object store within {JOIN_S_MAX:g} s; run this"
            " command again when the controllers and the object store answer"
        ) from error
    assert joined is not None, "the stop event is never set"
    return joined


async def _recover(
    runtime: Runtime,
    settings: StorageSettings,
    node: Node,
    ports: StoragePorts,
    wal: PurePath | None,
    tasks: BackgroundTasks,
    *,
    accept_loss: bool,
) -> tuple[RecoveryReport | None, str]:
    """Recover the log; return None and the reason if the log cannot be used and the loss is accepted."""
    if wal is None:
        assert accept_loss, "recovery without a write-ahead log needs `accept_loss`"
        return None, "no write-ahead log was given"
    try:
        streams = await start_on_file(runtime, settings, node, ports, wal, tasks)
    except (WalCorruptError, JournalIdentityError) as error:
        if not accept_loss or isinstance(error, JournalIdentityError):
            raise
        return None, str(error)
    await streams.close()
    return streams.recovery, ""


async def _close_at_committed_ends(node: Node, ports: StoragePorts) -> tuple[TruncatedStream, ...]:
    """Close all streams that are open at the node. A failed recovery may have moved their ends, so first wait
    for a current image.
    """
    await node.subscription.wait_current(CURRENT_MS_MAX)
    # A copy: the image's list becomes shorter with every operation.
    rows = list(node.subscription.image[STREAMS].find(STREAMS_OPEN_AT, node.node_id))
    lost = tuple(_open_end(node, row) for row in rows)
    for end in lost:
        LOG.warning(
            "LOSS ACCEPTED: %s-%d, %s stream %d, from offset %d on",
            end.topic,
            end.partition,
            end.kind,
            end.stream_id,
            end.offset,
        )
    for at in range(0, len(rows), STREAMS_PER_CALL_MAX):
        await ports.streams.close_streams(list(map(state_of, rows[at : at + STREAMS_PER_CALL_MAX])))
    return lost


async def _give_away(runtime: Runtime, node: Node, tasks: BackgroundTasks, ms_max: int) -> None:
    """Let the controllers move all partitions to live brokers. The streams are closed, so each move waits
    only for this node's ElectMoved.
    """
    electing = tasks.spawn(_elect_targets(runtime, node), "elect targets of moves")
    drain = Drain(node, runtime.clock, runtime.process, ms_max=ms_max)
    is_empty = await drain.run()
    electing.cancel()
    if is_empty or not _led(node):
        await drain.leave()


async def _elect_targets(runtime: Runtime, node: Node) -> None:
    asked: dict[tuple[bytes, int, int], None] = {}
    while True:
        moves = node.subscription.image[MOVES].find(MOVES_FROM, node.node_id)
        asked = {_key(move): None for move in moves if _key(move) in asked}
        new = [move for move in moves if _key(move) not in asked][:MOVES_PER_CALL_MAX]
        if new:
            asked.update((_key(move), None) for move in new)
            await _elect(node, new)
        else:
            await runtime.clock.sleep(POLL_INTERVAL_S)


async def _elect(node: Node, moves: Sequence[MoveRow]) -> None:
    names = []
    for move in moves:
        row = node.subscription.image[PARTITIONS].get((move.topic_id, move.partition))
        if row is not None:
            names.append(
                PartitionName(topic_id=row.topic_id, partition=row.partition, leader_epoch=row.leader_epoch)
            )
    try:
        await node.session.submit(Operation(elect_moved=ElectMoved(partitions=names)))
    except OperationError as error:
        LOG.info(
            "ElectMoved failed; the controllers will elect the targets of %d moves after their timeout: %s",
            len(names),
            error,
        )


def _led(node: Node) -> Sequence[object]:
    return node.subscription.image[PARTITIONS].find(PARTITIONS_LED_BY, node.node_id)


def _key(move: MoveRow) -> tuple[bytes, int, int]:
    return move.topic_id, move.partition, move.begun_at_ms


def _open_end(node: Node, row: StreamRow) -> TruncatedStream:
    tags = row.tags
    topic_id = bytes.fromhex(tags.get(TOPIC_TAG, ""))
    topic = node.subscription.image[TOPICS].get(topic_id)
    return TruncatedStream(
        topic.name if topic is not None else topic_id.hex(),
        int(tags.get(PARTITION_TAG, -1)),
        tags.get("kind", ""),
        row.stream_id,
        row.end_offset,
    )
