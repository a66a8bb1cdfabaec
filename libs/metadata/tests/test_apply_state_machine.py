"""Random valid histories: every invariant after every transition, commits, drops, snapshots and replays.

The machine acts as the leader: it proposes batches to the overlay, and commits a prefix of them, or drops
them as a leader does when it steps down.
"""

from __future__ import annotations

import itertools
from hashlib import blake2b

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import invariant, precondition, rule
from ponor.metadata.v1 import records_pb2 as pb
from ponor_metadata.image import snapshot
from ponor_metadata.image.image import MetadataImage
from ponor_metadata.image.read_index import find_pieces
from ponor_metadata.image.validate import validate
from ponor_metadata.nouns import counters
from ponor_metadata.nouns.cluster import INCARNATION_MAX, cluster_of, next_incarnation
from ponor_metadata.nouns.groups import GROUP_CONFIGS
from ponor_metadata.nouns.keys import KEYS
from ponor_metadata.nouns.nodes import (
    ALL_BROKERS,
    BROKER_CONFIGS,
    OPERATIONS,
    OPERATIONS_OF,
    NodeRole,
    is_current,
)
from ponor_metadata.nouns.nodes import NODES as NODES_TABLE
from ponor_metadata.nouns.quorum import QUORUM
from ponor_metadata.nouns.streams import STREAMS
from ponor_metadata.nouns.topics import MOVES, PARTITIONS, TOPICS, next_leader_epoch
from ponor_runtime.identity import DEFAULT_TENANT, NodeId

from libs.metadata.tests.compaction_rules import CompactionRules
from libs.metadata.tests.metadata_kit import (
    broker_configs_set,
    completed,
    contents,
    group_configs_set,
    move_begun,
    move_cancelled,
    partition_changed,
    record,
    topic_configs_set,
    topic_created,
)
from libs.metadata.tests.storage_rules import NODES, picks
from tests.examples import examples


