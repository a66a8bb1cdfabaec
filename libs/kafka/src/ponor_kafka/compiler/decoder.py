"""Generator of the decoder of one message version.

The result is one flat function. Arrays of structs become nested loops; a run of fixed-width fields and the
length prefix after it become one precompiled unpack; compact lengths have a one-byte fast path. Lengths and
counts are checked against the remaining bytes before any allocation.
"""

from ponor_kafka.compiler.layout import Layout
from ponor_kafka.compiler.source import SourceWriter
from ponor_kafka.primitives import COMPACT_STRING_BYTES_MAX
from ponor_kafka.schema.model import FIXED_WIDTH_FORMATS, Default, Field, Struct


def decoder_source(layout: Layout) -> tuple[str, dict[str, object]]:
    """Generate the source of `decode(buf, p) -> (message, p)`. Also return the namespace of objects that the
    source uses by name. `build.py` adds the classes and functions.
    """
    writer = _DecoderWriter(layout)
    writer.struct(layout.message.body, "result")
    body = "\n".join(writer.source.lines)
    return f"def decode(buf, p):\n    end = len(buf)\n{body}\n    return result, p\n", writer.source.namespace


def default_source(default: Default, field: Field) -> str:
    """Return the default of `field` as an expression of the generated code."""
    if default is None:
        return "None"
    if field.array:
        return "()"
    if field.type == "uuid":
        return "ZERO_UUID"
    if field.type in {"bytes", "records"}:
        return "b''"
    return repr(default)


