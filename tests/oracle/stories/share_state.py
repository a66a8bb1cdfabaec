"""The share coordinator: durable states of share partitions, epochs, errors."""

from __future__ import annotations

import time
from typing import Final
from uuid import UUID

from ponor_kafka.messages import delete_share_group_state as deletion
from ponor_kafka.messages import initialize_share_group_state as initialization
from ponor_kafka.messages import read_share_group_state as reading
from ponor_kafka.messages import read_share_group_state_summary as summing
from ponor_kafka.messages import write_share_group_state as writing
from ponor_kafka.messages.find_coordinator import FindCoordinatorRequest
from ponor_runtime.identity import uuid_text

from tests.oracle.narrator import READY_S_MAX, Narrator, SetUpFailedError, Topic
from tests.oracle.story import story

SHARE: Final = 2
AVAILABLE, ACKNOWLEDGED, ARCHIVED = 0, 2, 4


class State:
    """The state of partition 0 of a topic for one group."""

    def __init__(self, k: Narrator, topic: Topic, group: str) -> None:
        self.k = k
        self.topic = topic
        self.group = group
        deadline = time.monotonic() + READY_S_MAX
        key = f"{group}:{uuid_text(UUID(bytes=topic.id))}:0"
        asked = FindCoordinatorRequest(key_type=SHARE, coordinator_keys=[key])
        while (
            k.quietly(asked, 6).coordinators[0].error_code
            or k.quietly(self._summary(0), 1).results[0].partitions[0].error_code
        ):
            if time.monotonic() > deadline:
                raise SetUpFailedError("there is no share coordinator")
            time.sleep(0.05)

    def initialize(self, state_epoch: int, start_offset: int, note: str, partition: int = 0) -> None:
        row = initialization.PartitionData(partition, state_epoch, start_offset)
        topic = initialization.InitializeStateData(self.topic.id, [row])
        self.k.ask(initialization.InitializeShareGroupStateRequest(self.group, [topic]), 0, note)

    def read(self, leader_epoch: int, note: str, partition: int = 0, topic_id: bytes | None = None) -> None:
        row = reading.PartitionData(partition, leader_epoch)
        topic = reading.ReadStateData(topic_id or self.topic.id, [row])
        self.k.ask(reading.ReadShareGroupStateRequest(self.group, [topic]), 0, note)

    def write(
        self,
        batches: list[tuple[int, int, int, int]],
        note: str,
        *,
        state_epoch: int = 1,
        leader_epoch: int = 5,
        start_offset: int = -1,
        complete: int = -1,
        version: int = 1,
        partition: int = 0,
    ) -> None:
        rows = [writing.StateBatch(*batch) for batch in batches]
        row = writing.PartitionData(partition, state_epoch, leader_epoch, start_offset, complete, rows)
        topic = writing.WriteStateData(self.topic.id, [row])
        self.k.ask(writing.WriteShareGroupStateRequest(self.group, [topic]), version, note)

    def delete(self, note: str, partition: int = 0) -> None:
        topic = deletion.DeleteStateData(self.topic.id, [deletion.PartitionData(partition)])
        self.k.ask(deletion.DeleteShareGroupStateRequest(self.group, [topic]), 0, note)

    def summary(self, note: str, *, version: int = 1, partition: int = 0) -> None:
        self.k.ask(self._summary(partition), version, note)

    def _summary(self, partition: int) -> summing.ReadShareGroupStateSummaryRequest:
        topic = summing.ReadStateSummaryData(self.topic.id, [summing.PartitionData(partition, -1)])
        return summing.ReadShareGroupStateSummaryRequest(self.group, [topic])


