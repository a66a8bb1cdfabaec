"""The ledger's pages about write-ahead logs in the object store: what the controller knows of them, held against what is in their slots.

What lives here: invariants 31 and 32, kept from records and from what is done to the bucket. Slots are read as the format says (docs/formats/object-wal.md), never as a service believes them to be.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ponor.metadata.v1 import records_pb2 as records
from ponor_runtime.identity import NodeEpoch, NodeId
from ponor_runtime.turns import at_once
from ponor_simulation.object_store import SimBucket
from s3stream.object_wal.slot import Label, SlotKind, decode_label, slot_records
from s3stream.object_wal.slot_keys import parse_slot_key, slot_key
from s3stream.ports import WalName
from s3stream.records import StreamRecord

from ponor_cluster_simulation.invariants.registry import Checks
from ponor_cluster_simulation.invariants.stream_ledger import Actor, StreamLedger


@dataclass(slots=True)
class WalPage:
    """What is known of a log."""

    trim_sequence: int = 0
    is_open: bool = True


class WalLedger:
    """See the module's docstring.

    Args:
        bucket: where slots are; None where it cannot be seen.

    Attributes:
        namespace: of the cluster, part of every key.
        recoveries: logs that somebody else than their owner closed.
        fences: fences that were seen in the bucket when their log was closed.
    """

    def __init__(self, checks: Checks, streams: StreamLedger, bucket: SimBucket | None) -> None:
        self._checks = checks
        self._streams = streams
        self._bucket = bucket
        self.namespace = ""
        self.pages: dict[Actor, WalPage] = {}
        self._late: set[str] = set()
        """Slots that came after they were given up: a put that was repeated, and that nobody waits for. The collector finds them once the log is closed."""
        self.recoveries = 0
        self.fences = 0

    # Records

    def wal_opened(self, record: records.WalOpened) -> None:
        """A process may put slots."""
        owner = Actor(record.node_id, record.wal_epoch)
        self._checks.require(31, owner not in self.pages, f"the log of {owner} is opened twice")
        self._checks.require(31, self._streams.is_current(owner), f"{owner} opens a log and is not current")
        self.pages[owner] = WalPage()
        self._streams.recoverers[owner] = owner

    def wal_recovery_assigned(self, record: records.WalRecoveryAssigned) -> None:
        """Somebody acts for its owner."""
        owner = Actor(record.node_id, record.wal_epoch)
        self._open_page(owner)
        over = not self._streams.is_current(owner)
        self._checks.require(31, over, f"the log of {owner} is recovered while its owner has its rights")
        self._streams.recoverers[owner] = Actor(record.recoverer_id, record.recoverer_epoch)

    def wal_trimmed(self, record: records.WalTrimmed) -> None:
        """Slots below are needed no more: everything in them is committed."""
        owner = Actor(record.node_id, record.wal_epoch)
        page = self._open_page(owner)
        rises = record.trim_sequence > page.trim_sequence
        self._checks.require(
            31, rises, f"the log of {owner}: trimmed to {record.trim_sequence} after {page.trim_sequence}"
        )
        self._are_committed(owner, page.trim_sequence, record.trim_sequence)
        page.trim_sequence = record.trim_sequence

    def wal_closed(self, record: records.WalClosed) -> None:
        """Nothing of the log is needed any more."""
        owner = Actor(record.node_id, record.wal_epoch)
        page = self._open_page(owner)
        held = [number for number, stream in self._streams.streams.items() if stream.owner == owner]
        self._checks.require(31, not held, f"the log of {owner} is closed over the open streams {held}")
        self._are_committed(owner, page.trim_sequence, record.end_sequence)
        page.is_open = False
        recoverer = self._streams.recoverers.pop(owner)
        if recoverer != owner:
            self.recoveries += 1
            self._is_fenced(owner, record.end_sequence)

    # The bucket

    def put(self, key: str) -> None:
        """A slot came to be: after its log was opened, or nobody would know where to look for it."""
        name, sequence = parse_slot_key(key)
        page = self.pages.get(Actor(name.node_id, name.epoch))
        self._checks.require(31, page is not None, f"slot {key} of a log that was never opened")
        assert page is not None
        if sequence < page.trim_sequence:
            self._late.add(key)

    def deleted(self, key: str) -> None:
        """A slot is deleted from the bucket."""
        name, sequence = parse_slot_key(key)
        owner = Actor(name.node_id, name.epoch)
        page = self.pages.get(owner)
        self._checks.require(32, page is not None, f"slot {key} of a log that was never opened is deleted")
        assert page is not None
        label = self._label(key, name, sequence)
        self._checks.require(32, label.kind is not SlotKind.FENCE, f"the fence {key} is deleted")
        allowed = not page.is_open or sequence < page.trim_sequence
        self._checks.require(
            32, allowed, f"slot {key} is deleted, and the log is trimmed to {page.trim_sequence} only"
        )

    def is_wanted(self, key: str) -> bool:
        """Whether a key of a slot may stay in the store: a fence for ever, others as long as their log is not closed and they are not deleted by its owner."""
        name, sequence = parse_slot_key(key)
        page = self.pages.get(Actor(name.node_id, name.epoch))
        self._checks.require(31, page is not None, f"slot {key} of a log that was never opened")
        assert page is not None
        assert self._bucket is not None
        if key not in self._bucket.objects:
            return True  # deleted since the listing
        if self._label(key, name, sequence).kind is SlotKind.FENCE:
            return True
        return page.is_open and (sequence >= page.trim_sequence or key in self._late)

    def _is_fenced(self, owner: Actor, end_sequence: int) -> None:
        """A log that was taken over ends in a fence: whatever its owner still puts lies above it or is refused."""
        if self._bucket is None:
            return
        name = self._name(owner)
        key = slot_key(name, end_sequence)
        there = key in self._bucket.objects
        self._checks.require(
            32, there, f"the log of {owner} was taken over and has no fence at {end_sequence}"
        )
        kind = self._label(key, name, end_sequence).kind
        self._checks.require(32, kind is SlotKind.FENCE, f"the end of the log of {owner} is no fence: {key}")
        self.fences += 1

    def _are_committed(self, owner: Actor, first: int, end: int) -> None:
        """All records of some slots are in committed objects, or belong to a life of their stream that is over."""
        if self._bucket is None:
            return
        for sequence in range(first, end):
            for record in self._records(self._name(owner), sequence):
                page = self._streams.streams.get(record.stream_id)
                is_over = (
                    page is None or page.epoch != record.epoch or record.stream_id in self._streams.abandoned
                )
                self._checks.require(
                    32,
                    is_over or (page is not None and record.end_offset <= page.end),
                    f"slot {sequence} of {owner} is given up with offsets up to {record.end_offset} of stream {record.stream_id}, "
                    f"which ends at {0 if page is None else page.end}",
                )

    def _records(self, name: WalName, sequence: int) -> Iterator[StreamRecord]:
        assert self._bucket is not None
        key = slot_key(name, sequence)
        data = self._bucket.objects.get(key)
        self._checks.require(32, data is not None, f"slot {key} is given up and is not in the store")
        assert data is not None
        label = decode_label(key, name, sequence, data)
        if label.kind is SlotKind.FENCE:
            return
        yield from at_once(slot_records(key, label, data))

    def _label(self, key: str, name: WalName, sequence: int) -> Label:
        assert self._bucket is not None
        return decode_label(key, name, sequence, self._bucket.objects[key])

    def _name(self, owner: Actor) -> WalName:
        return WalName(self.namespace, NodeId(owner.node_id), NodeEpoch(owner.node_epoch))

    def _open_page(self, owner: Actor) -> WalPage:
        page = self.pages.get(owner)
        self._checks.require(31, page is not None and page.is_open, f"the log of {owner} is not open")
        assert page is not None
        return page
