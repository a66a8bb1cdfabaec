"""Tests of decoding: values become structs beside the raw ones, errors become messages, and no row is
dropped.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from datetime import UTC, datetime
from decimal import Decimal
from io import BytesIO
from typing import Any, ClassVar

import pyarrow as pa
import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.timestamp_pb2 import Timestamp
from hypothesis import given
from hypothesis import strategies as st
from ponor_spark.jobs.registry.client import Registry, RegistryUnavailableError
from ponor_spark.jobs.registry.decoding import Decoding, decoder_for, with_decoded
from ponor_spark.jobs.registry.shapes import column, fit

from spark.tests.schema_registry import RegistryServer, registry_server

DECODING = Decoding("http://registry", "orders-value")
WHEN = datetime(2026, 9, 21, 14, 13, 20, tzinfo=UTC)


@pytest.fixture
def server() -> Iterator[RegistryServer]:
    with registry_server() as running:
        yield running


def decode(
    server: RegistryServer, values: list[bytes | None], subject: str = "orders-value"
) -> list[dict[str, Any]]:
    registry = Registry(server.url, attempts_max=2, pause=lambda _: None)
    decoder = decoder_for(registry, registry.version(subject, "latest"))
    batch = pa.RecordBatch.from_pydict(
        {"offset": list(range(len(values))), "value": pa.array(values, pa.binary())}
    )
    found = with_decoded(batch, DECODING, decoder)
    assert found.column("value").to_pylist() == values
    assert found.num_rows == len(values)
    rows: list[dict[str, Any]] = found.select(["decoded", "decoded_error"]).to_pylist()
    return rows


def framed(schema_id: int, body: bytes) -> bytes:
    return struct.pack(">BI", 0, schema_id) + body


ADDRESS = {
    "type": "record",
    "name": "Address",
    "namespace": "shop",
    "fields": [{"name": "city", "type": "string"}],
}
ORDER = {
    "type": "record",
    "name": "Order",
    "namespace": "shop",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "price", "type": {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "to", "type": ["null", "shop.Address"], "default": None},
        {"name": "tags", "type": {"type": "array", "items": "string"}},
        {"name": "counts", "type": {"type": "map", "values": "int"}},
        {"name": "either", "type": ["string", "int"]},
    ],
}
VALUE = {
    "id": 7,
    "price": Decimal("12.50"),
    "at": WHEN,
    "to": {"city": "Ponor"},
    "tags": ["a"],
    "counts": {"b": 2},
    "either": 5,
}


class TestAvro:
    @pytest.fixture(autouse=True)
    def _installed(self) -> None:
        pytest.importorskip("fastavro", reason="fastavro is installed for `make test-spark` alone")

    def registered(self, server: RegistryServer) -> int:
        server.register("address", json.dumps(ADDRESS))
        reference = {"name": "shop.Address", "subject": "address", "version": 1}
        return server.register("orders-value", json.dumps(ORDER), references=[reference])

    def encoded(self, schema: dict[str, Any], value: Any) -> bytes:
        from fastavro import parse_schema, schemaless_writer

        names: dict[str, Any] = {}
        parse_schema(ADDRESS, named_schemas=names)
        stream = BytesIO()
        schemaless_writer(stream, parse_schema(schema, named_schemas=names), value)
        return stream.getvalue()

    def test_a_record_with_everything_in_it(self, server: RegistryServer) -> None:
        number = self.registered(server)
        [row] = decode(server, [framed(number, self.encoded(ORDER, VALUE))])
        assert row["decoded_error"] is None
        assert row["decoded"] == {**VALUE, "counts": [("b", 2)], "either": "5"}

    def test_an_older_writer_is_read_by_the_readers_schema(self, server: RegistryServer) -> None:
        fields = [field for field in ORDER["fields"] if field["name"] not in {"to", "either"}]  # type: ignore[index]
        older = {
            **ORDER,
            "fields": [*fields, {"name": "gone", "type": "int"}, {"name": "either", "type": "int"}],
        }
        first = server.register("orders-value", json.dumps(older))
        self.registered(server)
        [row] = decode(server, [framed(first, self.encoded(older, {**VALUE, "gone": 1}))])
        assert row == {
            "decoded": {**VALUE, "to": None, "counts": [("b", 2)], "either": "5"},
            "decoded_error": None,
        }

    def test_no_row_is_left_out(self, server: RegistryServer) -> None:
        number = self.registered(server)
        good = framed(number, self.encoded(ORDER, VALUE))
        rows = decode(
            server,
            [
                None,
                b"",
                b"plain text",
                good,
                framed(99, b""),
                good[:-3],
                good + b"x",
                framed(number, b"\xff" * 30),
            ],
        )
        assert [row["decoded"] is not None for row in rows] == [
            False,
            False,
            False,
            True,
            False,
            False,
            False,
            False,
        ]
        errors = [row["decoded_error"] for row in rows]
        assert errors[0] is None
        assert errors[3] is None
        assert "shorter than" in errors[1]
        assert "not written with a schema registry" in errors[2]
        assert "schema id 99: SchemaUnknownError" in errors[4]
        assert "1 bytes after the value" in errors[6]
        assert all(errors[number] for number in (5, 7))

    def test_recursive_list_is_json(self, server: RegistryServer) -> None:
        node = {
            "type": "record",
            "name": "Node",
            "fields": [{"name": "n", "type": "int"}, {"name": "next", "type": ["null", "Node"]}],
        }
        number = server.register("orders-value", json.dumps(node))
        value = {"n": 1, "next": {"n": 2, "next": None}}
        [row] = decode(server, [framed(number, self.encoded(node, value))])
        assert row["decoded"] == {"n": 1, "next": '{"n":2,"next":null}'}

    def test_unavailable_registry_fails_the_task(self, server: RegistryServer) -> None:
        number = self.registered(server)
        registry = Registry(server.url, attempts_max=2, pause=lambda _: None)
        decoder = decoder_for(registry, registry.version("orders-value", "latest"))
        server.failures.extend([503] * 4)
        batch = pa.RecordBatch.from_pydict({"value": [framed(number, b"")]})
        with pytest.raises(RegistryUnavailableError):
            with_decoded(batch, DECODING, decoder)


class TestJson:
    SCHEMA: ClassVar[dict[str, Any]] = {
        "type": "object",
        "properties": {
            "id": {"type": "integer", "minimum": 1},
            "price": {"type": "number"},
            "tags": {"type": "array", "items": {"type": "string"}},
            "note": {"oneOf": [{"type": "null"}, {"type": "string"}]},
            "extra": {"type": "object"},
            "counts": {"type": "object", "additionalProperties": {"type": "integer"}},
        },
        "required": ["id"],
    }

    def test_properties_are_columns_and_the_rest_is_text(self, server: RegistryServer) -> None:
        number = server.register("orders-value", json.dumps(self.SCHEMA), "JSON")
        value = {
            "id": 3,
            "price": 2,
            "tags": ["a"],
            "note": None,
            "extra": {"x": [1]},
            "counts": {"b": 1},
            "more": 1,
        }
        [row] = decode(server, [framed(number, json.dumps(value).encode())])
        expected = {
            "id": 3,
            "price": 2.0,
            "tags": ["a"],
            "note": None,
            "extra": '{"x":[1]}',
            "counts": [("b", 1)],
        }
        assert row == {"decoded": expected, "decoded_error": None}

    def test_values_are_checked_against_their_schema(self, server: RegistryServer) -> None:
        number = server.register("orders-value", json.dumps(self.SCHEMA), "JSON")
        rows = decode(
            server,
            [
                framed(number, body)
                for body in (b'{"id": 0}', b"{}", b"no json", b'{"id": 99999999999999999999}', b'{"id": 5}')
            ],
        )
        assert [row["decoded"] is not None for row in rows] == [False, False, False, False, True]
        assert "$.id: 0 is less than the minimum of 1" in rows[0]["decoded_error"]
        assert "'id' is a required property" in rows[1]["decoded_error"]
        assert "JSONDecodeError" in rows[2]["decoded_error"]
        assert "does not fit its column" in rows[3]["decoded_error"]


def proto_file() -> descriptor_pb2.FileDescriptorProto:
    kind = descriptor_pb2.FieldDescriptorProto
    file = descriptor_pb2.FileDescriptorProto(
        name="order.proto", package="shop", syntax="proto3", dependency=["google/protobuf/timestamp.proto"]
    )
    file.message_type.add(name="Other").field.add(
        name="x", number=1, type=kind.TYPE_INT32, label=kind.LABEL_OPTIONAL
    )
    order = file.message_type.add(name="Order")
    order.field.add(name="id", number=1, type=kind.TYPE_INT64, label=kind.LABEL_OPTIONAL)
    order.field.add(name="name", number=2, type=kind.TYPE_STRING, label=kind.LABEL_OPTIONAL)
    order.field.add(name="big", number=3, type=kind.TYPE_UINT64, label=kind.LABEL_OPTIONAL)
    order.field.add(
        name="at",
        number=4,
        type=kind.TYPE_MESSAGE,
        type_name=".google.protobuf.Timestamp",
        label=kind.LABEL_OPTIONAL,
    )
    order.field.add(name="tags", number=5, type=kind.TYPE_STRING, label=kind.LABEL_REPEATED)
    order.field.add(
        name="parent", number=6, type=kind.TYPE_MESSAGE, type_name=".shop.Order", label=kind.LABEL_OPTIONAL
    )
    order.field.add(
        name="line", number=7, type=kind.TYPE_MESSAGE, type_name=".shop.Order.Line", label=kind.LABEL_OPTIONAL
    )
    order.nested_type.add(name="Line").field.add(
        name="sku", number=1, type=kind.TYPE_BYTES, label=kind.LABEL_OPTIONAL
    )
    return file


class TestProtobuf:
    def message(self, name: str) -> Any:
        pool = descriptor_pool.DescriptorPool()
        pool.Add(descriptor_pb2.FileDescriptorProto.FromString(Timestamp.DESCRIPTOR.file.serialized_pb))
        pool.Add(proto_file())
        return message_factory.GetMessageClass(pool.FindMessageTypeByName(name))()

    def reader_first(self) -> descriptor_pb2.FileDescriptorProto:
        file = proto_file()
        messages = list(file.message_type)
        del file.message_type[:]
        file.message_type.extend(reversed(messages))
        return file

    def test_the_indexes_choose_the_message_and_its_fields_are_columns(self, server: RegistryServer) -> None:
        written = server.register("old", "(text)", "PROTOBUF", serialized=proto_file().SerializeToString())
        server.register(
            "orders-value", "(text)", "PROTOBUF", serialized=self.reader_first().SerializeToString()
        )
        order = self.message("shop.Order")
        order.id, order.name, order.big = 7, "bread", (1 << 64) - 1
        order.at.FromDatetime(WHEN)
        order.tags.append("a")
        order.line.sku = b"\0\1"
        order.parent.id = 6
        rows = decode(
            server,
            [
                framed(written, b"\x02\x02" + order.SerializeToString()),
                framed(written, b"\x02\x09"),
                framed(written, b"\x02\x02\xff"),
            ],
        )
        expected = {
            "id": 7,
            "name": "bread",
            "big": Decimal((1 << 64) - 1),
            "at": WHEN,
            "tags": ["a"],
            "line": {"sku": b"\0\1"},
        }
        found = rows[0]["decoded"]
        assert {name: found[name] for name in expected} == expected
        assert json.loads(found["parent"])["id"] == "6"
        assert "message index" in rows[1]["decoded_error"] or "message indexes" in rows[1]["decoded_error"]
        assert "not a message of type shop.Order" in rows[2]["decoded_error"]

    def test_registry_with_only_text_needs_the_compiler(self, server: RegistryServer) -> None:
        pytest.importorskip("grpc_tools")
        text = (
            'syntax = "proto3"; import "google/protobuf/timestamp.proto"; message Order { int64 id = 1;'
            " map<string, google.protobuf.Timestamp> at = 2; }"
        )
        number = server.register("orders-value", text, "PROTOBUF")
        body = b"\x00\x08\x07\x12\x08\x0a\x01a\x12\x03\x08\xe8\x07"
        [row] = decode(server, [framed(number, body)])
        assert row == {
            "decoded": {"id": 7, "at": [("a", datetime.fromtimestamp(1000, UTC))]},
            "decoded_error": None,
        }


JSON_VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.text(max_size=5)
    | st.binary(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=8,
)
SHAPES = st.sampled_from(
    [
        pa.string(),
        pa.int64(),
        pa.int32(),
        pa.float64(),
        pa.bool_(),
        pa.struct([("a", pa.int32())]),
        pa.list_(pa.string()),
        pa.map_(pa.string(), pa.int64()),
    ]
)


@given(st.lists(JSON_VALUES, max_size=6), SHAPES)
def test_any_value_becomes_a_column_or_an_error(values: list[Any], shape: pa.DataType) -> None:
    fitted: list[Any] = []
    errors: list[str | None] = []
    for value in values:
        try:
            fitted.append(fit(value, shape))
            errors.append(None)
        except ValueError as error:
            fitted.append(None)
            errors.append(str(error))
    found = column(fitted, errors, shape)
    assert len(found) == len(values)
    assert found.type == shape
    for value, there, why in zip(values, found.to_pylist(), errors, strict=True):
        assert there is not None or why is not None or value is None