@story("The state of a share partition: created, written, read, summed up, deleted")
def share_state(k: Narrator) -> None:
    state = State(k, k.topic("share-state"), "share-state")
    for version in range(2):
        state.summary("there is no state", version=version)
    state.initialize(1, 5, "a new state")
    state.summary("before the first read")
    state.read(5, "a leader reads it")
    state.write([(5, 5, ACKNOWLEDGED, 1), (7, 8, ACKNOWLEDGED, 1)], "the first batches", start_offset=6)
    state.read(5, "the batch below the start offset is gone")
    state.write([(6, 6, AVAILABLE, 1)], "a released record, in version 0", version=0)
    state.write([(6, 9, AVAILABLE, 1)], "an available batch over acknowledged ones", complete=2)
    state.read(5, "acknowledged ones win")
    state.write([(7, 7, ARCHIVED, 2), (9, 9, ACKNOWLEDGED, 1), (9, 12, AVAILABLE, 0)], "overlapping batches")
    state.read(5, "the higher delivery count wins")
    state.write([(10, 12, AVAILABLE, 0)], "the same again", complete=4)
    for version in range(2):
        state.summary("after the writes", version=version)
    state.write([], "only a start offset", start_offset=10, complete=0)
    state.read(5, "the batches from the start offset on")
    state.delete("the state is deleted")
    state.delete("and again")
    state.read(5, "it is gone")
    state.summary("it is gone")


@story("Epochs of share partitions fence older leaders and older initializations")
def share_state_epochs(k: Narrator) -> None:
    state = State(k, k.topic("share-epochs"), "share-epochs")
    state.initialize(2, -1, "a state without a start offset")
    state.summary("without a start offset")
    state.read(5, "a leader")
    state.read(4, "an older leader")
    state.read(-1, "without an epoch")
    state.write([], "a write of an older leader", state_epoch=2, leader_epoch=4)
    state.write([], "a write of a newer leader, which has not read", state_epoch=2, leader_epoch=6)
    state.write([(0, 3, ACKNOWLEDGED, 1)], "without epochs", state_epoch=-1, leader_epoch=-1)
    state.write([], "with an older state epoch", state_epoch=1)
    state.read(7, "a newer leader")
    state.write([], "a write of the leader before", state_epoch=2, leader_epoch=6)
    state.initialize(1, 3, "an older initialization")
    state.initialize(3, 20, "a newer initialization")
    state.read(7, "the new state")
    state.write([], "the old state epoch", state_epoch=2, leader_epoch=7)


@story("Refused requests to the share coordinator")
def share_state_errors(k: Narrator) -> None:
    state = State(k, k.topic("share-errors"), "share-errors")
    state.read(5, "a state that was not initialized")
    state.write([], "likewise")
    state.initialize(1, 0, "a negative partition", partition=-1)
    state.read(5, "a negative partition", partition=-1)
    state.write([], "a negative partition", partition=-1)
    for partition, what in ((7, "a partition that does not exist"), (-1, "a negative partition")):
        state.delete(what, partition=partition)
        state.summary(what, partition=partition)
    empty = initialization.InitializeStateData(state.topic.id, [])
    k.ask(initialization.InitializeShareGroupStateRequest("share-errors", []), 0, "no topics")
    k.ask(initialization.InitializeShareGroupStateRequest("share-errors", [empty]), 0, "no partitions")
    k.ask(initialization.InitializeShareGroupStateRequest("", [empty]), 0, "no group")
    k.ask(
        reading.ReadShareGroupStateRequest("share-errors", [reading.ReadStateData(state.topic.id)]), 0, "none"
    )
    k.ask(writing.WriteShareGroupStateRequest("share-errors", []), 1, "no topics")
    k.ask(deletion.DeleteShareGroupStateRequest("", []), 0, "no group")
    k.ask(summing.ReadShareGroupStateSummaryRequest("", []), 0, "no group")
    text = uuid_text(UUID(int=1))
    keys = ["g", "g:x:0", f"g:{text}:x", f" :{text}:0", f"g:{text}:", ""]
    k.ask(FindCoordinatorRequest(key_type=SHARE, coordinator_keys=keys), 6, "malformed keys")
    keys = [f"g:{text}:0", f"a:b:{text}:3", f"g:{text}:-5"]
    k.ask(FindCoordinatorRequest(key_type=SHARE, coordinator_keys=keys), 6, "valid keys")
