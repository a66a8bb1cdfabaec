"""All planted bugs: a simulation that does not catch them proves nothing.

The recorded seeds were found by `python -m tests.simulation.catching_seeds NAME`.
"""

from __future__ import annotations

from typing import Final

from crc32c import crc32c
from ponor_broker import node
from ponor_broker.coordination.record_log import RecordLog as CoordinatorLog
from ponor_broker.coordination.shards import Shards
from ponor_broker.groups.offsets import OffsetTable
from ponor_broker.handlers.fetch import committed_reads
from ponor_broker.handlers.fetch.fetch import FetchHandler
from ponor_broker.partitions.handoff.handoff_target import HandoffTarget
from ponor_broker.partitions.handoff.owned_streams import OwnedStreams
from ponor_broker.partitions.partition import Partition
from ponor_broker.partitions.service_state import ServiceState
from ponor_broker.partitions.state.durable_state import DurableState
from ponor_broker.partitions.state.producer_state import ProducerStates
from ponor_broker.partitions.state.sequence_order import RefusedSequences
from ponor_broker.partitions.transactions.aborted_index import AbortedIndex
from ponor_broker.partitions.transactions.open_transactions import OpenTransactions
from ponor_broker.serving import Serving
from ponor_broker.transactions.marker_sender import MarkerSender
from ponor_broker.transactions.transaction import Transaction
from ponor_broker.transactions.verification import TransactionVerifier
from ponor_cluster_simulation.raft_cluster.disk import RaftDisk
from ponor_controller.consensus.record_log import RecordLog
from ponor_controller.consensus.snapshot_files import SnapshotFiles
from ponor_controller.domains.compaction import duty as compaction_duty
from ponor_controller.domains.compaction import operations as compaction_operations
from ponor_controller.domains.leases.duty import LeaseDuty
from ponor_controller.domains.objects import dead_objects, reclaim_duty, uploads
from ponor_controller.domains.objects import operations as objects
from ponor_controller.domains.streams import operations as streams
from ponor_controller.domains.topics import keys
from ponor_controller.kernel.executor import Executor
from ponor_controller.kernel.node_activity import NodeActivity
from ponor_controller.server.sessions import session_service
from ponor_controller.server.sessions.session_service import SessionService
from ponor_controller.server.subscriptions.subscription_service import SubscriptionService
from ponor_gc.deletion_right import DeletionRight
from ponor_gc.sweeper import Sweeper
from ponor_journal import format as journal_format
from ponor_journal import scan
from ponor_journal import writer as journal_writer
from ponor_journal.entry_queue import EntryQueue
from ponor_journal.segment_files import SegmentFiles
from ponor_journal.writer import JournalWriter
from ponor_metadata.client.followed_image import FollowedImage
from ponor_metadata.image import image, registry, snapshot
from ponor_metadata.nouns import objects as object_rules
from ponor_raft import leading
from ponor_raft.election import Election
from ponor_raft.following import Following
from ponor_raft.log_window import LogWindow
from ponor_raft.outbox import Outbox
from ponor_raft.reads import ReadRounds
from ponor_raft.replica import Replica
from ponor_raft.replication import Replication
from ponor_runtime.observer_clock import ObserverClock
from ponor_simulation.disk import SimDisk
from ponor_simulation.network import SimNetwork
from s3stream.compaction import copy_planning, iterations, plan, planning
from s3stream.compaction.movement import PartUploads
from s3stream.group_commit import GroupCommit
from s3stream.object_wal.object_wal import ObjectWal
from s3stream.object_wal.slot_deletion import SlotDeletion
from s3stream.object_wal.walk import WalWalk
from s3stream.recovery import RecoveryFilter, Verdict
from s3stream.storage import Storage
from s3stream.stream import Stream
from s3stream.takeover import _Takeover
from s3stream.upload import UploadPipeline

