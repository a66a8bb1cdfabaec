"""The judgement: faults are over, and now everything must come to rest and be right.

What lives here: the liveness phase and what holds after it; then, after all machines lost their power once more, the same of the logs.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from operator import attrgetter
from typing import TYPE_CHECKING, Final

from ponor_metadata import snapshot
from ponor_metadata.image import MetadataImage
from ponor_metadata.rows import ObjectState
from ponor_metadata.validate import validate
from s3stream.objects.keys import object_key

from ponor_simulation.histories.linearizability import Register, find_anomalies
from ponor_simulation.invariants.registry import LIVENESS, Checks
from ponor_simulation.rot_trial import try_rot
from ponor_simulation.workload.consumer import Consumer
from ponor_simulation.workload.producer import Producer
from ponor_simulation.workload.repeater import Repeater
from ponor_simulation.workload.rivals import Rival

if TYPE_CHECKING:
    from ponor_simulation.run import ClusterRun

LEADER_S_MAX: Final = 5.0
CALM_S_MAX: Final = 120.0
"""Virtual time within which everything must have come to rest after the last fault."""


class Judgement:
    """Judges one run, at its end."""

    def __init__(self, run: ClusterRun) -> None:
        self._run = run
        self._cluster = run.cluster
        self._checks = Checks(run.cluster.coverage.checks)

    async def judge(self) -> None:
        """All of it.

        Raises:
            InvariantBrokenError: something does not hold.
        """
        await self._comes_to_rest()
        await self._log_is_whole("reader")
        self._answers_are_linearizable()
        await self._images_are_equal()
        await self._store_is_clean()
        self._rules_hold()
        await self._survives_a_power_cut()
        if len(self._cluster.controllers) == 1:
            await try_rot(self._run)

    async def _comes_to_rest(self) -> None:
        run, cluster = self._run, self._cluster
        await self._alive("a controller leads", lambda: cluster.has_leader, LEADER_S_MAX)
        await self._alive("the cluster serves", lambda: self._serves)
        for producer in run.producers:
            producer.stop = True
        run.admin.stop = run.arena.stop = True
        for repeater in run.repeaters:
            repeater.stop = True
        asking: list[Producer | Rival | Repeater] = [*run.producers, *run.rivals, *run.repeaters]
        for client in asking:
            await self._alive(f"{client.name} is answered", partial(attrgetter("is_finished"), client))
        for consumer in run.consumers:
            await self._alive(f"{consumer.name} is at the end", partial(attrgetter("is_at_end"), consumer))
            consumer.stop = True

    @property
    def _serves(self) -> bool:
        refused = self._run.supervisor.refused
        return all(
            name in refused or (process.running and name in self._cluster.serving)
            for name, process in self._cluster.processes.items()
        )

    async def _alive(self, what: str, condition: Callable[[], bool], s_max: float = CALM_S_MAX) -> None:
        await self._run.wait(LIVENESS, what, condition, s_max=s_max)

    async def _log_is_whole(self, name: str) -> None:
        """Somebody new reads everything that was acknowledged, once and in order."""
        run = self._run
        reader = Consumer(name, "orders", run.plan.partitions, run.history)
        run.client(name, reader.run)
        await self._alive(f"{name} has read all", lambda: reader.is_at_end)
        reader.stop = True
        for partition, log in enumerate(reader.logs):
            run.history.check_log(partition, log)
            self._checks.counts[19] += len(log)

    def _images(self) -> dict[str, MetadataImage]:
        watch, processes = self._cluster.watch, self._cluster.processes
        images = {name: each.image for name, each in watch.controllers.items() if processes[name].running}
        images.update({name: each.image for name, each in watch.followers.items() if processes[name].running})
        assert self._run.observer is not None
        images["observer"] = self._run.observer.image
        return images

    async def _images_are_equal(self) -> None:
        await self._alive(
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

    async def _store_is_clean(self) -> None:
        """The store comes to hold the objects of committed rows, and no others."""

        def wanted() -> set[str]:
            image = next(iter(self._images().values()))
            return {
                object_key(row.namespace, row.object_id)
                for row in image.objects
                if row.state is ObjectState.COMMITTED
            }

        deadline = self._run.simulation.loop.time() + CALM_S_MAX
        while True:
            self._run.supervisor.check()
            before, found, after = wanted(), await self._cluster.keys(), wanted()
            missing = before & after - found  # a listing takes its time, and so does a commit
            self._checks.require(22, not missing, f"committed and not in the store: {sorted(missing)}")
            if before == found == after:
                break
            in_time = self._run.simulation.loop.time() < deadline
            self._checks.require(25, in_time, f"never deleted: {sorted(found - after)}")
            await asyncio.sleep(0.5)

    def _answers_are_linearizable(self) -> None:
        """One order of all that was done to the mayflies explains what everybody was told of them."""
        history = self._run.arena.mayflies.history
        self._checks.counts[11] += sum(each.kind == "read" for each in history)
        found = find_anomalies(history, Register())
        self._checks.require(11, not found, "\n".join(map(str, found)))

    def _rules_hold(self) -> None:
        """Ledger and image agree on what is referred to."""
        image = next(iter(self._images().values()))
        committed = {int(row.object_id) for row in image.objects if row.state is ObjectState.COMMITTED}
        ledger = set(self._run.ledger.objects.referred().values())
        self._checks.require(
            23, committed == ledger, f"the image and the records differ on {sorted(committed ^ ledger)}"
        )
        for row in image.streams:
            page = self._run.ledger.streams.streams[int(row.stream_id)]
            self._checks.require(
                15,
                (row.start_offset, row.end_offset) == (page.start, page.end),
                f"stream {row.stream_id}: image and records differ",
            )

    async def _survives_a_power_cut(self) -> None:
        """Once more without power, and everything is still there."""
        for process in self._cluster.processes.values():
            if process.running:
                process.crash(power_loss=True)
        for name, process in self._cluster.processes.items():
            if not process.running and name not in self._run.supervisor.refused:
                self._cluster.start(name)
        await self._log_is_whole("reader-after-power-cut")
        self._run.supervisor.check()
