"""A scenario: a broker dies, and the store has lost an acknowledged slot of its write-ahead log.

No process may continue as if the slot had never existed. The partitions stay closed until an
operator restores the slot. Then everything acknowledged is readable.
"""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Final

from ponor_cluster_simulation.cluster.sim_cluster import ClusterSettings, SimCluster
from ponor_cluster_simulation.invariants.ledger import Ledger, is_slot
from ponor_cluster_simulation.invariants.registry import Checks
from ponor_cluster_simulation.run.compaction_plan import draw_compaction
from ponor_cluster_simulation.run.plan import draw_settings
from ponor_cluster_simulation.workload.admin import Admin
from ponor_cluster_simulation.workload.consumer import Consumer
from ponor_cluster_simulation.workload.history import ClusterHistory
from ponor_cluster_simulation.workload.producer import Producer
from ponor_metadata.nouns.nodes import WalKind
from ponor_metadata.nouns.streams import STREAMS
from ponor_metadata.nouns.wals import WALS
from ponor_simulation.process import wait_until
from ponor_simulation.simulation import Simulation
from s3stream.object_wal.slot_keys import parse_slot_key

TOPIC: Final = "orders"
PARTITIONS: Final = 4
DEAD: Final = "broker-0"
SLOTS_MIN: Final = 12
LOOKED_AT_S: Final = 6.0
"""Long enough to fence the broker, assign its log and read it."""


class LostSlotStory:
    """The scenario. Use it once."""

    def __init__(self, seed: int) -> None:
        self.simulation = Simulation(seed)
        settings = _settings(seed)
        self.cluster = SimCluster(self.simulation, settings, brokers=2, wal=WalKind.OBJECT)
        self.history = ClusterHistory()
        assert self.cluster.store is not None
        self.bucket = self.cluster.store.bucket
        self.ledger = Ledger(Checks(), self.bucket, settings.controller.destroy_delay_ms)
        self.cluster.watch.on_batch = self.ledger.batch
        self.bucket.on_delete, self.bucket.on_put = self.ledger.deleted, self.ledger.put
        bootstrap = self.cluster.kafka_addresses
        self.admin = Admin(TOPIC, PARTITIONS, bootstrap=bootstrap)
        self.producer = Producer("producer", TOPIC, PARTITIONS, self.history, bootstrap=bootstrap)
        self.reader = Consumer("reader", TOPIC, PARTITIONS, self.history, bootstrap=bootstrap)

    def run(self) -> None:
        """Run the scenario."""
        with self.cluster.watch.on():
            self.simulation.run(self._scenario())

    async def _scenario(self) -> None:
        self.cluster.start_all()
        await wait_until(lambda: self.cluster.is_serving)
        self.simulation.process("admin", self.admin.run).start()
        self.admin.stop = True
        self.simulation.process("producer", self.producer.run).start()
        await wait_until(lambda: len(self._slots()) >= SLOTS_MIN)
        self.producer.stop = True
        await wait_until(lambda: self.producer.is_finished)
        lost = self._slots()[SLOTS_MIN // 2]
        self.cluster.processes[DEAD].crash(power_loss=True)
        content = self.bucket.objects.pop(lost)
        await self._is_noticed()
        self.bucket.objects[lost] = content
        self.simulation.process("reader", self.reader.run).start()
        await wait_until(lambda: self.reader.is_at_end, timeout_s=200.0)
        for partition, log in enumerate(self.reader.logs):
            self.history.check_log(partition, log)

    async def _is_noticed(self) -> None:
        """Check that the log is assigned to a recoverer, which trims nothing."""
        image = self.cluster.watch.controllers["controller"].image
        await wait_until(lambda: any(row.token for row in image[WALS]))
        loop = self.simulation.loop
        until_s = loop.time() + LOOKED_AT_S
        await wait_until(lambda: loop.time() > until_s)
        self.cluster.check_alive()
        assert any(row.token for row in image[WALS]), "the log of the dead broker was closed over a lost slot"
        node = self.cluster.node_of(DEAD)
        held = any(row.open and row.node_id == node for row in image[STREAMS])
        assert held, "streams were closed over the lost slot"

    def _slots(self) -> list[str]:
        """Slots of the broker that will die, in order."""
        node = self.cluster.node_of(DEAD)
        return sorted(
            key for key in self.bucket.objects if is_slot(key) and parse_slot_key(key)[0].node_id == node
        )


def _settings(seed: int) -> ClusterSettings:
    """Settings without uploads, so that all records are in the log."""
    settings = draw_settings(random.Random(f"lost slot {seed}"), draw_compaction(seed, has_bucket=False))
    storage = replace(
        settings.broker.storage,
        upload_interval_ms=600_000,
        upload_size_bytes_max=1 << 20,
        log_cache_bytes_max=8 << 20,
        wal_recovery_slots_max=1_024,
        wal_bytes_max=8 << 20,
    )
    return replace(settings, broker=replace(settings.broker, storage=storage))