from tests.simulation.mutants import broker, compaction, controller, raft, storage, transactions
from tests.simulation.mutants.mutant import Catch, Mutant, Patch, Suite, method, used_in

SWARM, RAFT, CLUSTER = Suite.SWARM, Suite.RAFT, Suite.CLUSTER
STORAGE, JOURNAL, CONTROLLER_LOG = Suite.STORAGE, Suite.JOURNAL, Suite.CONTROLLER_LOG

RAFT_MUTANTS: Final = (
    Mutant(
        "raft_votes_before_durable",
        "A vote is sent before it is on the disk; after a crash the replica votes again in the same term.",
        (method(Outbox.send_when_durable, raft.send_votes_at_once),),
        (Catch(RAFT, "invariant 7: .* votes for", 1),),
    ),
    Mutant(
        "raft_votes_twice",
        "A replica votes for every candidate of a term.",
        (method(Election.answer, raft.vote_twice),),
        (Catch(RAFT, "invariant 8|invariant 1:|assert in", 1),),
    ),
    Mutant(
        "raft_votes_for_shorter_logs",
        "A replica grants a vote without comparing the candidate's log.",
        (method(Election.answer, raft.vote_for_shorter_log),),
        (Catch(RAFT, "invariant 5", 5),),
    ),
    Mutant(
        "raft_acknowledges_before_durable",
        "A follower acknowledges entries to the leader while they are being written.",
        (method(Outbox.send_when_durable, raft.send_acknowledgements_at_once),),
        (Catch(RAFT, "invariant 7: .* acknowledges", 1),),
    ),
    Mutant(
        "raft_leader_counts_itself_early",
        "A leader counts its own entries before they are on its disk (etcd-io/etcd #14370 for one voter).",
        (method(Replication.advance_commit, raft.count_entries_in_flight),),
        (Catch(RAFT, "invariant 7: .* which is durable at", 1),),
    ),
    Mutant(
        "raft_storage_out_of_order",
        "The disk reports writes in any order, and the core takes a later one for all earlier ones.",
        (
            method(Outbox.persisted, raft.persisted_with_earlier),
            method(LogWindow.end_write, raft.end_with_earlier),
            method(RaftDisk.end_oldest, raft.end_newest),
        ),
        (Catch(RAFT, "invariant 7", 1),),
    ),
    Mutant(
        "raft_commits_old_terms",
        "A leader commits entries of earlier terms by counting replicas (Figure 8 of the Raft paper).",
        (method(Replication.advance_commit, raft.commit_old_terms),),
        (Catch(RAFT, "invariant 5: .* an entry of term", 5),),
    ),
    Mutant(
        "raft_changes_overlap",
        "A membership change begins before the previous one is committed.",
        used_in("check_change", raft.ignore_refusal("is not committed yet"), leading),
        (Catch(RAFT, "invariant 9", 18),),
    ),
    Mutant(
        "raft_changes_before_own_term",
        "A leader changes the membership before it has committed an entry of its term (Ongaro, raft-dev,"
        " 2015).",
        used_in("check_change", raft.ignore_refusal("of its own term"), leading),
        (Catch(RAFT, "invariant 9", 18),),
    ),
    Mutant(
        "raft_reads_without_heartbeats",
        "A leader answers reads from its commit index without confirming that it still leads.",
        (method(ReadRounds.add, raft.answer_read_at_once),),
        (Catch(RAFT, "invariant 11|not linearizable", 6), Catch(SWARM, r"invariant 11", 1)),
    ),
    Mutant(
        "raft_full_window_refuses_openings",
        "A follower with a full window refuses all entries, also those that commits and compaction need.",
        (method(Following._admitted, raft.admit_nothing_when_full),),
        (Catch(RAFT, "no recovery", 46),),
    ),
    Mutant(
        "raft_forgets_what_it_lacks",
        "A voter does not record which committed entries its log lacks.",
        (method(Replica.raise_floor, lambda self, term, index: None),),
        (Catch(RAFT, "invariant 47|invariant 5", 6),),
    ),
    Mutant(
        "raft_floor_lost_by_restart",
        "A voter forgets at its next start which committed entries its log lacks.",
        (method(Replica.__init__, raft.forget_floor_at_start),),
        (Catch(RAFT, "invariant 47|invariant 5|invariant 8", 8),),
    ),
)

