"""What a run met: counters that stand with clients, disks, the bucket and the ledger, added to its coverage.

What lives here: their names, and where each is found. What services count themselves is added by `coverage` when one of their lives ends.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ponor_metadata.rows import CompactionKind, WalKind

from ponor_simulation.workload.consumer import Consumer
from ponor_simulation.workload.meddler import OUTCOMES as MEDDLED
from ponor_simulation.workload.producer import Producer

if TYPE_CHECKING:
    from ponor_simulation.run import ClusterRun


def count_effects(run: ClusterRun) -> None:
    """Add what a run met to its coverage, at its end."""
    coverage, hub = run.cluster.coverage, run.simulation.network
    coverage.runs = 1
    coverage.virtual_s = run.simulation.loop.time()
    coverage.events = run.simulation.trace.events
    effects, states = coverage.effects, coverage.states
    effects["frames lost"] += hub.lost_frames
    effects["connections abandoned by one end"] += hub.abandoned_connections
    effects["frames held up by a clog"] += hub.stalled_frames
    disks = [process.disk for process in run.cluster.processes.values()]
    effects["files that a power loss tore"] += sum(disk.torn_files for disk in disks)
    effects["disk operations that failed"] += sum(disk.failed_operations for disk in disks)
    effects["disks that rotted"] += len(run.cluster.rotten)
    if run.cluster.store is not None:
        bucket = run.cluster.store.bucket
        effects["calls of the store that were applied and not answered"] += bucket.unanswered
        effects["calls of the store that failed"] += bucket.calls.total() - bucket.applied.total()
        states["pages of listings behind the first"] += bucket.listing_pages
        effects["reads of the store that came back short"] += bucket.short_reads
    effects["processes ended by a fault"] += run.injector.crashes if run.injector is not None else 0
    told = run.history.acknowledged.values()
    states["records acknowledged to producers"] += len(told)
    states["records acknowledged as stored long before"] += sum(offset is None for offset in told)
    states["records read by consumers"] += run.history.reads
    states["batches that producers sent again"] += sum(producer.repeats for producer in run.producers)
    states["images replaced by a snapshot"] += run.cluster.watch.resets
    states["terms in which a controller led"] += len(run.cluster.watch.leaders)
    states["images that a controller took from another"] += run.cluster.watch.installs
    states["runs with three controllers"] += run.plan.controllers == 3
    states["runs with several brokers"] += run.plan.brokers > 1
    states["runs with object logs"] += run.plan.wal is WalKind.OBJECT
    followers: list[Producer | Consumer] = [*run.producers, *run.consumers]
    states["offsets committed by groups"] += sum(each.commits for each in run.committers)
    states["coordinators that groups changed to"] += sum(each.coordinators for each in run.committers)
    _count_compaction(run)
    states["moves asked for"] += sum(each.asked for each in run.movers)
    states["moves begun"] += run.ledger.partitions.moves_begun
    states["moves called off"] += run.ledger.partitions.moves_cancelled
    states["partitions that changed hands"] += run.ledger.partitions.elections
    states["logs recovered by another process"] += run.ledger.wals.recoveries
    states["fences at the end of a recovered log"] += run.ledger.wals.fences
    states["brokers fenced"] += len(run.ledger.streams.fenced)
    states["hints that clients took"] += sum(each.leaders.hints for each in followers)
    states["records of metadata committed"] += run.ledger.records
    states["rivals: commits"] += run.arena.commits
    states["rivals: refusals"] += run.arena.fenced
    states["answers of one broker compared"] += sum(each.reads for each in run.broker_readers)
    states["linearizable reads at one controller"] += sum(each.reads for each in run.loyal_readers)
    states["repeaters: repeats answered"] += sum(each.repeats for each in run.repeaters)
    states["repeaters: other bodies refused"] += sum(each.mismatches for each in run.repeaters)


def _count_compaction(run: ClusterRun) -> None:
    states, ledger = run.cluster.coverage.states, run.ledger.compactions
    states["runs with reconciliations"] += run.plan.compaction.reconciles
    states["runs with compactors"] += run.plan.compaction.compactors > 0
    for kind in CompactionKind:
        states[f"compactions: {kind.name.lower()} swapped"] += ledger.swaps.get(kind, 0)
    states["compactions: tasks given to another worker"] += ledger.given_again
    states["compactions: swaps of which some sources were gone"] += ledger.over_some
    states["compactions: swaps that left nothing"] += ledger.without_outputs
    states["runs with narrow compactors"] += run.plan.compaction.is_narrow
    states["runs whose objects wear early"] += run.plan.compaction.wears_early
    for outcome in MEDDLED:
        states[f"wrong commits of compactions: {outcome.lower()}"] += sum(
            each.outcomes[outcome] for each in run.meddlers
        )
    states["snapshots leased"] += run.ledger.snapshots.leased
    states["records read under a lease"] += run.stream_history.reads
    states["reads that came after their lease"] += run.stream_history.late
    states["records of the compacted topic acknowledged"] += len(run.keyed_history.acknowledged)
    states["records of the compacted topic read"] += run.keyed_history.reads
    states["objects that went while a snapshot was leased"] += run.ledger.snapshots.kept
    if run.cluster.store is not None:
        states["uploads in parts begun"] += run.cluster.store.bucket.multiparts_begun
        states["parts copied by the store"] += run.cluster.store.bucket.applied["multipart_copy"]
