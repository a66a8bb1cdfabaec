"""The judgement: after the faults the cluster must become quiescent, and all invariants of that
state must hold.

The checks run again after the zombies resume. After a power failure of all machines the logs are read again.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from functools import partial
from operator import attrgetter
from typing import Final

from ponor_metadata.image import snapshot
from ponor_metadata.image.image import MetadataImage
from ponor_metadata.image.validate import validate
from ponor_metadata.nouns.compactions import COMPACTIONS
from ponor_metadata.nouns.nodes import is_current
from ponor_metadata.nouns.objects import OBJECTS, ObjectState
from ponor_metadata.nouns.snapshot_leases import SNAPSHOTS
from ponor_metadata.nouns.streams import RECLAIMS, STREAMS
from ponor_metadata.nouns.topics import DELETIONS, MOVES, PARTITIONS
from ponor_metadata.nouns.wals import WALS
from ponor_simulation.process import wait_until
from s3stream.objects.keys import object_key

from ponor_cluster_simulation.histories.linearizability import Register, find_anomalies
from ponor_cluster_simulation.invariants.ledger import is_slot
from ponor_cluster_simulation.invariants.quiescence import abandoned_objects, unexplained
from ponor_cluster_simulation.invariants.registry import LIVENESS
from ponor_cluster_simulation.run.group_judgement import GroupJudgement
from ponor_cluster_simulation.run.run_world import RunWorld
from ponor_cluster_simulation.run.share_judgement import ShareJudgement
from ponor_cluster_simulation.run.streams_judgement import StreamsJudgement
from ponor_cluster_simulation.run.transaction_judgement import TransactionJudgement
from ponor_cluster_simulation.workload.cold_reader import ColdReader
from ponor_cluster_simulation.workload.keyed import KeyedWriter
from ponor_cluster_simulation.workload.producer import Producer
from ponor_cluster_simulation.workload.repeater import Repeater
from ponor_cluster_simulation.workload.stale_commits import StaleCommitter
from ponor_cluster_simulation.workload.wrong_compactions import WrongCompactor

LEADER_S_MAX: Final = 5.0
ANSWER_S_MAX: Final = 20.0
QUIESCENT_S_MAX: Final = 120.0
"""Virtual time in which the cluster must become quiescent after the last fault."""
IDLE_S_MIN: Final = 2.0
"""Time without a task after which compaction is finished; the workers' poll interval is shorter."""