JOURNAL_AND_STORAGE_MUTANTS: Final = (
    Mutant(
        "journal_ack_before_sync",
        "An entry is acknowledged when its group is formed, before the sync.",
        (method(EntryQueue.take_group, storage.acknowledge_group),),
        (Catch(JOURNAL, "is lost", 1),),
    ),
    Mutant(
        "journal_rotation_without_directory_sync",
        "Entries in a new segment are acknowledged before the segment's name is durable.",
        (method(SegmentFiles.make_live, storage.rename_without_sync),),
        (Catch(JOURNAL, "is lost", 8),),
    ),
    Mutant(
        "journal_generation_not_checked",
        "CRCs are not seeded with the generation, so the old frames of a recycled file look valid.",
        (
            *used_in("frame_seed", lambda identity, generation: 0, scan, journal_writer, journal_format),
            *used_in("_headers_behind", storage.headers_of_all_generations, scan),
        ),
        (Catch(JOURNAL, "refused without a fault", 0),),
    ),
    Mutant(
        "journal_tail_not_written_again",
        "A restart trusts unproven frames that it can read, although their sync may have failed.",
        (method(JournalWriter.start, storage.start_without_unproven_tail),),
        (Catch(JOURNAL, "refused without a fault", 117),),
    ),
    Mutant(
        "journal_truncates_corrupt_middle",
        "A log is cut at the first damaged frame, even if intact frames follow.",
        used_in("_judge_tail", lambda *_: iter(()), scan),
        (Catch(SWARM, r"two histories", 49),),
    ),
    Mutant(
        "storage_ack_before_durable",
        "An append is acknowledged when it is handed to the write-ahead log.",
        (method(GroupCommit.add, storage.acknowledge_append),),
        (Catch(STORAGE, "lost", 4), Catch(CLUSTER, "OUT_OF_ORDER_SEQUENCE_NUMBER", 0)),
    ),
    Mutant(
        "storage_trim_forgets_carried",
        "The write-ahead log is trimmed as if records carried to the next upload were uploaded.",
        (method(Storage._sequence_needed_after, storage.sequence_without_carried),),
        (Catch(STORAGE, "lost", 5),),
    ),
    Mutant(
        "storage_commits_out_of_order",
        "An upload is committed as soon as its objects are stored, before older uploads.",
        (method(UploadPipeline._upload_in_order, storage.upload_at_once),),
        (Catch(STORAGE, "does not continue", 0),),
    ),
    Mutant(
        "storage_trims_before_commit",
        "The write-ahead log is trimmed to what is being uploaded instead of what is committed.",
        (
            method(UploadPipeline.first_sequence_without, lambda *_: None),
            method(UploadPipeline.submit, storage.submit_and_trim),
        ),
        (Catch(CLUSTER, "neither in the write-ahead log nor uploaded", 4),),
    ),
    Mutant(
        "storage_recovery_drops_tail",
        "Recovery drops records after the committed end instead of uploading them.",
        (method(RecoveryFilter.judge, storage.drop_tail),),
        (Catch(STORAGE, "lost", 0),),
    ),
    Mutant(
        "storage_recovery_keeps_older_epochs",
        "Recovery treats a record of an older stream epoch as a record of the newest one.",
        (method(RecoveryFilter.judge, storage.judge_as_newest_epoch),),
        (Catch(STORAGE, "neither in the write-ahead log nor uploaded", 15),),
    ),
    Mutant(
        "recovery_closes_at_committed_end",
        "Streams of a dead broker are closed at the committed end; its log's remaining records are dropped.",
        (method(RecoveryFilter.judge, lambda self, record: Verdict.COMMITTED),),
        (Catch(SWARM, r"invariant 32", 2),),
    ),
    Mutant(
        "takeover_deletes_unconfirmed",
        "A recovery deletes slots although a forced controller recovery waits for its confirmation.",
        (method(_Takeover.run, storage.take_over_and_delete),),
    ),
    Mutant(
        "wal_ack_before_durable",
        "An append to a log in the store is acknowledged when its put begins.",
        (method(ObjectWal._begin_put, storage.acknowledge_slot),),
        # A consumer whose record is lost asks for an offset behind the end.
        (Catch(SWARM, r"invariant 32|OFFSET_OUT_OF_RANGE", 143),),
    ),
    Mutant(
        "wal_fence_trimmed",
        "The recoverer of a log in the store deletes the fence with the slots.",
        (method(_Takeover._delete, storage.delete_with_fence),),
        (Catch(SWARM, r"the fence .* is deleted", 2),),
    ),
    Mutant(
        "wal_gap_skipped",
        "A recovery takes a gap for the end of the log, although a later slot proves acknowledged records.",
        (method(WalWalk._check_nothing_acknowledged_above, storage.check_nothing),),
    ),
    Mutant(
        "wal_trimmed_before_commit",
        "Slots are deleted as soon as their records wait for an upload.",
        (
            method(SlotDeletion.delete_below, storage.delete_further),
            method(ObjectWal._acknowledge, storage.acknowledge_and_delete),
        ),
        (Catch(SWARM, r"invariant 32", 8),),
    ),
)

