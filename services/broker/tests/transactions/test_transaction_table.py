"""Every event in every state of a transactional id, for both generations of clients."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from ponor_broker.transactions.events import AddRequest, EndRequest, InitRequest, ProducerClaim, RequestId
from ponor_broker.transactions.instructions import (
    Answer,
    Forget,
    Instruction,
    SendMarkers,
    SetTimer,
    Write,
)
from ponor_broker.transactions.records import TransactionRecord, TransactionState
from ponor_broker.transactions.transaction import Transaction
from ponor_kafka.errors import ErrorCode
from ponor_runtime.identity import ProducerId

PRODUCER, OTHER, NEW = ProducerId(1000), ProducerId(7), ProducerId(2000)
EPOCH = 5
NOW_MS = 1_700_000_000_000
OPEN_PARTITIONS = frozenset({("t", 0)})
STATES = {
    TransactionState.EMPTY: "Em",
    TransactionState.ONGOING: "On",
    TransactionState.PREPARE_COMMIT: "PC",
    TransactionState.PREPARE_ABORT: "PA",
    TransactionState.COMPLETE_COMMIT: "CC",
    TransactionState.COMPLETE_ABORT: "CA",
}
ABBREVIATIONS = {
    ErrorCode.CONCURRENT_TRANSACTIONS: "CT",
    ErrorCode.PRODUCER_FENCED: "PF",
    ErrorCode.INVALID_PRODUCER_ID_MAPPING: "IPM",
    ErrorCode.INVALID_TXN_STATE: "ITS",
    ErrorCode.TRANSACTION_ABORTABLE: "TA",
    ErrorCode.NONE: "ok",
}

# A state in a cell: this record is written. `+1`: with a raised epoch.
TABLE = """
                       | Em        | On        | PC        | PA        | CC        | CA