class MetadataMachine(CompactionRules):
    # Keys, topics, results

    @rule(key=st.sampled_from("abc"), value=st.binary(max_size=4))
    def put_key(self, key: str, value: bytes) -> None:
        self.propose(record(key_put=pb.KeyPut(key=key, value=value)))

    @rule(pick=picks)
    def delete_key(self, pick: int) -> None:
        row = self.pick(list(self.overlay[KEYS]), pick)
        if row is not None:
            self.propose(record(key_deleted=pb.KeyDeleted(key=row.key)))

    @rule(partitions=st.integers(1, 4))
    def create_topic(self, partitions: int) -> None:
        self.topics += 1
        topic_id = self.topics.to_bytes(16, "big")
        epoch = next_leader_epoch(self.overlay, None)
        changes = [
            partition_changed(topic_id, number, NODES[number % 2], epoch) for number in range(partitions)
        ]
        self.propose(topic_created(topic_id, f"topic-{self.topics}"), *changes)

    @rule(pick=picks, target_id=st.sampled_from(NODES))
    def begin_move(self, pick: int, target_id: NodeId) -> None:
        still = [
            row
            for row in self.overlay[PARTITIONS]
            if row.leader_id != target_id and (row.topic_id, row.partition) not in self.overlay[MOVES]
        ]
        row, target = self.pick(still, pick), self.overlay[NODES_TABLE].get(target_id)
        assert target is not None
        assert target.role is NodeRole.BROKER
        if row is not None and not target.fenced:
            self.propose(move_begun(row.topic_id, row.partition, row.leader_id, target_id))

    @rule(pick=picks, elected=st.booleans())
    def end_move(self, pick: int, elected: bool) -> None:
        move = self.pick(list(self.overlay[MOVES]), pick)
        if move is None:
            return
        partition = self.overlay[PARTITIONS].get((move.topic_id, move.partition))
        assert partition is not None
        if elected:
            epoch = next_leader_epoch(self.overlay, partition)
            self.propose(partition_changed(move.topic_id, move.partition, move.target_id, epoch))
        else:
            self.propose(move_cancelled(move.topic_id, move.partition))

    @rule(pick=picks, retention=st.sampled_from((None, "1", "2")))
    def set_topic_configs(self, pick: int, retention: str | None) -> None:
        row = self.pick(list(self.overlay[TOPICS]), pick)
        if row is not None:
            configs = {} if retention is None else {"retention": retention}
            self.propose(topic_configs_set(row.topic_id, **configs))

    @rule(node_id=st.sampled_from((ALL_BROKERS, *NODES)), value=st.sampled_from((None, "1", "2")))
    def set_broker_configs(self, node_id: NodeId, value: str | None) -> None:
        if node_id != ALL_BROKERS and node_id not in self.overlay[NODES_TABLE]:
            return
        if value is not None:
            self.propose(broker_configs_set(node_id, setting=value))
        elif node_id in self.overlay[BROKER_CONFIGS]:
            self.propose(broker_configs_set(node_id))

    @rule(group_id=st.sampled_from(("a", "b")), value=st.sampled_from((None, "1", "2")))
    def set_group_configs(self, group_id: str, value: str | None) -> None:
        if value is not None:
            self.propose(group_configs_set(group_id, setting=value))
        elif (DEFAULT_TENANT, group_id) in self.overlay[GROUP_CONFIGS]:
            self.propose(group_configs_set(group_id))

    @rule(pick=picks)
    def delete_topic(self, pick: int) -> None:
        row = self.pick(list(self.overlay[TOPICS]), pick)
        if row is not None:
            self.propose(record(topic_deleted=pb.TopicDeleted(topic_id=row.topic_id)))

    @rule(node_id=st.sampled_from(NODES), answered=st.integers(0, 3))
    def complete_operation(self, node_id: NodeId, answered: int) -> None:
        epoch = self.epoch_of(node_id)
        if not is_current(self.overlay, node_id, epoch):
            return
        kept = [row.request_id for row in self.overlay[OPERATIONS].find(OPERATIONS_OF, node_id)]
        node = self.overlay[NODES_TABLE].get(node_id)
        assert node is not None
        request_id = max([*kept, node.first_incomplete_id, self.next_request[node_id]]) + 1
        self.next_request[node_id] = request_id
        floor = kept[min(answered, len(kept) - 1)] if kept else request_id
        self.propose(completed(request_id, first_incomplete_id=floor, node_id=node_id, node_epoch=epoch))

    # Controllers

    @precondition(lambda self: self.overlay.index % 6 == 0)
    @rule(until_ms=st.integers(0, 1 << 50), paused=st.booleans())
    def stop_or_pause(self, until_ms: int, paused: bool) -> None:
        announced = pb.ClusterStopAnnounced(until_ms=until_ms)
        self.propose(
            record(cluster_stop_announced=announced), record(balancer_paused=pb.BalancerPaused(paused=paused))
        )

    @precondition(lambda self: self.overlay.index % 6 == 0)
    @rule(kinds=st.lists(st.booleans(), min_size=1, max_size=4), directory=st.integers(0, 2))
    def set_voters(self, kinds: list[bool], directory: int) -> None:
        members = [
            pb.QuorumMember(
                node_id=number, directory_id=bytes([directory]) * 16, peer_address="p", voter=voter
            )
            for number, voter in enumerate(kinds)
        ]
        if any(kinds):
            self.propose(record(voters_set=pb.VotersSet(members=members)))
            assert [row.voter for row in self.overlay[QUORUM]] == kinds

    @precondition(lambda self: self.overlay.index % 8 == 0)
    @rule()
    def recover_by_force(self) -> None:
        cluster = cluster_of(self.overlay)
        assert cluster is not None
        before = [counters.next_value(self.overlay, name) for name in counters.ID_COUNTERS]
        incarnation = next_incarnation(cluster.incarnation, controller=1, drawn=0)
        if incarnation > INCARNATION_MAX:
            return
        raised = pb.IncarnationRaised(incarnation=incarnation)
        confirmed = pb.IncarnationConfirmed(incarnation=incarnation)
        self.propose(record(incarnation_raised=raised))
        self.propose(record(incarnation_confirmed=confirmed))
        after = [counters.next_value(self.overlay, name) for name in counters.ID_COUNTERS]
        assert all(
            late >= early + counters.INCARNATION_JUMP for early, late in zip(before, after, strict=True)
        )

    # The leader

    @rule()
    def commit_all(self) -> None:
        self.overlay.commit(self.overlay.index)
        assert (self.overlay.proposed_batches, self.overlay.touched_rows) == (0, 0)
        assert contents(self.overlay) == contents(self.image)

    @precondition(lambda self: self.overlay.proposed_batches > 1)
    @rule(pick=picks)
    def commit_some(self, pick: int) -> None:
        before = contents(self.overlay)
        index = self.image.index + 1 + pick % self.overlay.proposed_batches
        committed = self.overlay.commit(index)
        assert [each.encoded for each in committed] == self.log[index - len(committed) : index]
        assert self.image.index == index
        assert contents(self.overlay) == before

    @rule()
    def step_down(self) -> None:
        before = contents(self.image)
        self.overlay.drop()
        del self.log[self.image.index :]
        assert self.overlay.touched_rows == 0
        assert contents(self.image) == before
        assert contents(self.overlay) == before
        assert (self.overlay.index, self.overlay.cluster_time_ms) == (
            self.image.index,
            self.image.cluster_time_ms,
        )
        self.topics = max([self.topics, *(int.from_bytes(row.topic_id, "big") for row in self.image[TOPICS])])

    @rule()
    def take_snapshot(self) -> None:
        self.snapshot = (self.image.index, snapshot.encode(self.image))

    @rule()
    def begin_snapshot(self) -> None:
        self.encodings.append((snapshot.begin_snapshot(self.image), snapshot.encode(self.image), []))

    @rule(count=st.integers(1, 6))
    def go_on_with_snapshots(self, count: int) -> None:
        for encoding, expected, chunks in self.encodings:
            chunks.extend(itertools.islice(encoding, count))
            assert expected.startswith(b"".join(chunks))

    @invariant()
    def everything_holds(self) -> None:
        validate(self.image)
        validate(self.overlay)

    @invariant()
    def every_committed_offset_is_found(self) -> None:
        for row in self.overlay[STREAMS]:
            offset = row.start_offset
            for piece in find_pieces(
                self.overlay, row.stream_id, row.start_offset, row.end_offset, limit=1_000
            ):
                assert piece.start_offset == offset
                offset = piece.end_offset
            assert offset == row.end_offset

    def teardown(self) -> None:
        self.overlay.commit(self.overlay.index)
        for encoding, expected, chunks in self.encodings:
            assert b"".join((*chunks, *encoding)) == expected
            reader = snapshot.SnapshotReader(expected)
            while reader.read_section():
                pass
            validate(reader.image)
            assert blake2b(expected, digest_size=16).digest() == encoding.state_digest
            assert reader.image.index == encoding.index
        for compiled in (True, False):
            replayed = MetadataImage(compiled=compiled)
            for encoded in self.log:
                replayed.replay(encoded)
            assert snapshot.encode(replayed) == snapshot.encode(self.image)
            assert replayed.digest == self.image.digest
        if self.snapshot is not None:
            index, data = self.snapshot
            restored = snapshot.decode(data)
            assert restored.index == index
            for encoded in self.log[index:]:
                restored.apply_committed(encoded)
            assert snapshot.encode(restored) == snapshot.encode(self.image)
            assert restored.digest == self.image.digest


TestMetadataMachine = MetadataMachine.TestCase
TestMetadataMachine.settings = settings(
    max_examples=examples(50), stateful_step_count=60, deadline=None, suppress_health_check=list(HealthCheck)
)