BROKER_MUTANTS: Final = (
    Mutant(
        "broker_change_forgets_producers",
        "A change of the producer snapshot omits producers that rested and were used again.",
        (
            method(ProducerStates._known, broker.known_and_noted),
            method(ProducerStates.rest, broker.rest_without_noted),
        ),
        (Catch(CLUSTER, "OUT_OF_ORDER_SEQUENCE_NUMBER", 0),),
    ),
    Mutant(
        "broker_duplicate_before_durable",
        "A repeated batch is acknowledged while its first append is still being written.",
        (method(Partition._report_first, lambda _self, _offset, on_settled: on_settled(None)),),
        (Catch(CLUSTER, "OUT_OF_ORDER_SEQUENCE_NUMBER", 0),),
    ),
    Mutant(
        "broker_forgets_producers",
        "Producer state is not stored, so a restart finds only producers with batches that are not uploaded.",
        (method(ProducerStates.restoring, lambda *_: iter(())),),
        (Catch(CLUSTER, "was acknowledged at", 1),),
    ),
    Mutant(
        "broker_snapshot_forgets_confirmed",
        "A snapshot omits producers that had a batch in flight at the previous snapshot.",
        (method(ProducerStates.change_at, broker.change_without_confirmed),),
        (Catch(CLUSTER, "OUT_OF_ORDER_SEQUENCE_NUMBER|was acknowledged at", 2),),
    ),
    Mutant(
        "broker_forgets_refusals",
        "A refused batch is forgotten, so the next one counts as the producer's first.",
        (method(RefusedSequences.note, lambda *_: None),),
    ),
    Mutant(
        "broker_start_before_durable",
        "DeleteRecords is answered before the new log start is durable.",
        (method(DurableState.advance_start, broker.advance_start_at_once),),
    ),
    Mutant(
        "move_appends_after_close",
        "A moving partition continues to accept appends while its streams are closed.",
        (
            method(ServiceState.seal, broker.seal_without_refusal),
            method(ServiceState.hold, broker.hold_reads_only),
            method(Stream.end, broker.end_at_committed),
            method(Stream.refuse_appends, lambda _: None),
        ),
    ),
    Mutant(
        "move_watermark_of_before",
        "A broker that gets a partition back returns its earlier high watermark until the next append.",
        broker.watermark_of_before,
        (Catch(SWARM, r"the high watermark of \d+ fell", 36),),
    ),
    Mutant(
        "open_for_absent_topics",
        "Streams and keys are created for partitions that do not exist.",
        (
            *used_in("require_tagged_rights", lambda *_: None, streams),
            *used_in("require_key_rights", lambda *_: None, keys),
        ),
        (Catch(SWARM, r"invariant 39", 21),),
    ),
    Mutant(
        "open_forgets_after_refusal",
        "A partition is not opened again after its first open was refused.",
        (method(HandoffTarget._goes_on, broker.continue_without_failures_only),),
    ),
    Mutant(
        "open_keeps_unknown_streams",
        "Streams that an opening attempt created and no log metadata names are never deleted.",
        (method(OwnedStreams.delete_unknown, broker.delete_no_streams),),
    ),
    Mutant(
        "permission_never_withdrawn",
        "A broker that has lost contact with the controllers continues to answer.",
        (method(Serving.check, lambda _: None),),
        (Catch(SWARM, r"invariant 40", 276),),
    ),
    Mutant(
        "permission_not_asked_by_groups",
        "The group coordinator answers from memory without a serving lease.",
        (Patch(Shards, "refusal", None),),
    ),
    Mutant(
        "permission_not_asked_by_sessions",
        "A fetch session is answered from remembered partitions without a serving lease.",
        (method(FetchHandler._resume, broker.resume_without_permission),),
        (Catch(SWARM, r"invariant 40", 438),),
    ),
    Mutant(
        "readiness_ignores_currency",
        "A broker reports ready although it has received no commit for a long time.",
        used_in("require_current_image", broker.require_any_image, node),
    ),
)

