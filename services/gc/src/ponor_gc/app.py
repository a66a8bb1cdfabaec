"""Composition root of the garbage collector: constructs its parts and starts and stops them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from ponor_metadata.client.image_reading import FollowImage, followed_image, read_image
from ponor_metadata.client.joining import Joined
from ponor_metadata.client.node_process import NodeOptions, run_node, until_fenced
from ponor_metadata.client.seen_history import Witness
from ponor_metadata.client.session import SessionClient
from ponor_metadata.nouns.nodes import NodeRole
from ponor_runtime.object_store import MultipartStore, ObjectStore
from ponor_runtime.ready_file import ServiceAddresses
from ponor_runtime.runtime import Runtime
from ponor_runtime.tasks import BackgroundTasks

from ponor_gc.abandoned_uploads import AbandonedUploads
from ponor_gc.deletion_right import DeletionRight
from ponor_gc.reconciliation import Reconciliation
from ponor_gc.rounds import Rounds
from ponor_gc.settings import GcSettings
from ponor_gc.sweeper import Sweeper
from ponor_gc.wal_leftovers import WalLeftovers


async def run(
    runtime: Runtime,
    settings: GcSettings,
    options: NodeOptions,
    *,
    store: ObjectStore,
    stop: asyncio.Event,
    ready: Callable[[ServiceAddresses], None],
    multipart: MultipartStore | None = None,
) -> None:
    """Collect until `stop` is set.

    The caller owns the stores and closes them. The errors are those of `run_node`.
    """

    def begin(session: SessionClient, joined: Joined, tasks: BackgroundTasks) -> None:
        clock, telemetry = runtime.clock, runtime.telemetry
        right = DeletionRight(store, clock, telemetry)
        witness = Witness(store, clock, joined.marker.namespace, joined.node_id)
        sweeper = Sweeper(session, store, joined.marker, right, witness, clock, settings, telemetry)
        leftovers = WalLeftovers(
            store,
            right,
            clock,
            settings,
            telemetry,
            lambda: read_image(runtime, options.controllers, session.cluster_id),
        )
        rounds = build_rounds(
            runtime,
            settings,
            lambda: followed_image(runtime, options.controllers, session.cluster_id),
            store=store,
            multipart=multipart,
            right=right,
        )
        tasks.spawn(until_fenced(sweeper.run()), "gc-sweeper")
        tasks.spawn(leftovers.run(), "gc-wal-leftovers")
        tasks.spawn(rounds.run(clock, runtime.randomness), "gc-rounds")

    await run_node(runtime, NodeRole.GC, options, store, stop, begin=begin, ready=ready)


def build_rounds(
    runtime: Runtime,
    settings: GcSettings,
    follow: FollowImage,
    *,
    store: ObjectStore,
    multipart: MultipartStore | None,
    right: DeletionRight | None = None,
) -> Rounds:
    """Build the reconciliation rounds, for a collector or for a command that runs one round."""
    clock, telemetry = runtime.clock, runtime.telemetry
    right = right or DeletionRight(store, clock, telemetry)
    objects = Reconciliation(store, right, clock, settings, telemetry)
    uploads = AbandonedUploads(multipart, clock, settings, telemetry)
    return Rounds(objects, uploads, right, settings, telemetry, follow)