class _DecoderWriter:
    def __init__(self, layout: Layout) -> None:
        self.layout = layout
        self.source = SourceWriter()
        self.views = layout.has_records()
        self.run: list[tuple[str, str]] = []

    def struct(self, struct: Struct, target: str) -> None:
        """Decode every field, then construct: `target = Class(...)`."""
        version = self.layout.version
        values: dict[str, str] = {}
        for field in struct.untagged(version):
            values[field.name] = self.source.fresh("v")
            self._value(field, values[field.name])
        if self.layout.flexible:
            self._tag_buffer(struct, values)
        self._flush()
        self.source.line(f"{target} = {struct.name}({', '.join(_arguments(struct, values))})")

    def _value(self, field: Field, target: str) -> None:
        if field.array:
            self._array(field, target)
        elif field.type in FIXED_WIDTH_FORMATS:
            self.run.append((FIXED_WIDTH_FORMATS[field.type], target))
        elif field.is_struct:
            self._nested_struct(field, target)
        else:
            self._string_or_bytes(field, target)

    def _nested_struct(self, field: Field, target: str) -> None:
        if not self.layout.is_nullable(field):
            self.struct(self.layout.struct(field), target)
            return
        marker = self.source.fresh("n")
        self.run.append(("b", marker))
        self._flush()
        with self.source.block(f"if {marker} < 0:"):
            self.source.line(f"{target} = None")
        with self.source.block("else:"):
            self.struct(self.layout.struct(field), target)

    def _string_or_bytes(self, field: Field, target: str) -> None:
        count = self._length(field, "h" if field.type == "string" else "i")
        with self.source.block(f"if {count} >= 0:"):
            self.source.line(f"q = p + {count}")
            too_long = f" or {count} > {COMPACT_STRING_BYTES_MAX}" if field.type == "string" else ""
            with self.source.block(f"if q > end{too_long}:"):
                self.source.line(f"raise bad_length({field.name!r}, {count}, end - p)")
            self.source.line(f"{target} = {self._slice(field)}")
            self.source.line("p = q")
        self._null_or_error(field, target)

    def _slice(self, field: Field) -> str:
        if field.type == "records":
            return "buf[p:q]"
        if field.type == "bytes":
            return "bytes(buf[p:q])" if self.views else "buf[p:q]"
        return "str(buf[p:q], 'utf-8')" if self.views else "buf[p:q].decode()"

    def _array(self, field: Field, target: str) -> None:
        count = self._length(field, "i")
        with self.source.block(f"if {count} >= 0:"):
            with self.source.block(f"if {count} * {self.layout.element_bytes_min(field)} > end - p:"):
                self.source.line(f"raise bad_count({field.name!r}, {count}, end - p)")
            self._elements(field, count, target)
        self._null_or_error(field, target)

    def _elements(self, field: Field, count: str, target: str) -> None:
        width = self.layout.element_bytes_min(field)
        if field.type == "uuid":
            self.source.line(f"q = p + {count} * 16")
            self.source.line(f"{target} = [bytes(buf[i:i + 16]) for i in range(p, q, 16)]")
            self.source.line("p = q")
        elif field.type in FIXED_WIDTH_FORMATS:
            letter = FIXED_WIDTH_FORMATS[field.type]
            self.source.line(f"{target} = list(unpack_from(f'>{{{count}}}{letter}', buf, p))")
            self.source.line(f"p += {count} * {width}")
        else:
            element = self.source.fresh("e")
            self.source.line(f"{target} = []")
            with self.source.block(f"for _ in range({count}):"):
                single = Field(
                    field.name,
                    field.type,
                    False,
                    field.versions,
                    field.nullable,
                    None,
                    None,
                    False,
                    field.never_compact,
                )
                if field.is_struct:
                    self.struct(self.layout.struct(field), element)
                else:
                    self._element_string(single, element)
                self.source.line(f"{target}.append({element})")

    def _element_string(self, field: Field, target: str) -> None:
        """Decode a string in an array. The string is never null, even if the array may be null."""
        count = self._length(field, "h" if field.type == "string" else "i")
        with self.source.block(f"if {count} < 0:"):
            self.source.line(f"raise null_value({field.name!r})")
        self.source.line(f"q = p + {count}")
        with self.source.block(f"if q > end or {count} > {COMPACT_STRING_BYTES_MAX}:"):
            self.source.line(f"raise bad_length({field.name!r}, {count}, end - p)")
        self.source.line(f"{target} = {self._slice(field)}")
        self.source.line("p = q")

    def _length(self, field: Field, classic_format: str) -> str:
        """Decode a length or count (-1: null) together with the preceding run."""
        count = self.source.fresh("n")
        if self.layout.is_compact(field):
            self.run.append(("B", count))
            self._flush()
            with self.source.block(f"if {count} > 127:"):
                self.source.line(f"{count}, p = varint_tail(buf, p, {count})")
            self.source.line(f"{count} -= 1")
        else:
            self.run.append((classic_format, count))
            self._flush()
        return count

    def _null_or_error(self, field: Field, target: str) -> None:
        with self.source.block("else:"):
            if self.layout.is_nullable(field):
                self.source.line(f"{target} = None")
            else:
                self.source.line(f"raise null_value({field.name!r})")

    def _tag_buffer(self, struct: Struct, values: dict[str, str]) -> None:
        count = self.source.fresh("t")
        self.run.append(("B", count))
        self._flush()
        known = struct.tagged(self.layout.version)
        for field in known:
            values[field.name] = self.source.fresh("v")
            self.source.line(f"{values[field.name]} = {default_source(field.default, field)}")
        with self.source.block(f"if {count}:"):
            if known:
                self._known_tags(count, known, values)
            else:
                self.source.line("p = skip_tagged_fields(buf, p - 1, end)")

    def _known_tags(self, count: str, known: list[Field], values: dict[str, str]) -> None:
        tag, size, stop = self.source.fresh("g"), self.source.fresh("z"), self.source.fresh("s")
        self.source.line(f"{count}, p = varint(buf, p - 1)")
        with self.source.block(f"for _ in range({count}):"):
            self.source.line(f"{tag}, p = varint(buf, p)")
            self.source.line(f"{size}, p = varint(buf, p)")
            self.source.line(f"{stop} = p + {size}")
            with self.source.block(f"if {stop} > end:"):
                self.source.line(f"raise bad_length('tagged field', {size}, end - p)")
            for index, field in enumerate(known):
                with self.source.block(f"{'if' if index == 0 else 'elif'} {tag} == {field.tag}:"):
                    self._value(field, values[field.name])
                    self._flush()
                    with self.source.block(f"if p != {stop}:"):
                        self.source.line(f"raise bad_length({field.name!r}, {size}, {size} + p - {stop})")
            self.source.line(f"p = {stop}")

    def _flush(self) -> None:
        """Emit the unpack of the pending fixed-width run."""
        if not self.run:
            return
        formats = "".join(letter for letter, _ in self.run)
        names = [name for _, name in self.run]
        self.run = []
        if formats == "B":
            self.source.line(f"{names[0]} = buf[p]")
            self.source.line("p += 1")
            return
        unpack, width = self.source.run(formats, "unpack_from")
        self.source.line(f"{', '.join(names)}{',' if len(names) == 1 else ''} = {unpack}(buf, p)")
        self.source.line(f"p += {width}")


def _arguments(struct: Struct, values: dict[str, str]) -> list[str]:
    """Positional arguments up to the last decoded field; the constructor supplies defaults for the others."""
    last = max((index for index, field in enumerate(struct.fields) if field.name in values), default=-1)
    return [
        values.get(field.name, default_source(field.default, field)) for field in struct.fields[: last + 1]
    ]