TRANSACTION_MUTANTS: Final = (
    Mutant(
        "transaction_aborted_by_failover",
        "A coordinator that loads an open transaction aborts it at once.",
        (method(Transaction.loaded, transactions.loaded_and_aborted),),
        (Catch(SWARM, r"invariant 52", 22),),
    ),
    Mutant(
        "transaction_complete_before_markers",
        "The next transaction may begin before the markers are written, and a marker ends any newer one.",
        (
            method(MarkerSender.send, transactions.complete_before_markers),
            method(ProducerStates.check_marker, lambda *_, **__: None),
        ),
        (Catch(SWARM, r"invariant (48|49|52)", 22),),
    ),
    Mutant(
        "transaction_epoch_not_raised",
        "InitProducerId keeps the epoch, so an earlier producer is not fenced.",
        (method(Transaction._raise_epoch, transactions.keep_epoch),),
        (Catch(SWARM, r"invariant (48|49|52)", 14),),
    ),
    Mutant(
        "transaction_index_lost_by_recovery",
        "After an open, aborted transactions before the checkpoint are not listed.",
        (method(AbortedIndex.recover, transactions.recover_without_index),),
        (Catch(SWARM, r"invariant 49", 14),),
    ),
    Mutant(
        "transaction_index_lost_in_compaction",
        "In a compacted topic, no aborted transactions are listed after the first cleaning.",
        used_in("_listed_from", transactions.listed_from_end_if_cleaned, committed_reads),
        (Catch(SWARM, r"invariant 49", 36),),
    ),
    Mutant(
        "transaction_index_without_earlier",
        "A reader that begins within an aborted transaction does not get its entry.",
        (method(AbortedIndex.find, transactions.find_begun_here),),
        (Catch(SWARM, r"invariant 49", 14),),
    ),
    Mutant(
        "transaction_loaded_from_stale_log",
        "A coordinator does not read the newest records of its log.",
        (method(CoordinatorLog.replay, transactions.replay_without_end),),
        (Catch(SWARM, r"invariant (29|48|49|52|53)", 36),),
    ),
    Mutant(
        "transaction_marker_lost_on_failover",
        "A coordinator that loads a decided transaction completes it without markers.",
        (method(Transaction.loaded, transactions.loaded_without_markers),),
        (Catch(SWARM, r"invariant (48|49|52|53)", 42),),
    ),
    Mutant(
        "transaction_offset_of_aborted",
        "Offsets of an aborted transaction become visible.",
        (method(OffsetTable.end_transaction, transactions.end_as_committed),),
        (Catch(SWARM, r"invariant 51|never transformed", 36),),
    ),
    Mutant(
        "transaction_offset_visible_early",
        "An offset in a transaction is visible before its marker.",
        (method(OffsetTable.put_pending, transactions.put_visible),),
        (Catch(SWARM, r"invariant 51|never transformed", 36),),
    ),
    Mutant(
        "transaction_open_lost_by_recovery",
        "After an open, transactions from before do not hold back the last stable offset.",
        (method(OpenTransactions.reset, transactions.reset_to_none),),
        (Catch(SWARM, r"invariant (48|49)|KeyError\('txn'\)", 52),),
    ),
    Mutant(
        "transaction_partitions_forgotten",
        "A partition that is added to a transaction replaces the partitions before it.",
        (method(Transaction._add, transactions.add_and_forget),),
        (Catch(SWARM, r"invariant (48|49|52|53)", 36),),
    ),
    Mutant(
        "transaction_stable_too_early",
        "The last stable offset is the first offset of the newest open transaction, not of the oldest.",
        (method(OpenTransactions._update, transactions.update_by_newest),),
        (Catch(SWARM, r"invariant (49|50)", 14),),
    ),
    Mutant(
        "transaction_unverified",
        "The coordinator is not asked whether a batch belongs to a transaction.",
        (method(TransactionVerifier._route, transactions.settle_unverified),),
        (Catch(SWARM, r"invariant (48|49|52|53|55)", 14),),
    ),
)

