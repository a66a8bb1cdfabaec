"""Protobuf values: the registry's file descriptor gives the classes, and this module maps messages to
columns.

The client requests the serialized descriptor, which needs no compiler. For a registry that returns only the
.proto's text, `grpcio-tools` must be installed. A google.protobuf.Timestamp becomes a timestamp, an enum its
name, an unsigned 64-bit number a decimal, and a recursive message JSON text.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterator, Mapping
from datetime import UTC
from decimal import Decimal
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import pyarrow as pa
from google.protobuf import descriptor_pb2, descriptor_pool, json_format, message_factory
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import DecodeError

from ponor_spark.jobs.registry.client import Registry, Schema
from ponor_spark.jobs.registry.shapes import UTC_MICROS
from ponor_spark.jobs.registry.wire import message_indexes

FILES_MAX: Final = 200
ROOT: Final = "value.proto"
TIMESTAMP: Final = "google.protobuf.Timestamp"
UINT64: Final = pa.decimal128(20, 0)
_F: Final = FieldDescriptor
_PLAIN: Final[Mapping[int, pa.DataType]] = {
    _F.CPPTYPE_INT32: pa.int32(),
    _F.CPPTYPE_INT64: pa.int64(),
    _F.CPPTYPE_UINT32: pa.int64(),
    _F.CPPTYPE_UINT64: UINT64,
    _F.CPPTYPE_DOUBLE: pa.float64(),
    _F.CPPTYPE_FLOAT: pa.float32(),
    _F.CPPTYPE_BOOL: pa.bool_(),
    _F.CPPTYPE_ENUM: pa.string(),
}


class ProtobufDecoder:
    """Decodes values of any writer's schema into the columns of the reader schema's first message type."""

    def __init__(self, registry: Registry, reader: Schema) -> None:
        self._registry = registry
        self._writers: dict[tuple[int, tuple[int, ...]], type[Any]] = {}
        self.shape = shape_of(message_at(file_of(registry, reader), (0,)))

    def decode(self, schema_id: int, body: bytes) -> Any:
        """Return the value as a Python object.

        Raises:
            SchemaUnknownError: the registry does not have the writer's schema.
            ValueError: invalid message.
        """
        indexes, data = message_indexes(body)
        kind = self._writers.get((schema_id, indexes))
        if kind is None:
            descriptor = message_at(file_of(self._registry, self._registry.schema(schema_id)), indexes)
            kind = self._writers[schema_id, indexes] = message_factory.GetMessageClass(descriptor)
        message = kind()
        try:
            message.ParseFromString(data)
        except DecodeError as error:
            raise ValueError(f"not a message of type {kind.DESCRIPTOR.full_name}: {error}") from None
        return as_python(message)


def file_of(registry: Registry, schema: Schema) -> Any:
    """Return the descriptor of a schema's file. Every schema gets a separate pool, because a pool refuses
    different definitions of one name.
    """
    files = list(_files(registry, schema, ROOT, set()))
    pool = descriptor_pool.DescriptorPool()
    for file in files:
        pool.Add(file)
    return pool.FindFileByName(ROOT)


def _files(
    registry: Registry, schema: Schema, name: str, seen: set[str]
) -> Iterator[descriptor_pb2.FileDescriptorProto]:
    """Yield imports before the files that import them."""
    for reference in schema.references:
        if reference.name not in seen:
            seen.add(reference.name)
            if len(seen) > FILES_MAX:
                raise ValueError(f"a schema of more than {FILES_MAX} files")
            yield from _files(
                registry, registry.version(reference.subject, reference.version), reference.name, seen
            )
    file = _file(schema.text, name)
    for imported in file.dependency:
        if imported.startswith("google/protobuf/") and imported not in seen:
            seen.add(imported)
            yield _well_known(imported)
    yield file


def _file(text: str, name: str) -> descriptor_pb2.FileDescriptorProto:
    try:
        file = descriptor_pb2.FileDescriptorProto.FromString(base64.b64decode(text, validate=True))
    except (binascii.Error, ValueError, DecodeError):
        file = _compiled(text)
    file.name = name
    return file


def _compiled(text: str) -> descriptor_pb2.FileDescriptorProto:
    if find_spec("grpc_tools") is None:
        raise ValueError(
            "the registry returned the Protobuf schema as text; install grpcio-tools, with which ponor-spark"
            " compiles it"
        )
    import grpc_tools
    from grpc_tools import protoc

    with TemporaryDirectory() as folder:
        path, result = Path(folder, ROOT), Path(folder, "out")
        path.write_text(text, encoding="utf-8")
        known = Path(grpc_tools.__file__).parent / "_proto"
        if protoc.main(["protoc", f"-I{folder}", f"-I{known}", f"--descriptor_set_out={result}", str(path)]):
            raise ValueError("the registry's Protobuf schema does not compile")
        return descriptor_pb2.FileDescriptorSet.FromString(result.read_bytes()).file[0]


def _well_known(name: str) -> descriptor_pb2.FileDescriptorProto:
    from google.protobuf import (
        any_pb2,
        duration_pb2,
        empty_pb2,
        field_mask_pb2,
        struct_pb2,
        timestamp_pb2,
        wrappers_pb2,
    )

    for module in (any_pb2, duration_pb2, empty_pb2, field_mask_pb2, struct_pb2, timestamp_pb2, wrappers_pb2):
        if name == module.DESCRIPTOR.name:
            return descriptor_pb2.FileDescriptorProto.FromString(module.DESCRIPTOR.serialized_pb)
    raise ValueError(f"the schema imports {name}, which is not a well-known type of Protobuf")


def message_at(file: Any, indexes: tuple[int, ...]) -> Descriptor:
    """Return a message type by the indexes of the wire format.

    Raises:
        ValueError: the file does not have the message.
    """
    proto = descriptor_pb2.FileDescriptorProto()
    file.CopyToProto(proto)
    nested, names = proto.message_type, [proto.package] if proto.package else []
    for index in indexes:
        if index >= len(nested):
            raise ValueError(f"message index {index} is too large: this level has {len(nested)} messages")
        names.append(nested[index].name)
        nested = nested[index].nested_type
    found: Descriptor = file.pool.FindMessageTypeByName(".".join(names))
    return found


def shape_of(message: Descriptor, inside: tuple[str, ...] = ()) -> pa.DataType:
    """Return the struct type of a message."""
    inside = (*inside, message.full_name)
    return pa.struct([pa.field(field.name, _field_shape(field, inside)) for field in message.fields])


def _field_shape(field: Any, inside: tuple[str, ...]) -> pa.DataType:
    if _is_map(field):
        return pa.map_(pa.string(), _value_shape(field.message_type.fields_by_name["value"], inside))
    shape = _value_shape(field, inside)
    return pa.list_(pa.field("element", shape)) if field.is_repeated else shape


def _value_shape(field: Any, inside: tuple[str, ...]) -> pa.DataType:
    if field.cpp_type == _F.CPPTYPE_MESSAGE:
        if field.message_type.full_name == TIMESTAMP:
            return UTC_MICROS
        recursive = field.message_type.full_name in inside or not field.message_type.fields
        return pa.string() if recursive else shape_of(field.message_type, inside)
    if field.cpp_type == _F.CPPTYPE_STRING:
        return pa.binary() if field.type == _F.TYPE_BYTES else pa.string()
    return _PLAIN[field.cpp_type]


def _is_map(field: Any) -> bool:
    return bool(field.cpp_type == _F.CPPTYPE_MESSAGE and field.message_type.GetOptions().map_entry)


def as_python(message: Any, inside: tuple[str, ...] = ()) -> Any:
    """Convert to nested dicts; unset fields with presence are None, other unset fields their defaults."""
    name = message.DESCRIPTOR.full_name
    if name == TIMESTAMP:
        return message.ToDatetime(tzinfo=UTC)
    if name in inside:
        return json_format.MessageToDict(message, preserving_proto_field_name=True)
    inside = (*inside, name)
    found: dict[str, Any] = {}
    for field in message.DESCRIPTOR.fields:
        content = getattr(message, field.name)
        if _is_map(field):
            of_value = field.message_type.fields_by_name["value"]
            found[field.name] = {key: _one(of_value, content[key], inside) for key in content}
        elif field.is_repeated:
            found[field.name] = [_one(field, each, inside) for each in content]
        elif field.has_presence and not message.HasField(field.name):
            found[field.name] = None
        else:
            found[field.name] = _one(field, content, inside)
    return found


def _one(field: Any, value: Any, inside: tuple[str, ...]) -> Any:
    if field.cpp_type == _F.CPPTYPE_MESSAGE:
        return as_python(value, inside)
    if field.cpp_type == _F.CPPTYPE_ENUM:
        known = field.enum_type.values_by_number.get(value)
        return str(value) if known is None else known.name
    return Decimal(value) if field.cpp_type == _F.CPPTYPE_UINT64 else value
