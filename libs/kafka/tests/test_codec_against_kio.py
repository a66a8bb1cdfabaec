"""Every message and version that kio knows, built in both libraries from the same values: equal bytes and
fields."""

import dataclasses
import datetime as dt
import io
import random
import typing
import uuid
from importlib import import_module
from types import ModuleType, UnionType
from typing import Any

import pytest
from kio.schema.errors import ErrorCode as KioErrorCode
from kio.schema.index import schema_name_map
from kio.serial import entity_reader, entity_writer
from kio.static.constants import EntityType
from ponor_kafka.api import APIS
from ponor_kafka.codec import decode_as, encode
from ponor_kafka.message import ZERO_UUID
from ponor_kafka.schema.model import Field, Message, Schema, Struct
from ponor_kafka.schema.reader import parse_schema

INSTANCES_PER_VERSION = 3
EPOCH = dt.datetime.fromtimestamp(0, dt.UTC)
KIO_CODES = sorted(code.value for code in KioErrorCode)
NAMES_BEFORE_4_4 = {
    "generation_id_or_member_epoch": "generation_id",
    "acceptable_recovery_lag_legacy": "acceptable_recovery_lag",
}
RECORD_SIDE = {
    "consumer_protocol_assignment": "ConsumerProtocolAssignment",
    "consumer_protocol_subscription": "ConsumerProtocolSubscription",
    "control_record_type_schema": "ControlRecordTypeSchema",
    "default_principal_data": "DefaultPrincipalData",
    "end_txn_marker": "EndTxnMarker",
    "request_header": "RequestHeader",
    "response_header": "ResponseHeader",
}
ENTITY_TYPES = {
    "request": EntityType.request,
    "response": EntityType.response,
    "header": EntityType.header,
    "data": EntityType.data,
}


class PairMaker:
    """Builds one message twice, with our classes and kio's, from the same random values."""

    def __init__(
        self, schema: Schema, module: ModuleType, message: Message, version: int, rng: random.Random
    ) -> None:
        self.schema = schema
        self.module = module
        self.message = message
        self.version = version
        self.rng = rng

    def make(self, described: Struct, kio_class: Any) -> tuple[Any, Any]:
        ours: dict[str, Any] = {}
        theirs: dict[str, Any] = {}
        present = [field for field in described.fields if self.version in field.versions]
        kio_fields = dataclasses.fields(kio_class)
        assert [_bare(field.name) for field in present] == [_bare(field.name) for field in kio_fields]
        for field, kio_field in zip(present, kio_fields, strict=True):
            if field.tag is not None and self.rng.random() < 0.4:
                theirs[kio_field.name] = _default(kio_field)
                continue
            ours[field.name], theirs[kio_field.name] = self._value(field, kio_field)
        return getattr(self.module, described.name)(**ours), kio_class(**theirs)

    def _value(self, field: Field, kio_field: Any) -> tuple[Any, Any]:
        if self.version in field.nullable and self.rng.random() < 0.3:
            return None, None
        if field.array:
            pairs = [self._element(field, kio_field) for _ in range(self._count(field))]
            return [mine for mine, _ in pairs], tuple(other for _, other in pairs)
        return self._element(field, kio_field)

    def _count(self, field: Field) -> int:
        """Few structs; scalar arrays may exceed a one-byte length."""
        return self.rng.choice((0, 1, 2) if field.is_struct else (0, 1, 2, 3, 130))

    def _element(self, field: Field, kio_field: Any) -> tuple[Any, Any]:
        if field.is_struct:
            return self.make(self.schema.structs[field.type], _entity(kio_field.type))
        return _scalar_pair(kio_field.metadata["kafka_type"], self.rng)


