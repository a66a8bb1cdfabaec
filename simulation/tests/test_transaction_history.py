"""The search for anomalies of transactions: each anomaly is constructed and found, and a correct history has
none.
"""

from __future__ import annotations

import pytest
from ponor_cluster_simulation.histories.transactions import (
    CommittedRead,
    Entry,
    Outcome,
    SeenOffset,
    TransactionHistory,
    find_anomalies,
)

Log = dict[int, list[tuple[int, Entry]]]


class Scene:
    """Two committed transactions of writer `w`, an aborted one, and a transformer `t` with group `g`.

    Partition 0 has a1 at 0, a2 at 1 and c1 at 6; partition 1 has a3 at 0 and the transformed records. The
    transformer reads a1 and a2 in its first transaction, and a3 in its second one.
    """

    def __init__(self) -> None:
        self.history = TransactionHistory(transformed=1)
        self.a1, self.a2, self.a3 = self.write("w.1", "w", (0, 1), (0, 2), (1, 1))
        self.aborted = self.write("w.2", "w", (0, 3), outcome=Outcome.ABORTED)[0]
        self.c1 = self.write("w.3", "w", (0, 4))[0]
        self.b1, self.b2 = self.transform("t.1", {0: 2}, (self.a1, (0, 0)), (self.a2, (0, 1)))
        (self.b3,) = self.transform("t.2", {1: 1}, (self.a3, (1, 0)))
        (self.b4,) = self.transform("t.3", {0: 7}, (self.c1, (0, 6)))
        self.history.final_offsets["g"] = {0: 7, 1: 1}
        self.log: Log = {
            0: [(0, self.a1), (1, self.a2), (6, self.c1)],
            1: [(0, self.a3), (2, self.b1), (3, self.b2), (5, self.b3), (7, self.b4)],
        }
        self.history.reads.append(CommittedRead("r", 0, 1, 5, [(1, self.a2)]))
        self.history.seen_offsets.append(SeenOffset("g", 0, 2, acknowledged=2))

    def write(
        self, name: str, client: str, *places: tuple[int, int], outcome: Outcome = Outcome.COMMITTED
    ) -> list[Entry]:
        """Add a transaction that writes a record with a number to each partition."""
        transaction = self.history.begin(name, client)
        transaction.outcome = outcome
        transaction.written = [Entry(name, client, *place) for place in places]
        return transaction.written

    def transform(
        self, name: str, offsets: dict[int, int], *sources: tuple[Entry, tuple[int, int]]
    ) -> list[Entry]:
        """Add a transaction that makes a record of each source in partition 1."""
        transaction = self.history.begin(name, "t", "g")
        transaction.outcome = Outcome.COMMITTED
        transaction.offsets = offsets
        transaction.read = [source for source, _ in sources]
        number = sum(len(each.written) for each in self.history.transactions.values())
        transaction.written = [
            Entry(name, "t", 1, number + index, 1, at) for index, (_, at) in enumerate(sources)
        ]
        return transaction.written

    def kinds(self) -> set[str]:
        """The kinds of the anomalies."""
        return {each.kind for each in find_anomalies(self.history, self.log)}

    def unknown(self, name: str) -> None:
        """Let the client of a transaction not know its outcome."""
        self.history.transactions[name].outcome = Outcome.UNKNOWN

    def remove(self, *entries: Entry) -> None:
        """Remove records from the final log."""
        for partition, records in self.log.items():
            self.log[partition] = [one for one in records if one[1] not in entries]


@pytest.fixture
def scene() -> Scene:
    return Scene()


def test_a_correct_history_has_no_anomaly(scene: Scene) -> None:
    assert find_anomalies(scene.history, scene.log) == []


@pytest.mark.parametrize("source", [(), (3, 14)])
def test_an_entry_survives_its_encoding(source: tuple[int, int] | tuple[()]) -> None:
    entry = Entry("w.1", "w", 2, 7, 1, source)
    assert Entry.decode(entry.encode(300)) == entry
    assert len(entry.encode(300)) == 300


def test_a_record_of_an_aborted_transaction_is_an_aborted_read(scene: Scene) -> None:
    scene.log[0].append((9, scene.aborted))
    assert "aborted read" in scene.kinds()


def test_a_reader_that_got_an_aborted_record_in_between_read_it(scene: Scene) -> None:
    scene.history.reads.append(CommittedRead("r", 0, 2, 5, [(4, scene.aborted)]))
    assert scene.kinds() == {"aborted read", "unstable read"}


def test_a_missing_record_of_an_acknowledged_transaction_is_a_lost_write(scene: Scene) -> None:
    scene.remove(scene.c1, scene.b4)
    assert "lost write" in scene.kinds()