init                   | Em+1      | PA+1      | CT        | CT        | Em+1      | Em+1
init expecting current | Em+1      | PA+1      | CT        | CT        | Em+1      | Em+1
init expecting older   | PF        | PA+1      | CT        | CT        | PF        | PF
init expecting newer   | PF        | PA+1      | CT        | CT        | PF        | PF
init expecting other   | PF        | PF        | CT        | CT        | PF        | PF
add 1                  | On        | On        | CT        | CT        | On        | On
add 2                  | On        | On        | CT        | CT        | On        | On
add 1 again            | On        | ok        | CT        | CT        | On        | On
add 2 older            | PF        | PF        | CT        | CT        | PF        | PF
add 2 newer            | PF        | PF        | CT        | CT        | PF        | PF
add 1 other            | IPM       | IPM       | CT        | CT        | IPM       | IPM
verify                 | TA        | ok        | CT        | CT        | TA        | TA
verify absent          | TA        | TA        | CT        | CT        | TA        | TA
verify older           | PF        | PF        | CT        | CT        | PF        | PF
verify other           | IPM       | IPM       | CT        | CT        | IPM       | IPM
commit 1               | ITS       | PC        | CT        | CT        | ok        | ITS
abort 1                | ITS       | PA        | CT        | CT        | ITS       | ok
commit 1 older         | PF        | PF        | PF        | PF        | PF        | PF
abort 1 newer          | PF        | PF        | PF        | PF        | PF        | PF
commit 1 other         | IPM       | IPM       | IPM       | IPM       | IPM       | IPM
commit 2               | ITS       | PC+1      | CT        | CT        | ITS       | ITS
abort 2                | PA+1      | PA+1      | CT        | CT        | PA+1      | PA+1
commit 2 older         | PF        | PF        | CT        | CT        | ok 1000/5 | ITS
abort 2 older          | PF        | PF        | CT        | CT        | ITS       | ok 1000/5
commit 2 newer         | PF        | PF        | CT        | CT        | PF        | PF
abort 2 oldest         | PF        | PF        | CT        | CT        | PF        | PF
commit 2 other         | IPM       | IPM       | CT        | CT        | IPM       | IPM
timed out              | -         | PA+1      | -         | -         | -         | -
markers done           | -         | -         | CC        | CA        | -         | -
expire                 | tombstone | -         | -         | -         | tombstone | tombstone
loaded                 | -         | timeout   | markers   | markers   | -         | -
"""
EPOCHS = {"older": EPOCH - 1, "newer": EPOCH + 1, "oldest": EPOCH - 2}


def record(state: TransactionState, client_version: int, epoch: int = EPOCH) -> TransactionRecord:
    is_open = state is TransactionState.ONGOING or state.is_prepared
    return TransactionRecord(
        PRODUCER,
        epoch,
        timeout_ms=60_000,
        state=state,
        update_ms=NOW_MS,
        start_ms=NOW_MS if is_open else -1,
        partitions=OPEN_PARTITIONS if is_open else frozenset(),
        previous_producer_id=PRODUCER,
        client_version=client_version,
    )


def claim(words: list[str]) -> ProducerClaim:
    epoch = next((EPOCHS[word] for word in words if word in EPOCHS), EPOCH)
    return ProducerClaim(OTHER if "other" in words else PRODUCER, epoch)


def happen(transaction: Transaction, event: str) -> list[Instruction]:
    verb, *words = event.split()
    who = claim(words)
    events: dict[str, Callable[[], list[Instruction]]] = {
        "init": lambda: transaction.init_producer_id(
            InitRequest(60_000, who if words else None, RequestId(1)), NOW_MS + 1
        ),
        "add": lambda: transaction.add_partitions(
            AddRequest(who, {("t", 0 if "again" in words else 1)}, words[0] == "2", RequestId(1)), NOW_MS + 1
        ),
        "commit": lambda: transaction.end(EndRequest(who, True, words[0] == "2", RequestId(1)), NOW_MS + 1),
        "abort": lambda: transaction.end(EndRequest(who, False, words[0] == "2", RequestId(1)), NOW_MS + 1),
        "timed": lambda: transaction.timed_out(NOW_MS + 1),
        "markers": lambda: transaction.markers_done(NOW_MS + 1),
        "expire": lambda: transaction.expire(NOW_MS + 1_000, 1_000),
        "loaded": transaction.loaded,
    }
    return events[verb]()


def outcome_of(transaction: Transaction, event: str) -> str:
    if event.startswith("verify"):
        wanted = ("t", 1 if "absent" in event else 0)
        found = transaction.verify_partitions(claim(event.split()), {wanted})
        return ABBREVIATIONS[found if isinstance(found, ErrorCode) else found[wanted]]
    instructions = happen(transaction, event)
    if not instructions:
        return "-"
    (instruction,) = instructions
    match instruction:
        case Answer(_, body):
            ids = "" if body.producer_id == -1 else f" {body.producer_id}/{body.producer_epoch}"
            return ABBREVIATIONS[body.error] + ids
        case Write(None):
            return "tombstone"
        case Write(written):
            assert written is not None
            raised = written.producer_epoch - EPOCH
            return STATES[written.state] + (f"+{raised}" if raised else "")
        case SetTimer(kind, 60_000):
            return kind.value
        case SendMarkers():
            return "markers"
    raise AssertionError(instruction)


def cells() -> list[tuple[str, TransactionState, str]]:
    head, *rows = [[cell.strip() for cell in line.split("|")] for line in TABLE.strip("\n").splitlines()]
    states = {name: state for state, name in STATES.items()}
    return [
        (row[0], states[name], cell) for row in rows for name, cell in zip(head[1:], row[1:], strict=True)
    ]


@pytest.mark.parametrize("client_version", [0, 2])
@pytest.mark.parametrize(
    ("event", "state", "outcome"), cells(), ids=lambda one: one if isinstance(one, str) else one.label
)
def test_event_in_state(event: str, state: TransactionState, outcome: str, client_version: int) -> None:
    assert outcome_of(Transaction(10, record(state, client_version)), event) == outcome


@pytest.mark.parametrize("event", ["init", "add 1", "add 2 older", "commit 1", "commit 2", "abort 2 other"])
def test_one_write_is_in_flight(event: str) -> None:
    transaction = Transaction(10, record(TransactionState.ONGOING, 2))
    transaction.add_partitions(
        AddRequest(ProducerClaim(PRODUCER, EPOCH), {("t", 3)}, True, RequestId(9)), NOW_MS
    )

    assert outcome_of(transaction, event) == "CT"
    assert outcome_of(transaction, "markers done") == "-"
    assert outcome_of(transaction, "expire") == "-"


def test_partitions_are_verified_while_another_is_added() -> None:
    transaction = Transaction(10, record(TransactionState.ONGOING, 0))
    happen(transaction, "add 1")

    assert outcome_of(transaction, "verify") == "ok"
    assert outcome_of(transaction, "verify absent") == "TA", "it is not durable yet"

    transaction.written(ErrorCode.NONE, NOW_MS)
    assert outcome_of(transaction, "verify absent") == "ok"


def test_no_partition_is_verified_while_the_end_is_written() -> None:
    transaction = Transaction(10, record(TransactionState.ONGOING, 0))
    happen(transaction, "commit 1")

    assert outcome_of(transaction, "verify") == "CT"


def test_id_without_a_durable_record_is_forgotten() -> None:
    transaction = Transaction(10)
    first, *rest = transaction.init_producer_id(InitRequest(60_000, None, RequestId(1)), NOW_MS, NEW)
    assert isinstance(first, Write)
    assert not rest

    answer, forget = transaction.written(ErrorCode.COORDINATOR_NOT_AVAILABLE, NOW_MS)

    assert isinstance(answer, Answer)
    assert answer.body.error is ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert forget == Forget()