def _scalar_pair(kafka_type: str, rng: random.Random) -> tuple[Any, Any]:
    """Return our value and kio's: kio uses durations, dates and UUID objects where we use numbers."""
    if kafka_type == "error_code":
        code = rng.choice(KIO_CODES)
        return code, KioErrorCode(code)
    if kafka_type in {"timedelta_i32", "timedelta_i64"}:
        milliseconds = rng.choice((0, 1, -1, 30_000, rng.randrange(-(2**31), 2**31)))
        return milliseconds, dt.timedelta(milliseconds=milliseconds)
    if kafka_type == "datetime_i64":
        milliseconds = rng.choice((0, 1, 1_700_000_000_123, rng.randrange(2**42)))
        return milliseconds, EPOCH + dt.timedelta(milliseconds=milliseconds)
    if kafka_type == "uuid":
        raw = rng.choice((ZERO_UUID, rng.randbytes(16)))
        return raw, None if raw == ZERO_UUID else uuid.UUID(bytes=raw)
    if kafka_type == "string":
        text = rng.choice(("", "a", "x" * 126, "x" * 127, "ü" * 200, "topic-7"))
        return text, text
    if kafka_type in {"bytes", "records"}:
        data = rng.randbytes(rng.choice((0, 1, 61, 126, 127, 128, 20_000)))
        return data, data
    if kafka_type == "bool":
        flag = rng.random() < 0.5
        return flag, flag
    if kafka_type == "float64":
        real = rng.uniform(-1e6, 1e6)
        return real, real
    bits = int(kafka_type.removeprefix("u").removeprefix("int"))
    low, high = (0, 2**bits) if kafka_type.startswith("u") else (-(2 ** (bits - 1)), 2 ** (bits - 1))
    number = rng.choice((0, 1, low, high - 1, rng.randrange(low, high)))
    return number, number


def _bare(name: str) -> str:
    """Kio omits the unit of durations and dates from names, and uses some names from before Kafka 4.4."""
    bare = name.removesuffix("_").removesuffix("_ms").replace("2_pc", "2pc")
    return NAMES_BEFORE_4_4.get(bare, bare)


def _entity(annotation: Any) -> Any:
    """Find the dataclass in `T`, `T | None`, `tuple[T, ...]` or `tuple[T, ...] | None`."""
    if typing.get_origin(annotation) in {tuple, UnionType, typing.Union}:
        inner = [one for one in typing.get_args(annotation) if one not in {type(None), Ellipsis}]
        return _entity(inner[0])
    return annotation


def _default(kio_field: Any) -> Any:
    if kio_field.default is not dataclasses.MISSING:
        return kio_field.default
    entity = _entity(kio_field.type)
    if dataclasses.is_dataclass(entity):
        return entity(**{one.name: _default(one) for one in dataclasses.fields(entity)})  # type: ignore[operator]
    return {"string": "", "bool": False, "bytes": b""}.get(kio_field.metadata["kafka_type"], 0)


def _agree(module_name: str, kio_name: str) -> int:
    module = import_module(f"ponor_kafka.messages.{module_name}")
    schema = parse_schema(module.SCHEMA)
    compared = 0
    for message in schema.messages:
        for version in message.versions:
            kio_path = schema_name_map[kio_name].get(version, {}).get(ENTITY_TYPES[message.kind])  # type: ignore[call-overload]
            if kio_path is None:
                continue
            kio_module, _, kio_class_name = kio_path.partition(":")
            kio_class = getattr(import_module(kio_module), kio_class_name)
            for seed in range(INSTANCES_PER_VERSION):
                rng = random.Random(f"{message.name}-{version}-{seed}")
                ours, theirs = PairMaker(schema, module, message, version, rng).make(message.body, kio_class)
                _compare(ours, theirs, kio_class, version)
                compared += 1
    return compared


def _compare(ours: Any, theirs: Any, kio_class: Any, version: int) -> None:
    buffer = io.BytesIO()
    entity_writer(kio_class)(buffer, theirs)
    expected = buffer.getvalue()
    assert encode(ours, version) == expected
    assert decode_as(type(ours), version, expected) == (ours, len(expected))
    assert entity_reader(kio_class)(expected, 0) == (theirs, len(expected))


@pytest.mark.parametrize("api_key", sorted(set(APIS) - {93, 94}))
def test_api_agrees_with_kio_in_every_version_that_kio_knows(api_key: int) -> None:
    module_name = APIS[api_key].module
    assert _agree(module_name, module_name) >= 2 * INSTANCES_PER_VERSION


@pytest.mark.parametrize("module_name", sorted(RECORD_SIDE))
def test_header_or_record_body_agrees_with_kio(module_name: str) -> None:
    assert _agree(module_name, module_name) >= INSTANCES_PER_VERSION
