"""The compiled path for plain records against the rules: same rows, same order, same refusals, batch by
batch.

Random histories of every kind of record are held against each other in test_apply_state_machine, which
replays its log both ways.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from google.protobuf.message import Message
from hypothesis import given, settings
from hypothesis import strategies as st
from ponor.metadata.v1 import records_pb2 as pb
from ponor_metadata.image.apply import UnknownRecordError
from ponor_metadata.image.image import MetadataImage
from ponor_metadata.image.snapshot import begin_snapshot, encode
from ponor_metadata.nouns.nodes import OPERATIONS, OPERATIONS_OF
from ponor_metadata.nouns.objects import (
    OBJECTS,
    OBJECTS_WAITING,
    STREAM_SET_OBJECTS,
    STREAM_SET_OBJECTS_WITH,
    ObjectState,
)
from ponor_metadata.nouns.streams import (
    STREAM_OBJECTS,
    STREAM_OBJECTS_OF,
    STREAMS,
    STREAMS_OF_PARTITION,
    STREAMS_OF_TOPIC,
    STREAMS_OPEN_AT,
)

from libs.metadata.tests.metadata_kit import (
    NODE_A,
    NODE_B,
    Log,
    batch_of,
    closed,
    completed,
    created,
    destroyed,
    drain_set,
    obj,
    opened,
    prepared,
    record,
    registered,
    removed,
    so,
    sso,
    stream,
    tenant,
    trimmed,
    wal_opened,
    wal_trimmed,
)

small = st.integers(0, 5)
offsets = st.integers(0, 4).map(lambda number: number * 10)
nodes = st.sampled_from([NODE_A, NODE_B])


def runs(make: Callable[..., pb.Record], *values: st.SearchStrategy[Any]) -> st.SearchStrategy[pb.Record]:
    return st.builds(make, *values)


anything = st.one_of(
    runs(lambda s, **tags: created(stream(s), **tags), small),
    runs(lambda s, topic: created(stream(s), topic=topic, a="1"), small, st.sampled_from(["x", "y"])),
    runs(
        lambda s, topic, p: created(stream(s), topic=topic, partition=p),
        small,
        st.sampled_from(["x", "y"]),
        st.sampled_from(["0", "1"]),
    ),
    runs(lambda s, e, n: opened(stream(s), e, n), small, small, nodes),
    runs(lambda s, e: closed(stream(s), e), small, small),
    runs(lambda s, o: trimmed(stream(s), o), small, offsets),
    runs(lambda o, c, n, t: prepared(obj(o), c, n, 1, t), small, small, nodes, st.integers(0, 2)),
    runs(lambda o, s, a, b: so(obj(o), stream(s), a, b), small, small, offsets, offsets),
    runs(lambda o, s, a: so(obj(o), stream(s), a, a + 10), small, small, offsets),
    runs(lambda o, s, a, n: sso(obj(o), (stream(s), a, a + 10), node_id=n), small, small, offsets, nodes),
    runs(
        lambda o, s, a, n: sso(obj(o), (stream(s), a, a + 10), (stream(s + 1), a, a + 10), node_id=n),
        small,
        small,
        offsets,
        nodes,
    ),
    runs(lambda o: destroyed(obj(o)), small),
    runs(lambda o: removed(obj(o)), small),
    runs(lambda k, v: record(key_put=pb.KeyPut(key=k, value=v)), st.text(max_size=3), st.binary(max_size=3)),
    runs(
        lambda r, f, n, e: completed(r, first_incomplete_id=f, node_id=n, node_epoch=e),
        small,
        small,
        nodes,
        st.integers(1, 2),
    ),
    runs(registered, nodes, st.integers(1, 3), st.just(1), st.integers(0, 2)),
    runs(drain_set, nodes, st.integers(1, 2)),
    runs(wal_opened, nodes, st.integers(1, 2)),
    runs(wal_trimmed, small, nodes, st.integers(1, 2)),
)


def both(log: Log) -> tuple[MetadataImage, MetadataImage]:
    compiled, by_rules = MetadataImage(), MetadataImage(compiled=False)
    for encoded in log.encoded:
        compiled.replay(encoded)
        by_rules.replay(encoded)
    return compiled, by_rules


def found(image: MetadataImage) -> list[list[Any]]:
    """Return the contents of every index that plain records change."""
    streams = [stream(number) for number in range(7)]
    return [
        *(list(image[STREAMS].find(STREAMS_OPEN_AT, node)) for node in (NODE_A, NODE_B)),
        *(list(image[STREAMS].find(STREAMS_OF_TOPIC, topic)) for topic in ("x", "y")),
        *(
            list(image[STREAMS].find(STREAMS_OF_PARTITION, (topic, number)))
            for topic in "xy"
            for number in "01"
        ),
        *(list(image[OBJECTS].find(OBJECTS_WAITING, state)) for state in ObjectState),
        *(list(image[STREAM_OBJECTS].find(STREAM_OBJECTS_OF, each)) for each in streams),
        *(list(image[STREAM_SET_OBJECTS].find(STREAM_SET_OBJECTS_WITH, each)) for each in streams),
        *(list(image[OPERATIONS].find(OPERATIONS_OF, node)) for node in (NODE_A, NODE_B)),
    ]


def same_outcome(compiled: MetadataImage, by_rules: MetadataImage, encoded: bytes) -> bool:
    """Apply a batch to both images; return whether they accept it.

    Outcome, reason and the resulting rows must be equal.
    """
    outcomes: list[str] = []
    for image in (compiled, by_rules):
        try:
            image.replay(encoded)
            outcomes.append("")
        except AssertionError as refusal:
            outcomes.append(str(refusal))
    assert outcomes[0] == outcomes[1]
    assert encode(compiled) == encode(by_rules)
    return not outcomes[0]


@settings(max_examples=150, deadline=None)
@given(st.lists(anything, max_size=30))
def test_compiled_code_and_rules_agree_on_random_records(records: list[pb.Record]) -> None:
    """Most records break an invariant; both images are then rebuilt without the record."""
    log = Log()
    log.commit(*(created(stream(number)) for number in range(1, 4)))
    log.commit(*(opened(stream(number), 1) for number in range(1, 4)), prepared(obj(1), 3))
    images = both(log)
    for each in records:
        index = images[0].index + 1
        encoded = batch_of([each], index, images[0].cluster_time_ms + 1).SerializeToString(deterministic=True)
        if same_outcome(*images, encoded):
            assert found(images[0]) == found(images[1])
            log.encoded.append(encoded)
        else:
            images = both(log)


def test_compiled_code_and_rules_agree_on_blocks_that_fill_split_and_are_in_a_picture() -> None:
    log = Log()
    streams = range(1, 1_500)
    log.commit(*(created(stream(number), topic="t") for number in streams))
    log.commit(*(opened(stream(number), 1, (NODE_A, NODE_B)[number % 2]) for number in streams))
    for number in range(1, 2_000, 100):
        log.commit(prepared(obj(number), 100, expires_at_ms=number))
    compiled, by_rules = both(log)
    encoding, expected = begin_snapshot(compiled), encode(by_rules)
    for number in range(1, 1_900):
        target = stream(1 + (number - 1) % 1_499)
        start = (number - 1) // 1_499 * 10
        requests = [
            completed(number, first_incomplete_id=max(1, number - 700), node_id=node)
            for node in (NODE_B, NODE_A)
        ]
        batch = batch_of(
            [so(obj(number), target, start, start + 10), *requests], compiled.index + 1, 1_000_000
        )
        encoded = batch.SerializeToString(deterministic=True)
        compiled.replay(encoded)
        by_rules.replay(encoded)
    assert b"".join(encoding) == expected
    assert encode(compiled) == encode(by_rules)
    assert found(compiled) == found(by_rules)


def with_more(message: Message, data: bytes) -> bytes:
    return message.SerializeToString(deterministic=True) + data


@pytest.mark.parametrize(
    "encoded",
    [
        pytest.param(b"\x08\x05\x10\x01\x18\x09", id="no records"),
        pytest.param(b"\x88\x00\x05\x18\x09", id="a tag that is longer than need be"),
        pytest.param(b"\x18\x09\x08\x05", id="fields in another order"),
        pytest.param(with_more(batch_of([], 5, 9), b"\x28\x01"), id="a field of a newer build"),
        pytest.param(
            with_more(batch_of([tenant("b", "k")], 5, 9), b"\x10\x02"), id="a field behind the records"
        ),
        pytest.param(
            batch_of([], 5, 9).SerializeToString() + b"\x22\x0b\xc2\x02\x08\x0a\x01k\x12\x01v\x18\x01",
            id="a key with a field of a newer build",
        ),
        pytest.param(
            batch_of([], 5, 9).SerializeToString() + b"\xa2\x00\x08\xc2\x02\x05\x0a\x01k\x12\x00",
            id="a record whose tag is longer than need be",
        ),
    ],
)
def test_compiled_code_and_rules_agree_on_unusual_encodings(encoded: bytes) -> None:
    log = Log(nodes=(NODE_A, NODE_B, NODE_A + 7))  # type: ignore[arg-type]
    compiled, by_rules = both(log)
    assert compiled.index == 4
    assert same_outcome(compiled, by_rules, encoded)
    assert compiled.index == 5


def test_an_unknown_kind_is_refused_before_any_record_of_its_batch() -> None:
    image = both(Log())[0]
    before = encode(image)
    known = pb.RecordBatch(index=image.index + 1, cluster_time_ms=100, records=[tenant("b", "k")])
    with pytest.raises(UnknownRecordError):
        image.replay(with_more(known, b"\x22\x04\xfa\x7f\x01\x00"))
    assert encode(image) == before
