"""Adds the counters of clients, disks, bucket and ledger to the coverage of a run.

`Coverage.harvest` adds the counters of the services when a life of a process ends.
"""

from __future__ import annotations

from ponor_metadata.nouns.compactions import CompactionKind
from ponor_metadata.nouns.nodes import WalKind

from ponor_cluster_simulation.histories.transactions import Outcome
from ponor_cluster_simulation.run.run_world import RunWorld
from ponor_cluster_simulation.workload.consumer import Consumer
from ponor_cluster_simulation.workload.producer import Producer
from ponor_cluster_simulation.workload.wrong_compactions import OUTCOMES


def count_effects(world: RunWorld) -> None:
    """Add what happened in a run to its coverage."""
    coverage, hub, clients = world.cluster.coverage, world.simulation.network, world.clients
    coverage.runs = 1
    coverage.virtual_s = world.simulation.loop.time()
    coverage.events = world.simulation.trace.events
    effects, states = coverage.effects, coverage.states
    effects["frames lost"] += hub.lost_frames
    effects["connections abandoned by one end"] += hub.abandoned_connections
    effects["frames delayed by a clogged link"] += hub.stalled_frames
    disks = [process.disk for process in world.cluster.processes.values()]
    effects["files that lost bytes in a power loss"] += sum(disk.torn_files for disk in disks)
    effects["disk operations that failed"] += sum(disk.failed_operations for disk in disks)
    effects["disks with a flipped bit"] += len(world.cluster.flipped_bits)
    if world.cluster.store is not None:
        bucket = world.cluster.store.bucket
        effects["store calls applied without an answer"] += bucket.unanswered
        effects["store calls that failed"] += bucket.calls.total() - bucket.applied.total()
        states["pages of listings after the first"] += bucket.listing_pages
        effects["gets that returned too few bytes"] += bucket.short_reads
    effects["processes ended by a fault"] += world.injector.crashes if world.injector is not None else 0
    offsets = clients.history.acknowledged.values()
    states["records acknowledged to producers"] += len(offsets)
    states["records acknowledged without an offset"] += sum(offset is None for offset in offsets)
    states["records read by consumers"] += clients.history.reads
    states["batches that producers sent again"] += sum(producer.repeats for producer in clients.producers)
    states["images replaced by a snapshot"] += world.cluster.watch.resets
    states["terms in which a controller led"] += len(world.cluster.watch.leaders)
    states["images that a controller installed from another"] += world.cluster.watch.installs
    states["runs with three controllers"] += world.plan.controllers == 3
    states["runs with several brokers"] += world.plan.brokers > 1
    states["runs with object logs"] += world.plan.wal is WalKind.OBJECT
    followers: list[Producer | Consumer] = [*clients.producers, *clients.consumers]
    states["offsets committed by groups"] += sum(each.commits for each in clients.committers)
    states["changes of a group's coordinator"] += sum(each.coordinators for each in clients.committers)
    _count_compaction(world)
    _count_transactions(world)
    _count_group(world)
    _count_share_group(world)
    _count_streams_group(world)
    for kind, count in world.ledger.steps_taken.items():
        states[f"protocol steps: {kind}"] += count
    states["moves requested"] += sum(each.asked for each in clients.movers)
    states["moves begun"] += world.ledger.partitions.moves_begun
    states["moves cancelled"] += world.ledger.partitions.moves_cancelled
    states["changes of a partition's leader"] += world.ledger.partitions.elections
    states["logs recovered by another process"] += world.ledger.wals.recoveries
    states["fences at the end of a recovered log"] += world.ledger.wals.fences
    states["brokers fenced"] += len(world.ledger.streams.fenced)
    states["leader hints that clients used"] += sum(each.leaders.hints for each in followers)
    states["records of metadata committed"] += world.ledger.records
    states["rivals: commits"] += clients.shared_streams.commits
    states["rivals: refusals"] += clients.shared_streams.fenced
    states["answers of one broker compared"] += sum(each.reads for each in clients.broker_readers)
    states["linearizable reads at one controller"] += sum(each.reads for each in clients.controller_readers)
    states["repeaters: repeats answered"] += sum(each.repeats for each in clients.repeaters)
    states["repeaters: other bodies refused"] += sum(each.mismatches for each in clients.repeaters)


def _count_transactions(world: RunWorld) -> None:
    states, shared = world.cluster.coverage.states, world.clients.transactions.shared
    states["runs with transactions"] += bool(world.plan.transactions.clients)
    for outcome in Outcome:
        states[f"transactions: {outcome.value}"] += shared.history.count(outcome)
    for name, count in shared.states.items():
        states[f"transactions: {name}"] += count


def _count_group(world: RunWorld) -> None:
    states, shared = world.cluster.coverage.states, world.clients.group
    states["runs with members of a group"] += bool(world.plan.group.clients)
    states["groups: commits acknowledged"] += shared.history.count_acknowledged()
    states["groups: offsets fetched"] += len(shared.history.seen_offsets)
    for name, count in shared.states.items():
        states[f"groups: {name}"] += count


def _count_share_group(world: RunWorld) -> None:
    states, shared = world.cluster.coverage.states, world.clients.share_group
    states["runs with members of a share group"] += bool(world.plan.share_group.clients)
    states["share groups: records acquired"] += len(shared.history.acquisitions)
    for name, count in shared.states.items():
        states[f"share groups: {name}"] += count


def _count_streams_group(world: RunWorld) -> None:
    states = world.cluster.coverage.states
    states["runs with members of a streams group"] += bool(world.plan.streams_group.clients)
    for name, count in world.clients.streams_group.states.items():
        states[f"streams groups: {name}"] += count


def _count_compaction(world: RunWorld) -> None:
    states, ledger, clients = world.cluster.coverage.states, world.ledger.compactions, world.clients
    states["runs with reconciliations"] += world.plan.compaction.reconciles
    states["runs with compactors"] += world.plan.compaction.compactors > 0
    for kind in CompactionKind:
        states[f"compactions: {kind.name.lower()} swapped"] += ledger.swaps.get(kind, 0)
    states["compactions: tasks leased again"] += ledger.given_again
    states["compactions: swaps with missing sources"] += ledger.over_some
    states["compactions: swaps without outputs"] += ledger.without_outputs
    states["runs with narrow compactors"] += world.plan.compaction.is_narrow
    states["runs that rewrite objects after a minimal trim"] += world.plan.compaction.wears_early
    for outcome in OUTCOMES:
        states[f"wrong commits of compactions: {outcome.lower()}"] += sum(
            each.outcomes[outcome] for each in clients.wrong_compactors
        )
    states["snapshots leased"] += world.ledger.snapshots.leased
    states["records read under a lease"] += clients.stream_history.reads
    states["reads that failed after their lease"] += clients.stream_history.late
    states["records of the compacted topic acknowledged"] += len(clients.keyed_history.acknowledged)
    states["records of the compacted topic read"] += clients.keyed_history.reads
    states["removals of objects checked against a lease"] += world.ledger.snapshots.kept
    if world.cluster.store is not None:
        states["multipart uploads begun"] += world.cluster.store.bucket.multiparts_begun
        states["parts copied by the store"] += world.cluster.store.bucket.applied["multipart_copy"]