class Judgement:
    """Judges one run at its end."""

    def __init__(self, world: RunWorld) -> None:
        self._world = world
        self._clients = world.clients
        self._cluster = world.cluster
        self._checks = world.checks
        self._transactions = TransactionJudgement(world)
        self._group = GroupJudgement(world)
        self._share = ShareJudgement(world)
        self._streams = StreamsJudgement(world)

    async def judge(self) -> None:
        """Run all checks.

        Raises:
            InvariantBrokenError: an invariant does not hold.
        """
        await self._await_quiescence()
        ends = await self._check_log_is_complete("reader")
        await self._transactions.check()
        await self._group.check(ends)
        await self._share.check(ends)
        await self._streams.check()
        self._check_linearizable()
        await self._check_settled()
        await self._check_zombies()
        for reader in self._clients.broker_readers:  # these readers also check the answers of resumed zombies
            reader.stop = True
        await self._check_after_power_cut()
        if len(self._cluster.controllers) == 1:
            await _check_rot(self._world)

    async def _check_settled(self) -> None:
        """Check that moves and recoveries are over, images are equal, and the store is clean."""
        await self._await_leaders_and_moves()
        await self._await_end_of_compaction()
        await self._await_liveness(
            "dead objects are destroyed and deleted topics are purged", self._is_reclaimed
        )
        await self._await_explained(39, unexplained)
        await self._await_explained(25, abandoned_objects)
        self._check_connections_closed()
        await self._check_images_equal()
        await self._await_clean_store()
        self._check_ledger_equals_image()

    async def _await_quiescence(self) -> None:
        clients, cluster = self._clients, self._cluster
        await self._await_liveness("a controller leads", lambda: cluster.has_leader, LEADER_S_MAX)
        await self._await_liveness("the cluster serves", lambda: self._serves)
        self._clients.stop()
        for committer in clients.committers:
            await self._await_liveness(
                "groups' offsets are known", partial(attrgetter("is_finished"), committer)
            )
        asking: list[Producer | StaleCommitter | Repeater | WrongCompactor] = [
            *clients.producers,
            *clients.stale_committers,
            *clients.repeaters,
            *clients.wrong_compactors,
        ]
        for client in asking:
            await self._await_liveness(
                f"{client.name} is answered", partial(attrgetter("is_finished"), client)
            )
        others: list[ColdReader | KeyedWriter] = [*clients.cold_readers, *clients.keyed_writers]
        for other in others:
            await self._await_liveness(
                "readers with leases and writers of keys have finished",
                partial(attrgetter("is_finished"), other),
            )
        for keyed in clients.keyed_readers:
            keyed.stop = True
            await self._await_liveness(
                f"{keyed.name} has read all", partial(attrgetter("is_finished"), keyed)
            )
        self._checks.counts[33] += sum(consumer.looks for consumer in clients.consumers)
        for consumer in clients.consumers:
            await self._await_liveness(
                f"{consumer.name} has read to the end", partial(attrgetter("is_at_end"), consumer)
            )
            consumer.stop = True

    @property
    def _serves(self) -> bool:
        absent = {*self._world.supervisor.refused, *self._asleep}
        return all(
            name in absent or (process.running and name in self._cluster.serving)
            for name, process in self._cluster.processes.items()
        )

    @property
    def _asleep(self) -> list[str]:
        """Brokers that stay paused until everything else is judged."""
        return [name for name, process in self._cluster.processes.items() if process.paused]

    async def _await_liveness(
        self, what: str, condition: Callable[[], bool], s_max: float = QUIESCENT_S_MAX
    ) -> None:
        await self._world.wait(LIVENESS, what, condition, s_max=s_max)

    async def _check_log_is_complete(self, name: str) -> dict[int, int]:
        """Read everything that was acknowledged with a new consumer: each record once, in order. Return the
        end of each partition.
        """
        clients = self._clients
        reader = clients.consumer(name)
        self._world.start(name, reader.run)
        await self._await_liveness(f"{name} has read all", lambda: reader.is_at_end)
        reader.stop = True
        for partition, log in enumerate(reader.logs):
            clients.history.check_log(partition, log)
            self._checks.counts[19] += len(log)
        if clients.keyed_writers:
            keyed = clients.keyed_reader(f"keyed-{name}", stop=True)
            self._world.start(keyed.name, keyed.run)
            await self._await_liveness(f"{keyed.name} has read all", lambda: keyed.is_finished)
        return {partition: len(log) for partition, log in enumerate(reader.logs)}

    def _images(self) -> dict[str, MetadataImage]:
        watch, processes = self._cluster.watch, self._cluster.processes
        awake = {name for name, process in processes.items() if process.running and not process.paused}
        images = {name: each.image for name, each in watch.controllers.items() if name in awake}
        images.update({name: each.image for name, each in watch.followers.items() if name in awake})
        assert self._world.observer is not None
        images["observer"] = self._world.observer.image
        return images

    async def _await_end_of_compaction(self) -> None:
        """Wait until no task, lease or multipart upload is left.

        An upload must be completed or aborted if its creator is running. If the collector reconciles the
        bucket, no upload may be left.
        """
        ledger, loop = self._world.ledger, self._world.simulation.loop
        store, calm_since = self._cluster.store, loop.time()
        reconciles = self._world.plan.compaction.reconciles
        busy, swapped_at = "", -1

        def rests() -> bool:
            nonlocal calm_since, busy, swapped_at
            self._world.supervisor.check()
            image = self._image()
            opened = () if store is None else store.bucket.multiparts.values()
            busy = ", ".join(
                (
                    *(f"compaction {row.task_id} of node {row.worker_id}" for row in image[COMPACTIONS]),
                    *(f"lease {row.lease_id} of {row.holder}" for row in image[SNAPSHOTS]),
                    *(
                        f"multipart upload of {each.key} by {each.is_forgotten_by or 'a process that ended'}"
                        for each in opened
                        if reconciles or each.is_forgotten_by
                    ),
                )
            )
            if busy or swapped_at != ledger.compactions.swapped_at:
                calm_since, swapped_at = loop.time(), ledger.compactions.swapped_at
            return not busy and loop.time() - calm_since >= IDLE_S_MIN

        try:
            await wait_until(rests, poll_s=0.1, timeout_s=QUIESCENT_S_MAX)
        except TimeoutError:
            self._checks.require(
                38, False, f"not within {QUIESCENT_S_MAX} s: {busy or 'compactions continue'}"
            )
        self._checks.require(38, True, "rests")

    def _is_reclaimed(self) -> bool:
        image = self._image()
        return not len(image[RECLAIMS]) and not len(image[DELETIONS])

    async def _await_explained(self, number: int, left: Callable[[MetadataImage], list[str]]) -> None:
        """Wait until `left`, which describes rows that violate invariant `number`, is empty."""
        try:
            await wait_until(lambda: not left(self._image()), poll_s=0.1, timeout_s=QUIESCENT_S_MAX)
        except TimeoutError:
            words = "; ".join(left(self._image())[:10])
            self._checks.require(number, False, f"not within {QUIESCENT_S_MAX} s: {words}")
        self._checks.require(number, True, "explained")

    def _check_connections_closed(self) -> None:
        """Check that callers have closed their connections."""
        forgotten = self._world.simulation.network.forgotten()
        self._checks.require(46, not forgotten, "; ".join(forgotten[:10]))

    async def _check_images_equal(self) -> None:
        await self._await_liveness(
            "all images are at one index",
            lambda: len({image.index for image in self._images().values()}) == 1,
        )
        images = self._images()
        bodies = {name: snapshot.encode(image) for name, image in images.items()}
        first = next(iter(bodies))
        for name, body in bodies.items():
            same = body == bodies[first] and images[name].digest == images[first].digest
            self._checks.require(28, same, f"the images of {name} and {first} differ at {images[name].index}")
        validate(images[first])

    async def _await_clean_store(self) -> None:
        """Wait until the store holds only objects of committed rows, slots of open logs, and fences."""

        def wanted() -> set[str]:
            image = self._image()
            return {
                object_key(row.namespace, row.object_id)
                for row in image[OBJECTS]
                if row.state is ObjectState.COMMITTED
            }

        deadline = self._world.simulation.loop.time() + QUIESCENT_S_MAX
        while True:
            self._world.supervisor.check()
            before, keys, after = wanted(), await self._cluster.keys(), wanted()
            wals = self._world.ledger.wals
            found = {key for key in keys if not (is_slot(key) and wals.is_wanted(key))}
            missing = before & after - found  # listings and commits run concurrently
            self._checks.require(22, not missing, f"committed, but not in the store: {sorted(missing)}")
            if before == found == after:
                break
            in_time = self._world.simulation.loop.time() < deadline
            self._checks.require(25, in_time, f"never deleted: {sorted(found - after)}")
            await asyncio.sleep(0.5)

    def _check_linearizable(self) -> None:
        """Check that one order of the operations on short-lived streams explains all answers."""
        history = self._clients.shared_streams.short_lived.history
        self._checks.counts[11] += sum(each.kind == "read" for each in history)
        found = find_anomalies(history, Register())
        if found:
            self._checks.require(11, False, "\n".join(map(str, found)))

    def _check_ledger_equals_image(self) -> None:
        """Check that ledger and image agree on committed objects and stream bounds."""
        image = self._image()
        committed = {int(row.object_id) for row in image[OBJECTS] if row.state is ObjectState.COMMITTED}
        ledger = set(self._world.ledger.objects.referred().values())
        self._checks.require(
            23,
            committed == ledger,
            f"the image and the ledger differ in the committed objects {sorted(committed ^ ledger)}",
        )
        for row in image[STREAMS]:
            page = self._world.ledger.streams.streams[int(row.stream_id)]
            self._checks.require(
                15,
                (row.start_offset, row.end_offset) == (page.start, page.end),
                f"stream {row.stream_id}: the image and the ledger differ in its start or end",
            )

    async def _await_leaders_and_moves(self) -> None:
        """Wait until moves have ended, logs of dead brokers are recovered, and live brokers lead."""
        names = [name for name in self._cluster.brokers if name not in self._asleep]
        nodes = {self._cluster.node_of(name) for name in names}

        def unsettled() -> str:
            image = self._image()
            moving = [
                f"partition {row.partition} from {row.source_id} to {row.target_id}" for row in image[MOVES]
            ]
            left = [
                f"log {row.node_id}/{row.wal_epoch}"
                for row in image[WALS]
                if not is_current(image, row.node_id, row.wal_epoch)
            ]
            lost = [
                f"partition {row.partition} of {row.topic_id.hex()} led by {row.leader_id}"
                for row in image[PARTITIONS]
                if row.leader_id not in nodes
            ]
            return ", ".join((*moving, *left, *lost))

        try:
            await wait_until(lambda: not unsettled(), poll_s=0.05, timeout_s=QUIESCENT_S_MAX)
        except TimeoutError:
            self._checks.require(34, False, f"not within {QUIESCENT_S_MAX} s: {unsettled()}")
        self._checks.require(34, True, "settled")

    def _image(self) -> MetadataImage:
        return next(iter(self._images().values()))

    async def _check_zombies(self) -> None:
        """Resume the zombies: after they detect the fence, nothing that they send has an effect."""
        assert self._world.injector is not None
        woken = self._world.injector.wake()
        if not woken:
            return
        lives = {name: self._cluster.processes[name].runtime for name in woken}

        def are_over() -> bool:
            return all(self._cluster.processes[name].runtime is not life for name, life in lives.items())

        await self._await_liveness(f"{', '.join(woken)} detect that they were fenced", are_over)
        await self._await_liveness("all brokers serve", lambda: self._serves)
        await self._check_log_is_complete("reader-after-zombies")
        await self._transactions.check_unchanged("after-zombies")
        await self._group.check_unchanged("after-zombies")
        await self._share.check_unchanged("after-zombies")
        await self._check_settled()

    async def _check_after_power_cut(self) -> None:
        """Cut the power of all machines, start them, and read all logs."""
        for process in self._cluster.processes.values():
            if process.running:
                process.crash(power_loss=True)
        for name, process in self._cluster.processes.items():
            if not process.running and name not in self._world.supervisor.refused:
                self._cluster.start(name)
        await self._check_log_is_complete("reader-after-power-cut")
        await self._transactions.check_unchanged("after-power-cut")
        await self._group.check_unchanged("after-power-cut")
        await self._share.check_unchanged("after-power-cut")
        self._world.supervisor.check()


