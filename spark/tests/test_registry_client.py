"""Tests of the schema registry client: one request per schema, retries of transient errors, one-line
errors.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st
from ponor_spark.errors import OptionError
from ponor_spark.jobs.registry.client import Registry, RegistryUnavailableError, SchemaUnknownError
from ponor_spark.jobs.registry.wire import NotFramedError, framed, message_indexes

from spark.tests.schema_registry import RegistryServer, registry_server


@pytest.fixture
def server() -> Iterator[RegistryServer]:
    with registry_server() as running:
        yield running


def registry(server: RegistryServer, auth: str = "") -> Registry:
    return Registry(server.url, auth=auth, attempts_max=3, pause=lambda _: None)


def test_a_schema_is_asked_for_once(server: RegistryServer) -> None:
    number = server.register("orders-value", '"long"')
    client = registry(server)
    assert {client.schema(number) for _ in range(5)} == {client.version("orders-value", "latest")}
    assert server.asked == {f"/schemas/ids/{number}": 1, "/subjects/orders-value/versions/latest": 1}


def test_transient_errors_are_retried(server: RegistryServer) -> None:
    number = server.register("a/b c", '"long"')
    server.failures.extend([503, 429])
    assert registry(server).version("a/b c", 1).text == '"long"'
    server.failures.extend([500, 500, 500])
    with pytest.raises(RegistryUnavailableError, match="gave no answer in 3 attempts \\(HTTP 500\\)"):
        registry(server).schema(number)


def test_an_unknown_schema_is_no_failure_of_the_registry(server: RegistryServer) -> None:
    with pytest.raises(SchemaUnknownError):
        registry(server).schema(77)
    assert server.asked.total() == 1


def test_credentials_are_named_and_never_in_the_url(server: RegistryServer) -> None:
    number = server.register("s", '"long"')
    server.auth = "reader:secret"
    assert registry(server, "reader:secret").schema(number).kind == "AVRO"
    with pytest.raises(
        RegistryUnavailableError,
        match="answers HTTP 401; give USER:PASSWORD in the variable PONOR_SCHEMA_REGISTRY_AUTH",
    ):
        registry(server, "reader:wrong").schema(number)
    with pytest.raises(OptionError, match="would show the credentials"):
        Registry("http://reader:secret@registry:8081")
    with pytest.raises(OptionError, match="is not an http or https URL"):
        Registry("registry:8081")


def test_unreachable_registry_is_one_line() -> None:
    with registry_server() as gone:
        url = gone.url
    with pytest.raises(RegistryUnavailableError, match="gave no answer in 2 attempts") as caught:
        Registry(url, attempts_max=2, pause=lambda _: None).schema(1)
    assert "\n" not in str(caught.value)


def test_the_frame_is_a_zero_and_an_id() -> None:
    assert framed(b"\0\0\0\1\2rest") == (258, b"rest")
    for value in (b"", b"\0\0\0\1", b"\1\0\0\0\1rest", b'{"a": 1}'):
        with pytest.raises(NotFramedError):
            framed(value)


@given(st.lists(st.integers(0, 1 << 20), min_size=1, max_size=5), st.binary(max_size=5))
def test_message_indexes_are_zigzag_varints(indexes: list[int], rest: bytes) -> None:
    encoded = b"".join(_zigzag(number) for number in (len(indexes), *indexes))
    assert message_indexes(encoded + rest) == (tuple(indexes), rest)


def test_the_first_message_has_a_short_form_and_damage_is_refused() -> None:
    assert message_indexes(b"\0rest") == ((0,), b"rest")
    for damaged in (b"", b"\x02", b"\x01", b"\xff" * 9, b"\x7e", b"\x02\x01"):
        with pytest.raises(NotFramedError):
            message_indexes(damaged)


def _zigzag(number: int) -> bytes:
    number <<= 1
    out = bytearray()
    while number >= 0x80:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*out, number])