COMPACTION_MUTANTS: Final = (
    Mutant(
        "compaction_committed_twice",
        "A commit names a task by its number only, so a worker commits after its lease was given to another.",
        used_in("_held", compaction.held_by_number, compaction_operations),
        (Catch(SWARM, r"invariant 35", 152),),
    ),
    Mutant(
        "compaction_ignores_retention",
        "Replaced objects may be deleted at once, while readers with an older image still need them.",
        used_in("_due_objects", compaction.compacted_due_at_once, objects),
        (Catch(SWARM, r"invariant 24", 0),),
    ),
    Mutant(
        "compaction_keeps_uploads_open",
        "A compaction that fails does not abort its multipart uploads.",
        (method(PartUploads.abort, compaction.abort_nothing),),
    ),
    Mutant(
        "compaction_misdates_blocks",
        "In a compacted index each block has the newest timestamp of the block before it.",
        used_in("encoded_index", compaction.index_with_shifted_timestamps, plan, iterations, copy_planning),
        (Catch(SWARM, r"invariant 26", 0),),
    ),
    Mutant(
        "compaction_never_given_back",
        "A task whose worker is gone is never leased to another one.",
        used_in("is_vacant", lambda *_: False, compaction_operations, compaction_duty),
        (Catch(SWARM, r"invariant 38", 11),),
    ),
    Mutant(
        "compaction_plans_from_stale_metadata",
        "A worker plans with an older list of streams, and the controller does not compare the plan.",
        compaction.plans_from_stale_metadata,
        (Catch(SWARM, r"invariant 26", 0),),
    ),
    Mutant(
        "compaction_without_coverage",
        "Outputs replace sources without a coverage check, and a worker sometimes drops a block.",
        (
            *used_in("find_difference", lambda *_, **__: None, compaction_operations),
            *used_in("live_blocks", compaction.live_blocks_but_the_last, planning, copy_planning),
        ),
        (Catch(SWARM, r"invariant 26", 0),),
    ),
)

