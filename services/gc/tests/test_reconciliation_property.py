"""Property test of reconciliation: it never deletes a needed object, and finally no garbage remains.

Writers prepare, put, commit and die; puts arrive late; a sweeper deletes and loses answers; the store fails
before and after calls; listings are stale; and the collector is killed and restarted during its rounds.
"""

from __future__ import annotations

import asyncio
import random
from dataclasses import replace

from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from ponor_metadata.nouns import counters
from ponor_metadata.nouns.objects import OBJECTS, ObjectState
from ponor_runtime.object_store import ObjectAlreadyExistsError, ObjectStoreError
from ponor_runtime.runtime import Runtime
from s3stream.objects.keys import key_prefixes, parse_object_key

from services.gc.tests.bucket_world import (
    HOUR_MS,
    MARKER,
    NAMESPACE,
    SETTINGS,
    BucketWorld,
    StaleListings,
    key_of,
)

HOURS = 6
WRITERS = 4
STRANGE_KEY = f"{next(iter(key_prefixes(NAMESPACE)))}no-number"
"""A key under this cluster's prefixes that is not an object key."""
LEASE_MS = HOUR_MS // 2
DELAY_MS = HOUR_MS // 6
"""The minimum age is far below the lease, because the proof must hold without it."""
OFTEN = replace(SETTINGS, reconcile_age_ms_min=60_000, reconcile_interval_ms=HOUR_MS // 2)


class History(BucketWorld):
    """Writers, deletions and failures during the collector's rounds."""

    def begin(self, quiet: bool = False) -> None:
        self.chance = random.Random(f"history {self.seed}")
        self.quiet = quiet
        self.written: set[str] = set()
        self.orphans_made = 0
        self.store.bucket.on_delete = self._check_deletion
        self.store.bucket.on_put = self._check_put

    def _check_deletion(self, key: str) -> None:
        namespace, object_id = parse_object_key(key)
        row = self.image[OBJECTS].get(object_id)
        assert namespace == NAMESPACE
        assert object_id < counters.next_value(self.image, counters.OBJECT), f"{key} is to come"
        assert row is None or row.state is ObjectState.DESTROYED, f"{key} is {row and row.state.name}"

    def _check_put(self, key: str) -> None:
        if key in {MARKER.key, STRANGE_KEY}:
            return
        self.orphans_made += parse_object_key(key)[1] not in self.image[OBJECTS]

    async def writer(self) -> None:
        """Write and commit objects; some puts are abandoned and arrive late."""
        while not self.quiet:
            object_id = self.prepare(LEASE_MS)
            hours = self.chance.choice((0.01, 0.1, 0.4, 1.5))
            await self.pass_hours(self.chance.uniform(0, hours))
            if not await self._put(object_id):
                continue
            await self.pass_hours(self.chance.uniform(0, 0.2))
            row = self.image[OBJECTS].get(object_id)
            if row is None or row.state is not ObjectState.PREPARED or row.expires_at_ms < self.now_ms():
                continue
            self.commit(object_id)
            self.written.add(key_of(object_id))

    async def _put(self, object_id: int) -> bool:
        while True:
            try:
                await self.put(key_of(object_id))
            except ObjectAlreadyExistsError:
                return True
            except ObjectStoreError:
                if self.chance.random() < 0.3:
                    return False
            else:
                return True

    async def trimmer(self) -> None:
        """Destroy committed objects."""
        while not self.quiet:
            await self.pass_hours(self.chance.uniform(0, 0.2))
            committed = [row for row in self.image[OBJECTS] if row.state is ObjectState.COMMITTED]
            if committed and self.chance.random() < 0.7:
                row = self.chance.choice(committed)
                self.destroy(row.object_id)
                self.written.discard(key_of(row.object_id))

    async def sweeper(self) -> None:
        """Claim, delete and confirm by the controller's rules; some confirmed deletions are undone."""
        while True:
            await self.pass_hours(0.05)
            now_ms = self.now_ms()
            for row in list(self.image[OBJECTS]):
                is_over = row.state is ObjectState.PREPARED and row.expires_at_ms + DELAY_MS < now_ms
                if is_over:
                    self.destroy(row.object_id)
                elif row.state is not ObjectState.DESTROYED or row.destroyed_at_ms + DELAY_MS >= now_ms:
                    continue
                data = self.store.bucket.objects.get(key_of(row.object_id))
                try:
                    await self.store.delete([key_of(row.object_id)])
                except ObjectStoreError:
                    continue
                self.remove(row.object_id)
                if data is not None and self.chance.random() < 0.2:
                    await self._undo(row.object_id, data)

    async def _undo(self, object_id: int, data: bytes) -> None:
        try:
            await self.put(key_of(object_id), data)
        except ObjectStoreError:
            return


@settings(
    max_examples=10, phases=[Phase.generate], deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
@given(
    seed=st.integers(0, 2**32),
    before=st.sampled_from((0.0, 0.02, 0.1)),
    after=st.sampled_from((0.0, 0.02, 0.1)),
    stale=st.sampled_from((0.0, 0.5)),
    kills=st.integers(0, 6),
)
def test_needed_objects_stay_and_garbage_is_deleted(
    seed: int, before: float, after: float, stale: float, kills: int
) -> None:
    world = History(seed)
    world.begin()

    async def collector(runtime: Runtime) -> None:
        listings = StaleListings(world.store, lambda: not world.quiet and world.chance.random() < stale)
        rounds = world.rounds(runtime, OFTEN, store=listings)
        await rounds.run(runtime.clock, runtime.randomness)

    async def scenario() -> None:
        await world.store.put(MARKER.key, [MARKER.encode()])
        process = world.simulation.process("gc", collector)
        process.start()
        world.store.faults.before, world.store.faults.after = before, after
        stranger = await _strange(world)
        loop = asyncio.get_running_loop()
        going = [loop.create_task(world.writer()) for _ in range(WRITERS)]
        going += [loop.create_task(world.trimmer()), loop.create_task(world.sweeper())]
        for _ in range(kills):
            await world.pass_hours(world.chance.uniform(0, HOURS / (kills + 1)))
            process.crash()
            process.start()
        await world.pass_hours(HOURS / (kills + 1))
        world.quiet = True
        world.store.faults.before = world.store.faults.after = 0.0
        await world.pass_hours(4)
        assert process.failure is None
        for task in going:
            task.cancel()
        await asyncio.gather(*going, return_exceptions=True)
        assert not [task for task in going if task.done() and not task.cancelled() and task.exception()]
        rows = {key_of(row.object_id) for row in world.image[OBJECTS]}
        assert rows == world.written, "exactly the live objects are committed and present"
        undead = world.keys - rows - {stranger}
        # The last undone deletions may be younger than the minimum age.
        assert {
            key for key in undead if world.store.bucket.put_at_ms[key] < world.now_ms() - HOUR_MS
        } == set()
        assert world.written <= world.keys
        assert stranger in world.keys
        process.crash()

    world.simulation.run(scenario())


async def _strange(world: History) -> str:
    while STRANGE_KEY not in world.keys:
        try:
            await world.put(STRANGE_KEY)
        except ObjectStoreError:
            continue
    return STRANGE_KEY
