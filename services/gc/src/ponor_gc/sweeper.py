"""Sweeper: claims garbage from the controller, deletes it, and confirms the deletion.

A crash at any point is harmless: a collector later claims and deletes unconfirmed objects again, and deleting
absent objects is not an error. A claim that grants no objects causes no store request and no controller
record.
"""

from __future__ import annotations

import logging
from enum import Enum

from ponor.common.v1 import error_pb2
from ponor.controller.v1 import session_service_pb2 as wire
from ponor_metadata.client.seen_history import Witness
from ponor_metadata.client.session import SessionClient
from ponor_metadata.client.store_marker import ClusterMarker
from ponor_rpc.errors import OperationError
from ponor_runtime.clock import Clock
from ponor_runtime.identity import ObjectId
from ponor_runtime.object_store import ObjectStore, ObjectStoreError
from ponor_runtime.telemetry import Telemetry
from s3stream.objects.keys import object_key

from ponor_gc.deletion_right import DeletionRight
from ponor_gc.poll_interval import PollInterval
from ponor_gc.settings import GcSettings

logger = logging.getLogger(__name__)


class Sweep(Enum):
    """Result of a pass."""

    NOTHING = "no objects were due"
    SOME = "objects were deleted, and no more were due"
    FULL = "a full claim was deleted; more may be due"
    FAILED = (
        "nothing may be deleted, or claimed objects could not be deleted or confirmed; they are claimed"
        " again later"
    )


class Sweeper:
    """Deletes the objects that the controller grants."""

    def __init__(
        self,
        session: SessionClient,
        store: ObjectStore,
        marker: ClusterMarker,
        right: DeletionRight,
        witness: Witness,
        clock: Clock,
        settings: GcSettings,
        telemetry: Telemetry,
    ) -> None:
        self._session = session
        self._store = store
        self._marker = marker
        self._right = right
        self._witness = witness
        self._clock = clock
        self._settings = settings
        self._is_refused = False
        self._claimed = telemetry.counter("ponor_gc_claimed_total")
        self._deleted = telemetry.counter("ponor_gc_deleted_total")
        self._collected = telemetry.counter("ponor_gc_collected_total", reason="claimed")
        self._failures = telemetry.counter("ponor_gc_failures_total")

    async def run(self) -> None:
        """Sweep until cancelled."""
        interval = PollInterval(self._settings)
        while True:
            sweep = await self.sweep()
            if sweep is Sweep.FULL:
                pause_ms = interval.after_full()
            elif sweep is Sweep.SOME:
                pause_ms = interval.after_some()
            else:
                pause_ms = interval.after_nothing()
            await self._clock.sleep(pause_ms / 1000)

    async def sweep(self) -> Sweep:
        """Run one pass.

        Raises:
            NodeFencedError: another process registered under this node id; this one must stop.
            SessionClosedError: this process closed the session.
        """
        # A collector that must not delete leaves the objects to other collectors.
        if self._is_refused and not await self._may_delete():
            self._failures.add()
            return Sweep.FAILED
        claim = wire.ClaimObjects(limit=self._settings.claim_objects_max, ttl_ms=self._settings.claim_ttl_ms)
        result = await self._session.submit(wire.Operation(claim_objects=claim))
        granted = list(result.objects_granted.objects)
        if not granted:
            return Sweep.NOTHING
        self._claimed.add(len(granted))
        if not await self._may_delete():
            self._failures.add()
            return Sweep.FAILED
        # First record in the store how far this node saw the controllers' log. If the controllers later start
        # from an older copy of their log, in which the objects deleted here are still live, the record
        # exposes this.
        await self._witness.write(self._session.seen)
        keys_max = self._settings.delete_keys_max
        for at in range(0, len(granted), keys_max):
            batch = granted[at : at + keys_max]
            if not await self._delete(batch) or not await self._confirm(batch):
                self._failures.add()
                return Sweep.FAILED
            self._deleted.add(len(batch))
            self._collected.add(len(batch))
        return Sweep.FULL if len(granted) == self._settings.claim_objects_max else Sweep.SOME

    async def _may_delete(self) -> bool:
        """Check the right to delete; called only after a grant or a refusal, so that an idle collector makes
        no requests to the store.
        """
        try:
            self._is_refused = not await self._right.may_delete(self._marker)
        except ObjectStoreError as error:
            logger.warning("nothing is deleted until the cluster's marker can be read: %s", error)
            self._is_refused = True
        return not self._is_refused

    async def _delete(self, granted: list[wire.GrantedObject]) -> bool:
        keys = [object_key(each.namespace, ObjectId(each.object_id)) for each in granted]
        try:
            await self._store.delete(keys)
        except ObjectStoreError as error:
            logger.warning(
                "%d objects could not be deleted; they are claimed again later: %s", len(keys), error
            )
            return False
        return True

    async def _confirm(self, granted: list[wire.GrantedObject]) -> bool:
        confirm = wire.ConfirmDeleted(object_ids=[each.object_id for each in granted])
        try:
            await self._session.submit(wire.Operation(confirm_deleted=confirm))
        except OperationError as error:
            if error.code != error_pb2.ERROR_CODE_OBJECT_NOT_FOUND:
                raise
            logger.warning(
                "the claim of %d deleted objects expired before the confirmation: %s", len(granted), error
            )
            return False
        return True