CONTROLLER_MUTANTS: Final = (
    Mutant(
        "controller_commit_before_durable",
        "A batch is committed and answered when it is handed to the log, before it is on the disk.",
        (method(RecordLog.persist, controller.persist_and_report),),
        (
            Catch(
                CONTROLLER_LOG,
                "lost|older copy|RecordLogCorruptError|OBJECT_NOT_PREPARED|OFFSET_MISMATCH|STREAM_NOT_FOUND",
            ),
        ),
    ),
    Mutant(
        "controller_forgets_results",
        "A repeated operation is executed again instead of answered with the stored result.",
        (
            method(Executor._replay, controller.replay_nothing),
            method(Executor._propose, controller.propose_without_result),
        ),
        (Catch(CONTROLLER_LOG, "twice|OBJECT_NOT_PREPARED|OFFSET_MISMATCH"),),
    ),
    Mutant(
        "controller_formats_beside_a_cluster",
        "A controller that lost its directory forms a new cluster next to the existing one.",
        controller.formats_beside_a_cluster,
    ),
    Mutant(
        "controller_ignores_seen_history",
        "A leader does not compare its log with what nodes have seen, so an older copy serves unnoticed.",
        used_in("lost_history", lambda *_: "", session_service),
    ),
    Mutant(
        "controller_believes_other_clusters",
        "A leader compares its log with what nodes of other clusters have seen, and then admits no node.",
        (method(SessionService._contradiction, controller.contradiction_of_any_cluster),),
    ),
    Mutant(
        "failover_forgets_open_streams",
        "A new leader takes open streams for closed ones, so a partition gets a second owner.",
        controller.forgets_open_streams,
        (Catch(SWARM, r"is open at epoch", 15),),
    ),
    Mutant(
        "gc_claim_never_over",
        "Objects that a collector claimed are never granted again, not even to its next process.",
        used_in("_due_objects", controller.unclaimed_objects, objects),
        (Catch(SWARM, r"invariant 25", 99),),
    ),
    Mutant(
        "gc_confirms_undeleted",
        "Garbage is confirmed as deleted although the store did not delete it.",
        (method(Sweeper._delete, controller.delete_all_but_one),),
        (Catch(CLUSTER, "never deleted", 0),),
    ),
    Mutant(
        "gc_ignores_marker",
        "A collector deletes objects under a marker of another cluster.",
        (method(DeletionRight.may_delete, controller.allow_deletion),),
    ),
    Mutant(
        "gc_ignores_retention",
        "Destroyed objects may be deleted at once, while readers with an older image still need them.",
        used_in("_due_objects", controller.due_at_once, objects),
        (Catch(SWARM, r"invariant 24", 1),),
    ),
    Mutant(
        "operations_known_by_id_only",
        "A repeated request id is answered with the stored result, even for another operation.",
        (method(Executor._replay, controller.replay_by_id),),
        (Catch(SWARM, r"invariant 27", 0),),
    ),
    Mutant(
        "purge_forgets_keys",
        "The purge of a deleted topic deletes its streams and leaves its keys.",
        used_in("purge", controller.purge_without_keys, reclaim_duty),
    ),
    Mutant(
        "reclaim_forgets_set_objects",
        "Reclaiming destroys dead stream objects and leaves dead stream set objects.",
        used_in("_dead_set_objects", lambda *_: iter(()), dead_objects),
        (Catch(SWARM, r"holds nothing live", 1),),
    ),
    Mutant(
        "reclaim_destroys_what_other_streams_need",
        "A stream set object is destroyed when its pieces of the reclaimed streams are dead.",
        used_in("_dead_set_objects", controller.set_objects_dead_for, dead_objects),
        (Catch(SWARM, r"invariant 24", 0),),
    ),
    Mutant(
        "refused_hello_not_confirmed",
        "A leader refuses a Hello without confirming that it leads, so a deposed one stops live nodes.",
        (method(SessionService._register, controller.register_unconfirmed),),
    ),
    Mutant(
        "session_keeps_refused_connections",
        "A session whose Hello is not accepted leaves its connection open.",
        (method(SimNetwork.connect, controller.connect_carelessly),),
    ),
    Mutant(
        "silence_counts_own_absence",
        "Observed time advances while the process is paused, so nodes lose their full session timeout.",
        (
            method(ObserverClock.monotonic_ns, controller.unobserved_ns),
            method(NodeActivity._most_silent_since, controller.never_silent),
        ),
    ),
    Mutant(
        "snapshot_lease_ends_early",
        "A snapshot lease ends half a second after it began, although its reader renews it.",
        (method(LeaseDuty.step, controller.expire_leases_early),),
        (Catch(SWARM, r"invariant 36", 2),),
    ),
    Mutant(
        "snapshot_lease_ignored",
        "Objects destroyed under a snapshot lease may be deleted after the delay.",
        used_in("pinned_since_ms", lambda _: None, objects, object_rules),
        (Catch(SWARM, r"invariant 36", 2),),
    ),
    Mutant(
        "snapshot_without_digest",
        "A controller loads a snapshot without checking its digest and checksums.",
        (
            method(SnapshotFiles.read, controller.read_without_digest),
            method(SimDisk.rot, controller.rot_of_snapshot),
            *used_in("crc32c", lambda data: controller.EqualToEverything(crc32c(data)), snapshot),
        ),
        (Catch(SWARM, r"invariant (10|28)", 8),),
    ),
    Mutant(
        "subscription_goes_back",
        "A controller that is behind serves subscribers, and they accept it (etcd-io/etcd #15271).",
        (
            method(SubscriptionService._send, controller.send_what_is_here),
            method(FollowedImage.begin_snapshot, controller.begin_any_snapshot),
            method(FollowedImage.end_snapshot, controller.end_any_snapshot),
        ),
        (Catch(SWARM, r"invariant 28", 0),),
    ),
    Mutant(
        "unregistration_forgets_epochs",
        "The row of an unregistered node is deleted, so its id begins at the first epoch again.",
        (
            Patch(registry.RULES, controller.UNREGISTERED, controller.delete_unregistered, is_item=True),
            Patch(
                image._RULES_BY_NUMBER,
                controller.UNREGISTERED_NUMBER,
                (controller.UNREGISTERED, controller.delete_unregistered),
                is_item=True,
            ),
        ),
    ),
    Mutant(
        "upload_commit_without_epoch",
        "An upload is committed without checking the owner and epoch of its streams.",
        used_in("require_owner", lambda *_: None, uploads),
        (Catch(SWARM, r"invariant 14|its end cannot advance", 4),),
    ),
    Mutant(
        "upload_commit_without_prepared",
        "An upload is committed although its objects expired or were never prepared.",
        used_in("require_prepared", lambda *_: None, uploads),
        (Catch(SWARM, r"invariant 21", 4),),
    ),
)

MUTANTS: Final = {
    each.name: each
    for each in (
        *RAFT_MUTANTS,
        *JOURNAL_AND_STORAGE_MUTANTS,
        *BROKER_MUTANTS,
        *TRANSACTION_MUTANTS,
        *COMPACTION_MUTANTS,
        *CONTROLLER_MUTANTS,
    )
}


def has_transactions(name: str) -> bool | None:
    """Whether the swarm's seeds of a mutant have transactions: False, or as drawn."""
    # The seeds of other bugs are cheaper without, and do not change with the clients of transactions.
    return None if name.startswith("transaction_") else False


def caught_by(suite: Suite) -> list[tuple[str, int, str]]:
    """Name, recorded seed and pattern of every mutant that a suite catches; parameters for pytest."""
    return [
        (each.name, catch.seed, catch.message)
        for each in MUTANTS.values()
        for catch in each.catches
        if catch.suite is suite
    ]
