"""Random instances of any Kafka message in any version, made from the schema alone and from a seed.

The codec's tests and the fuzzer start from these values.
"""

import random
import string
import struct
from importlib import import_module
from typing import Any

from ponor_kafka.message import Message
from ponor_kafka.schema.model import FIXED_WIDTH_FORMATS, Field, Schema, Struct
from ponor_kafka.schema.reader import parse_schema

INTEGER_BITS = {"int8": 8, "int16": 16, "int32": 32, "int64": 64}


def random_integer(type_name: str, rng: random.Random) -> int:
    """Small, large and extreme values of a type, each often enough."""
    if type_name == "uint16":
        return rng.choice((0, 1, 9092, 65535, rng.randrange(65536)))
    bits = INTEGER_BITS[type_name]
    top = 1 << (bits - 1)
    return rng.choice((0, 1, -1, top - 1, -top, rng.randrange(-top, top), rng.randrange(-100, 100)))


def random_text(rng: random.Random) -> str:
    """Empty, short, beyond the one-byte length, and outside ASCII."""
    length = rng.choice((0, 1, 3, 12, 126, 127, 128, 300))
    alphabet = rng.choice((string.ascii_letters, "aé漢🦔"))
    return "".join(rng.choices(alphabet, k=length))


def random_value(type_name: str, rng: random.Random) -> Any:
    if type_name == "bool":
        return rng.random() < 0.5
    if type_name == "float64":
        return struct.unpack(">d", struct.pack(">d", rng.uniform(-1e9, 1e9)))[0]
    if type_name == "uuid":
        return rng.randbytes(16)
    if type_name == "string":
        return random_text(rng)
    if type_name in {"bytes", "records"}:
        return rng.randbytes(rng.choice((0, 1, 60, 127, 128, 5000)))
    assert type_name in FIXED_WIDTH_FORMATS
    return random_integer(type_name, rng)


class InstanceMaker:
    """Fills every field that a version can carry and leaves the others at their defaults."""

    def __init__(self, schema: Schema, module: Any, version: int, rng: random.Random) -> None:
        self.schema = schema
        self.module = module
        self.version = version
        self.rng = rng

    def make(self, described: Struct) -> Any:
        present = [field for field in described.fields if self.version in field.versions]
        values = {field.name: self.value(field) for field in present if not self._left_out(field)}
        for field in present:
            # A tagged struct of defaults is not written, so it comes back as None.
            if field.tag is not None and field.is_struct and not field.array and field.name in values:
                values[field.name] = values[field.name] if values[field.name] != self._empty(field) else None
        return getattr(self.module, described.name)(**values)

    def _empty(self, field: Field) -> Any:
        return getattr(self.module, field.type)()

    def value(self, field: Field) -> Any:
        if self.version in field.nullable and self.rng.random() < 0.3:
            return None
        if field.array:
            return [self._element(field) for _ in range(self.rng.choice((0, 1, 2, 3)))]
        return self._element(field)

    def _element(self, field: Field) -> Any:
        return (
            self.make(self.schema.structs[field.type])
            if field.is_struct
            else random_value(field.type, self.rng)
        )

    def _left_out(self, field: Field) -> bool:
        return field.tag is not None and self.rng.random() < 0.4


def random_message(message_class: type[Message], version: int, rng: random.Random) -> Message:
    """A random instance of a message class, with what the version can carry."""
    module = import_module(message_class.__module__)
    schema = parse_schema(module.SCHEMA)
    message = InstanceMaker(schema, module, version, rng).make(schema.message(message_class.__name__).body)
    assert isinstance(message, Message)
    return message