@pytest.mark.parametrize("is_acknowledged", [False, True])
def test_a_transaction_that_is_visible_in_part_is_torn(scene: Scene, is_acknowledged: bool) -> None:
    if not is_acknowledged:
        scene.unknown("t.1")
    scene.remove(scene.b2)
    assert "torn transaction" in scene.kinds()


def test_a_transaction_with_an_unknown_outcome_may_be_visible_or_not(scene: Scene) -> None:
    scene.write("w.4", "w", (0, 9), (1, 9), outcome=Outcome.UNKNOWN)
    scene.unknown("w.1")
    assert scene.kinds() == set()


def test_a_record_at_two_offsets_is_a_duplicate(scene: Scene) -> None:
    scene.log[1].append((9, scene.b4))
    assert "duplicate" in scene.kinds()


def test_a_record_that_was_transformed_twice_is_a_duplicate(scene: Scene) -> None:
    (again,) = scene.transform("t.4", {0: 2}, (scene.a2, (0, 1)))
    scene.log[1].append((9, again))
    assert scene.kinds() == {"duplicate"}


def test_a_record_that_was_never_transformed_is_lost(scene: Scene) -> None:
    scene.history.transactions["t.3"].outcome = Outcome.ABORTED
    scene.remove(scene.b4)
    scene.history.final_offsets["g"] = {0: 2, 1: 1}
    assert scene.kinds() == {"lost write"}


def test_a_record_that_was_made_from_an_invisible_one_shows_an_aborted_read(scene: Scene) -> None:
    (made,) = scene.transform("t.4", {0: 7}, (scene.aborted, (0, 4)))
    scene.log[1].append((9, made))
    assert scene.kinds() == {"aborted read"}


def test_records_of_one_client_and_partition_keep_their_order(scene: Scene) -> None:
    scene.log[1] = [(0, scene.a3), (2, scene.b2), (3, scene.b1), (5, scene.b3), (7, scene.b4)]
    assert scene.kinds() == {"reordering"}


def test_a_record_that_nobody_wrote_is_found(scene: Scene) -> None:
    scene.log[0].append((9, Entry("w.1", "w", 0, 3)))
    assert "invented record" in scene.kinds()
    scene.log[0][-1] = (9, scene.b1)
    assert "invented record" in scene.kinds()


def test_transactions_that_read_from_each_other_are_circular(scene: Scene) -> None:
    scene.history.transactions["w.1"].read.append(scene.b2)
    assert scene.kinds() == {"circular information flow"}


def test_a_longer_circle_is_found_and_described(scene: Scene) -> None:
    scene.history.transactions["w.3"].read.append(scene.b1)
    scene.history.transactions["w.1"].read.append(scene.b4)
    (found,) = find_anomalies(scene.history, scene.log)
    assert found.kind == "circular information flow"
    assert all(name in found.what for name in ("w.1", "w.3", "t.1", "t.3"))


def test_a_read_of_an_aborted_transaction_makes_no_circle(scene: Scene) -> None:
    scene.history.transactions["w.1"].read.append(scene.aborted)
    scene.history.transactions["w.2"].read.append(scene.a1)
    assert scene.kinds() == set()


@pytest.mark.parametrize("records", [[], [(1, "a2"), (6, "c1")]], ids=["less", "more"])
def test_a_read_that_differs_from_the_final_log_was_not_stable(
    scene: Scene, records: list[tuple[int, str]]
) -> None:
    found = [(offset, getattr(scene, name)) for offset, name in records]
    scene.history.reads.append(CommittedRead("r", 0, 1, 5, found))
    assert scene.kinds() == {"unstable read"}


@pytest.mark.parametrize("where", ["seen", "final"])
def test_an_offset_of_an_aborted_transaction_is_found(scene: Scene, where: str) -> None:
    aborted = scene.history.begin("t.9", "t", "g")
    aborted.outcome, aborted.offsets = Outcome.ABORTED, {0: 8}
    if where == "seen":
        scene.history.seen_offsets.append(SeenOffset("g", 0, 8))
    else:
        scene.history.final_offsets["g"][0] = 8
    assert scene.kinds() == {"offset without its transaction"}


def test_an_offset_may_be_of_a_transaction_without_records_and_with_an_unknown_outcome(scene: Scene) -> None:
    unknown = scene.history.begin("t.9", "t", "g")
    unknown.offsets = {0: 8}
    scene.history.seen_offsets.append(SeenOffset("g", 0, 8))
    scene.history.seen_offsets.append(SeenOffset("g", 0, 7))
    assert scene.kinds() == set()


@pytest.mark.parametrize("where", ["seen", "final"])
def test_an_offset_before_the_one_of_a_committed_transaction_is_lost(scene: Scene, where: str) -> None:
    if where == "seen":
        scene.history.seen_offsets.append(SeenOffset("g", 0, 2, acknowledged=7))
    else:
        scene.history.final_offsets["g"][0] = 2
    assert scene.kinds() == {"lost offset"}
