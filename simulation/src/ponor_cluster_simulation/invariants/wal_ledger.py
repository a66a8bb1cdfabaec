"""The ledger of write-ahead logs in the store, compared with the contents of their slots:
invariants 31 and 32.

Slots are decoded as docs/formats/object-wal.md defines them.
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
from ponor_cluster_simulation.invariants.stream_ledger import Actor, Place, StreamLedger


@dataclass(slots=True)
class WalPage:
    """What is known of a log."""

    trim_sequence: int = 0
    is_open: bool = True


class WalLedger:
    """The ledger of logs.

    Args:
        bucket: the store of the slots; None if it cannot be observed.

    Attributes:
        namespace: of the cluster, part of every key.
        recoveries: number of logs that a process other than the owner closed.
        fences: number of fences that were found when a recovered log was closed.
    """

    def __init__(self, checks: Checks, streams: StreamLedger, bucket: SimBucket | None) -> None:
        self._checks = checks
        self._streams = streams
        self._bucket = bucket
        self.namespace = ""
        self.pages: dict[Actor, WalPage] = {}
        self._late: set[str] = set()
        """Slots that a repeated put stored after the trim. The collector deletes them after the log is
        closed.
        """
        self.recoveries = 0
        self.fences = 0

    # Records

    def cluster_formatted(self, record: records.ClusterFormatted, _: Place) -> None:
        """Record the namespace of the cluster."""
        self.namespace = record.namespace

    def wal_opened(self, record: records.WalOpened, _: Place) -> None:
        """Check the opening of a log."""
        owner = Actor(record.node_id, record.wal_epoch)
        self._checks.require(31, owner not in self.pages, f"the log of {owner} is opened twice")
        self._checks.require(
            31,
            self._streams.is_current(owner),
            f"{owner} opens a log, but this process is fenced or replaced",
        )
        self.pages[owner] = WalPage()
        self._streams.recoverers[owner] = owner

    def wal_recovery_assigned(self, record: records.WalRecoveryAssigned, _: Place) -> None:
        """Check a recoverer."""
        owner = Actor(record.node_id, record.wal_epoch)
        self._open_page(owner)
        over = not self._streams.is_current(owner)
        self._checks.require(31, over, f"the log of {owner} is recovered, but its owner may still commit")
        self._streams.recoverers[owner] = Actor(record.recoverer_id, record.recoverer_epoch)

    def wal_trimmed(self, record: records.WalTrimmed, _: Place) -> None:
        """Check a trim: all records of the trimmed slots are committed."""
        owner = Actor(record.node_id, record.wal_epoch)
        page = self._open_page(owner)
        rises = record.trim_sequence > page.trim_sequence
        self._checks.require(
            31,
            rises,
            f"the log of {owner} is trimmed to {record.trim_sequence}, but was already trimmed to"
            f" {page.trim_sequence}",
        )
        self._are_committed(owner, page.trim_sequence, record.trim_sequence)
        page.trim_sequence = record.trim_sequence

    def wal_closed(self, record: records.WalClosed, _: Place) -> None:
        """Check the close of a log."""
        owner = Actor(record.node_id, record.wal_epoch)
        page = self._open_page(owner)
        held = [number for number, stream in self._streams.streams.items() if stream.owner == owner]
        self._checks.require(31, not held, f"the log of {owner} is closed while its streams {held} are open")
        self._are_committed(owner, page.trim_sequence, record.end_sequence)
        page.is_open = False
        recoverer = self._streams.recoverers.pop(owner)
        if recoverer != owner:
            self.recoveries += 1
            self._is_fenced(owner, record.end_sequence)

    # The bucket

    def put(self, key: str) -> None:
        """Check a new slot: its log must have been opened, otherwise no process would find the slot."""
        name, sequence = parse_slot_key(key)
        page = self.pages.get(Actor(name.node_id, name.epoch))
        self._checks.require(31, page is not None, f"slot {key} of a log that was never opened")
        assert page is not None
        if sequence < page.trim_sequence:
            self._late.add(key)

    def deleted(self, key: str) -> None:
        """Check the deletion of a slot."""
        name, sequence = parse_slot_key(key)
        owner = Actor(name.node_id, name.epoch)
        page = self.pages.get(owner)
        self._checks.require(32, page is not None, f"slot {key} is deleted, but its log was never opened")
        assert page is not None
        label = self._label(key, name, sequence)
        self._checks.require(32, label.kind is not SlotKind.FENCE, f"the fence {key} is deleted")
        allowed = not page.is_open or sequence < page.trim_sequence
        self._checks.require(
            32, allowed, f"slot {key} is deleted, but the log is trimmed only to {page.trim_sequence}"
        )

    def is_wanted(self, key: str) -> bool:
        """Whether a slot may be in the store: a fence always, others while the log is open and not
        trimmed past them.
        """
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
        """Check that a recovered log ends in a fence, so that later puts of its owner have no effect."""
        if self._bucket is None:
            return
        name = self._name(owner)
        key = slot_key(name, end_sequence)
        there = key in self._bucket.objects
        self._checks.require(
            32, there, f"the log of {owner} was recovered, but has no fence at its end, {end_sequence}"
        )
        kind = self._label(key, name, end_sequence).kind
        self._checks.require(
            32, kind is SlotKind.FENCE, f"the last slot of the recovered log of {owner} is not a fence: {key}"
        )
        self.fences += 1

    def _are_committed(self, owner: Actor, first: int, end: int) -> None:
        """Check that all records of some slots are committed or belong to an ended epoch of their stream."""
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
                    f"slot {sequence} of {owner} is trimmed with offsets up to {record.end_offset} of stream"
                    f" {record.stream_id}, which ends at {0 if page is None else page.end}",
                )

    def _records(self, name: WalName, sequence: int) -> Iterator[StreamRecord]:
        assert self._bucket is not None
        key = slot_key(name, sequence)
        data = self._bucket.objects.get(key)
        self._checks.require(32, data is not None, f"slot {key} is trimmed, but is not in the store")
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