async def _check_rot(world: RunWorld) -> None:
    """Stop the only controller, flip a bit of its disk, start it, and compare its state.

    The disk is the only copy, so the controller must refuse to start, or start with all committed batches.
    The orderly stop writes a proof of the synced end of the log, which also reveals a damaged last entry.

    Raises:
        InvariantBrokenError: the controller serves less than was committed.
    """
    cluster, (name,) = world.cluster, world.cluster.controllers
    process = cluster.processes[name]
    cluster.stop(name)
    await world.wait(LIVENESS, f"{name} has stopped", lambda: not process.running, s_max=ANSWER_S_MAX)
    before = cluster.watch.controllers[name].image.index
    place = process.disk.rot(random.Random(f"rot {world.plan.seed}").randrange(1 << 40))
    assert place is not None, "the disk of the controller is empty"
    cluster.flipped_bits[name] = place
    await world.wait(
        LIVENESS,
        f"{name} serves or refuses to start after the flipped bit at {place}",
        lambda: name in world.supervisor.refused or cluster.has_leader,
        s_max=ANSWER_S_MAX,
    )
    if name in world.supervisor.refused:
        return
    cluster.coverage.states["starts on a disk with a flipped bit, without a loss"] += 1
    image, observer = cluster.watch.controllers[name].image, world.observer
    assert observer is not None
    world.checks.require(
        3,
        image.index >= before,
        f"{name} has index {image.index} instead of {before} after the flipped bit at {place}",
    )
    # The observer has the image from before the damage. A controller that lost batches would send another
    # history, or nothing.
    await world.wait(
        LIVENESS,
        "the observer has the index of the controller",
        lambda: observer.image.index == image.index,
        s_max=ANSWER_S_MAX,
    )
    same = snapshot.encode(observer.image) == snapshot.encode(image)
    world.checks.require(
        10, same, f"{name} has another state at index {image.index} after the flipped bit at {place}"
    )
