"""How far a node has seen the controllers' log, and the record of this in the object store.

A controller's directory that was restored from a copy lacks the batches committed after the copy was made,
and the directory alone does not show this. Nodes can detect it: before an action in the store that cannot be
undone (put an object, trim a log, delete), a node records the index up to which it has seen the log. A leader
compares these records with its own log when a node registers (docs/formats/cluster-marker.md).
"""

from __future__ import annotations

import asyncio
import logging
import re
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from ponor.controller.v1.session_service_pb2 import SeenHistory as SeenHistoryMessage
from ponor_runtime.clock import Clock
from ponor_runtime.identity import NodeId
from ponor_runtime.object_store import ObjectAlreadyExistsError, ObjectStore, ObjectStoreError

from ponor_metadata.client.store_marker import PREFIX

LOG: Final = logging.getLogger("ponor.joining")
NONCE_BYTES: Final = 8
RETRY_SECONDS: Final = 0.5
_KEY: Final = re.compile(r"clusters/[^/]+/seen/\d+/(\d{10})-(\d{20})-(\d{20})-([0-9a-f]{16})")
SEEN_MAX: Final = 64
"""Bound of the records that a node sends to the leader; the newest are sent."""


@dataclass(frozen=True, slots=True, order=True)
class SeenHistory:
    """A committed index, and the leader that reported it. `incarnation`: the incarnation of the quorum."""

    incarnation: int
    term: int
    index: int
    nonce: bytes

    def message(self) -> SeenHistoryMessage:
        """Return the message for a leader."""
        return SeenHistoryMessage(
            quorum_incarnation=self.incarnation,
            leader_term=self.term,
            leader_nonce=self.nonce,
            index=self.index,
        )

    def key(self, namespace: str, node_id: NodeId) -> str:
        """Return the key of a node's record. The key contains all fields, so one listing reads all
        records.
        """
        numbers = f"{self.incarnation:010d}-{self.term:020d}-{self.index:020d}"
        return f"{_prefix(namespace, node_id)}{numbers}-{self.nonce.hex()}"


def _prefix(namespace: str, node_id: NodeId) -> str:
    return f"{PREFIX}{namespace}/seen/{node_id}/"


def parse_key(key: str) -> SeenHistory | None:
    """Parse the key of a record; None for other keys."""
    match = _KEY.fullmatch(key)
    if match is None:
        return None
    return SeenHistory(int(match[1]), int(match[2]), int(match[3]), bytes.fromhex(match[4]))


async def read_seen(store: ObjectStore, namespace: str) -> tuple[SeenHistory, ...]:
    """Read the newest `SEEN_MAX` records of all nodes of a cluster.

    Raises:
        ObjectStoreError: the store does not answer.
    """
    prefix = f"{PREFIX}{namespace}/seen/"
    found = [seen async for info in store.list(prefix) if (seen := parse_key(info.key)) is not None]
    return tuple(sorted(found)[-SEEN_MAX:])


class Witness:
    """Records in the store how far a node has seen the log. Each newer record replaces the one before."""

    def __init__(self, store: ObjectStore, clock: Clock, namespace: str, node_id: NodeId) -> None:
        self._store = store
        self._clock = clock
        self._namespace = namespace
        self._node_id = node_id
        self._written: SeenHistory | None = None
        self._writing = asyncio.Lock()
        self._permitted = asyncio.Event()
        self._permitted.set()

    def hold(self) -> None:
        """Block writes until `permit`, because the store is not verified yet."""
        self._permitted.clear()

    def permit(self) -> None:
        """Allow writes, because the store belongs to the cluster."""
        self._permitted.set()

    async def write(self, seen: SeenHistory | None) -> None:
        """Record `seen`. It also covers all earlier indices.

        Returns when the record is durable; retries until the store answers.
        """
        if seen is None or self._covers(seen):
            return
        await self._permitted.wait()
        async with self._writing:
            if self._covers(seen):
                return
            while not await self._put(seen):
                await self._clock.sleep(RETRY_SECONDS)
            before, self._written = self._written, seen
            with suppress(ObjectStoreError):  # an older record may stay: what it states is still correct
                if older := await self._older_keys(before, seen):
                    await self._store.delete(older)

    async def _older_keys(self, before: SeenHistory | None, seen: SeenHistory) -> list[str]:
        """Return the keys that the new record replaces.

        The first record of a process replaces the records of the node's earlier processes.
        """
        if before is not None:
            return [before.key(self._namespace, self._node_id)]
        listed = self._store.list(_prefix(self._namespace, self._node_id))
        keys = [info.key async for info in listed]
        return [key for key in keys if (found := parse_key(key)) is not None and found < seen]

    async def _put(self, seen: SeenHistory) -> bool:
        key = seen.key(self._namespace, self._node_id)
        try:
            await self._store.put(key, [key.encode()])
        except ObjectAlreadyExistsError:
            return True  # an earlier attempt of this put succeeded
        except ObjectStoreError as error:
            LOG.warning(
                "the record of how far this node saw the controllers' log is not written yet: %s", error
            )
            return False
        return True

    def _covers(self, seen: SeenHistory) -> bool:
        return self._written is not None and self._written >= seen
