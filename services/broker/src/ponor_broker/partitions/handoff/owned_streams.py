"""Streams that an open partition gains or loses: Time and Txn streams and `.cleaned` twins are added,
unknown streams are deleted.

An unknown stream has the tags of a partition, but neither the key nor the log meta of this partition names
it. An attempt that did not complete (crash, refusal, lost answer) created or opened it. Nothing reads it or
appends to it, so the leader deletes it.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Final

from ponor_partition.segment import CLEANED, DATA, TIME, TXN, StreamName
from ponor_runtime.identity import NodeId, StreamEpoch, StreamId
from s3stream.errors import S3StreamError

from ponor_broker.partitions.identity import PartitionId, PartitionKey
from ponor_broker.partitions.log.stream_port import PartitionStream, StreamSource
from ponor_broker.partitions.partition import Partition
from ponor_broker.partitions.topics.topics import Topics

LOG: Final = logging.getLogger("ponor.broker.partitions")
DELETED_TOGETHER_MAX: Final = 1_000
"""Unknown streams that one round deletes; the next round deletes the others."""


class OwnedStreams:
    """Streams of all partitions that are open here."""

    def __init__(
        self,
        streams: StreamSource,
        topics: Topics,
        node_id: NodeId,
        *,
        attend: Callable[[Partition], None],
    ) -> None:
        """`attend` is called with partitions to which a stream could not be added: they may have an unknown
        stream now.
        """
        self._streams = streams
        self._topics = topics
        self._node_id = node_id
        self._attend = attend
        self._adding: Counter[PartitionKey] = Counter()
        """Partitions for which streams are being created: their log metas do not name them yet."""

    async def add_time_streams(self, partitions: Sequence[Partition]) -> None:
        """Create and open the Time streams of partitions that need one.

        Raises:
            s3stream.errors.S3StreamError: retry later; `delete_unknown` removes orphaned streams.
        """
        await self._add([(partition, TIME) for partition in partitions])

    async def add_txn_stream(self, partition: Partition) -> None:
        """Create and open a partition's Txn stream; one call at a time per partition.

        Raises:
            s3stream.errors.S3StreamError: as `add_time_streams`.
        """
        await self._add([(partition, TXN)])

    async def add_cleaned_streams(self, partition: Partition) -> None:
        """Create and open the missing `.cleaned` twins of a partition's streams, before its first
        cleaning.

        Raises:
            s3stream.errors.S3StreamError: as `add_time_streams`.
        """
        names = [name + CLEANED for name in (DATA, TIME) if name + CLEANED not in partition.log.streams]
        if names:
            await self._add([(partition, name) for name in names])

    async def delete_unknown(self, partitions: Sequence[Partition]) -> Sequence[Partition]:
        """Delete the unknown streams (rare) of open partitions; return the partitions to check again."""
        found = [(partition, unknown) for partition in partitions if (unknown := self._unknown(partition))]
        stream_ids = [stream_id for _, unknown in found for stream_id in unknown]
        if not stream_ids:
            return []
        try:
            await self._streams.delete_streams(stream_ids[:DELETED_TOGETHER_MAX])
        except S3StreamError as error:
            LOG.warning("%d unknown streams will be deleted later: %s", len(stream_ids), error)
        else:
            LOG.info("deleted %d unknown streams", len(stream_ids))
        return [partition for partition, _ in found]

    def _unknown(self, partition: Partition) -> list[StreamId]:
        key = partition.identity.key
        if key in self._adding or not partition.is_writable:
            return []
        rows = self._topics.streams(key)
        known = {stream.stream_id for stream in partition.streams}
        # A stream that is open at another node belongs to a log that is being recovered: only the recovery
        # closes it.
        free = (row for row in rows if not row.open or row.node_id == self._node_id)
        return [row.stream_id for row in free if row.stream_id not in known]

    async def _add(self, wanted: Sequence[tuple[Partition, StreamName]]) -> None:
        with self._marked([partition for partition, _ in wanted]):
            stream_ids = await self._streams.create_streams(
                [stream_tags(partition.identity, name) for partition, name in wanted]
            )
            opened = await self._streams.open_streams(
                [
                    (stream_id, StreamEpoch(partition.leader_epoch))
                    for stream_id, (partition, _) in zip(stream_ids, wanted, strict=True)
                ]
            )
            await _give(
                [(partition, name, stream) for (partition, name), stream in zip(wanted, opened, strict=True)]
            )

    @contextmanager
    def _marked(self, partitions: Sequence[Partition]) -> Iterator[None]:
        keys = [partition.identity.key for partition in partitions]
        self._adding.update(keys)
        try:
            yield
        except S3StreamError:
            for partition in partitions:
                self._attend(partition)
            raise
        finally:
            self._adding.subtract(keys)
            for key in keys:
                if not self._adding[key]:
                    del self._adding[key]


async def _give(opened: Sequence[tuple[Partition, StreamName, PartitionStream]]) -> None:
    """Add opened streams to their partitions. Close a stream that its partition refuses: while an unknown
    stream is open, no other broker can lead the partition.

    Raises:
        s3stream.errors.S3StreamError: the first refusal, after all streams were processed.
    """
    refusal: S3StreamError | None = None
    for partition, name, stream in opened:
        try:
            if partition.is_writable:
                partition.log.add_stream(name, stream)
                continue
        except S3StreamError as error:
            refusal = refusal or error
        await stream.close()
    if refusal is not None:
        raise refusal


def stream_tags(identity: PartitionId, kind: str) -> Mapping[str, str]:
    """Return the tags by which the controller finds the streams of a partition."""
    return {"topic": identity.topic_id.hex(), "partition": str(identity.index), "kind": kind}
