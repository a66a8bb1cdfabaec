"""The digest of an operation."""

from __future__ import annotations

from hashlib import blake2b

from hypothesis import given
from hypothesis import strategies as st
from ponor.controller.v1.session_service_pb2 import (
    CreateStreams,
    Operation,
    PutKey,
    StreamTags,
)
from ponor_metadata.client.operations import operation_digest

IDS = st.one_of(
    st.integers(0, 300), st.integers(0, 2**64 - 1), st.sampled_from([2**n for n in range(0, 64, 7)])
)


def _digest_of_a_copy(operation: Operation) -> bytes:
    """Compute the digest in the simplest way."""
    body = Operation()
    body.CopyFrom(operation)
    body.ClearField("request_id")
    body.ClearField("traceparent")
    return blake2b(body.SerializeToString(deterministic=True), digest_size=8).digest()


@given(
    IDS,
    st.sampled_from(["", "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"]),
    st.text(),
    st.binary(),
)
def test_the_digest_of_an_operation_ignores_its_id_and_trace(
    request_id: int, traceparent: str, key: str, value: bytes
) -> None:
    put = Operation(request_id=request_id, traceparent=traceparent, put_key=PutKey(key=key, value=value))
    assert operation_digest(put) == _digest_of_a_copy(put)
    assert operation_digest(put) == operation_digest(Operation(put_key=put.put_key))
    tags = {key: "1", "topic": "x"}
    create = Operation(request_id=request_id, create_streams=CreateStreams(streams=[StreamTags(tags=tags)]))
    assert operation_digest(create) == _digest_of_a_copy(create)
    assert operation_digest(Operation(request_id=request_id)) == operation_digest(Operation())
