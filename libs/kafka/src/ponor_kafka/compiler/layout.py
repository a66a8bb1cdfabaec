"""Widths of fields in one version, and minimum sizes of array elements, against which array counts are
checked.
"""

from ponor_kafka.schema.model import FIXED_WIDTH_FORMATS, Field, Message, Schema, Struct

FIXED_WIDTHS = {"?": 1, "b": 1, "h": 2, "H": 2, "i": 4, "q": 8, "d": 8, "16s": 16, "B": 1, "x": 1}


class Layout:
    """One message in one version."""

    def __init__(self, schema: Schema, message: Message, version: int) -> None:
        self.schema = schema
        self.message = message
        self.version = version
        self.flexible = version in message.flexible

    def is_compact(self, field: Field) -> bool:
        return self.flexible and not field.never_compact

    def is_nullable(self, field: Field) -> bool:
        return self.version in field.nullable

    def struct(self, field: Field) -> Struct:
        return self.schema.structs[field.type]

    def element_bytes_min(self, field: Field) -> int:
        """Minimum size of one element of the array `field`; never 0, so that counts stay bounded."""
        if field.type in FIXED_WIDTH_FORMATS:
            return FIXED_WIDTHS[FIXED_WIDTH_FORMATS[field.type]]
        if field.is_struct:
            return max(1, self._struct_bytes_min(self.struct(field)))
        return self._prefix_bytes(field.type, compact=self.is_compact(field))

    def has_records(self) -> bool:
        """Whether any struct of the message contains record batches, which must not be copied."""
        return self._holds(self.message.body, "records")

    def _holds(self, struct: Struct, type_name: str) -> bool:
        return any(
            field.type == type_name or (field.is_struct and self._holds(self.struct(field), type_name))
            for field in struct.fields
        )

    def _struct_bytes_min(self, struct: Struct) -> int:
        fields = sum(self._field_bytes_min(field) for field in struct.untagged(self.version))
        return fields + (1 if self.flexible else 0)

    def _field_bytes_min(self, field: Field) -> int:
        if field.array:
            return 1 if self.is_compact(field) else 4
        if field.type in FIXED_WIDTH_FORMATS:
            return FIXED_WIDTHS[FIXED_WIDTH_FORMATS[field.type]]
        if field.is_struct:
            return 1 if self.is_nullable(field) else self._struct_bytes_min(self.struct(field))
        return self._prefix_bytes(field.type, compact=self.is_compact(field))

    @staticmethod
    def _prefix_bytes(type_name: str, *, compact: bool) -> int:
        if compact:
            return 1
        return 2 if type_name == "string" else 4
