"""Generator of the encoder of one message version.

The result appends bytes objects to a list. Runs of fixed-width fields and the following length are one
precompiled pack; record batches are appended without a copy. A value that the version cannot represent is an
error unless the protocol marks the field as ignorable.
"""

from dataclasses import replace
from typing import Final

from ponor_kafka.compiler.decoder import default_source
from ponor_kafka.compiler.layout import Layout
from ponor_kafka.compiler.source import SourceWriter
from ponor_kafka.schema.model import EMPTY, FIXED_WIDTH_FORMATS, Field, Struct

BUFFERS_PER_STEP: Final = 2_000
"""Buffers per step of a stepwise encoder, about half a millisecond."""


def encoder_source(layout: Layout, *, in_steps: bool = False) -> tuple[str, dict[str, object]]:
    """Generate `encode(m, out)` and the names that it needs in addition to those of `build`.

    With `in_steps` the function is a generator that pauses between elements of arrays of structs. Before a
    pause it joins the bytes written so far.
    """
    writer = _EncoderWriter(layout, in_steps=in_steps)
    writer.struct(layout.message.body, "m")
    writer.flush()
    body = "\n".join(writer.source.lines)
    # The condition is never true; the `yield` makes the function a generator even if it never pauses.
    head = "    done = []\n    if not add:\n        yield\n" if in_steps else ""
    result = "done + out" if in_steps else "out"
    return (
        f"def encode(m, out):\n    add = out.append\n{head}{body}\n    return {result}\n",
        writer.source.namespace,
    )


class _EncoderWriter:
    def __init__(self, layout: Layout, *, in_steps: bool) -> None:
        self.layout = layout
        self.in_steps = in_steps
        self.source = SourceWriter()
        self.run: list[tuple[str, str]] = []
        self.out = "out"
        self.add = "add"

    def struct(self, struct: Struct, value: str) -> None:
        for field in struct.absent(self.layout.version):
            if not field.ignorable:
                with self.source.block(f"if {_differs_from_default(field, f'{value}.{field.name}')}:"):
                    self.source.line(f"raise unrepresentable({struct.name!r}, {field.name!r})")
        for field in struct.untagged(self.layout.version):
            self._value(field, f"{value}.{field.name}")
        if self.layout.flexible:
            self._tag_buffer(struct, value)

    def _value(self, field: Field, value: str) -> None:
        if field.array:
            self._array(field, value)
        elif field.type in FIXED_WIDTH_FORMATS:
            self.run.append((FIXED_WIDTH_FORMATS[field.type], value))
        elif field.is_struct:
            self._nested_struct(field, value)
        elif field.type == "records":
            self._records(field, value)
        else:
            self._string_or_bytes(field, value)

    def _nested_struct(self, field: Field, value: str) -> None:
        if not self.layout.is_nullable(field):
            self.struct(self.layout.struct(field), value)
            return
        self.flush()
        with self.source.block(f"if {value} is None:"):
            self.source.line(f"{self.add}(b'\\xff')")
        with self.source.block("else:"):
            self.run.append(("b", "1"))
            self.struct(self.layout.struct(field), value)
            self.flush()

    def _string_or_bytes(self, field: Field, value: str) -> None:
        data, count = self.source.fresh("s"), self.source.fresh("n")
        encoded = f"{value}.encode()" if field.type == "string" else value
        if self.layout.is_nullable(field):
            with self.source.block(f"if {value} is None:"):
                self.source.line(f"{data} = b''")
                self.source.line(f"{count} = -1")
            with self.source.block("else:"):
                self.source.line(f"{data} = {encoded}")
                self.source.line(f"{count} = len({data})")
        else:
            self.source.line(f"{data} = {encoded}")
            self.source.line(f"{count} = len({data})")
        self._length(field, count, "h" if field.type == "string" else "i")
        self.source.line(f"{self.add}({data})")

    def _records(self, field: Field, value: str) -> None:
        buffers, count = self.source.fresh("s"), self.source.fresh("n")
        if self.layout.is_nullable(field):
            self.source.line(f"{buffers}, {count} = record_buffers({value})")
        else:
            with self.source.block(f"if {value} is None:"):
                self.source.line(f"raise unrepresentable({self.layout.message.name!r}, {field.name!r})")
            self.source.line(f"{buffers}, {count} = record_buffers({value})")
        self._length(field, count, "i")
        self.source.line(f"{self.out}.extend({buffers})")

    def _array(self, field: Field, value: str) -> None:
        items, count = self.source.fresh("a"), self.source.fresh("n")
        self.source.line(f"{items} = {value}")
        if self.layout.is_nullable(field):
            self.source.line(f"{count} = -1 if {items} is None else len({items})")
        else:
            self.source.line(f"{count} = len({items})")
        self._length(field, count, "i")
        with self.source.block(f"if {count} > 0:"):
            self._elements(field, items, count)

    def _elements(self, field: Field, items: str, count: str) -> None:
        if field.type in FIXED_WIDTH_FORMATS:
            letter = FIXED_WIDTH_FORMATS[field.type]
            formats = f"'>' + '{letter}' * {count}" if letter == "16s" else f"f'>{{{count}}}{letter}'"
            self.source.line(f"{self.add}(pack({formats}, *{items}))")
            return
        element = self.source.fresh("e")
        with self.source.block(f"for {element} in {items}:"):
            if field.is_struct:
                self.struct(self.layout.struct(field), element)
            else:
                self._string_or_bytes(replace(field, array=False, nullable=EMPTY), element)
            self.flush()
            if self.in_steps and field.is_struct:
                with self.source.block(f"if len(out) >= {BUFFERS_PER_STEP}:"):
                    self.source.line("done.append(b''.join(out))")
                    self.source.line("out.clear()")
                    self.source.line("yield")

    def _length(self, field: Field, count: str, classic_format: str) -> None:
        """Encode a length or count (-1: null) together with the preceding run."""
        if not self.layout.is_compact(field):
            self.run.append((classic_format, count))
            self.flush()
            return
        self.source.line(f"{count}_ = {count} + 1")
        run, self.run = self.run, []
        wide = "string_length" if field.type == "string" and not field.array else "varint"
        with self.source.block(f"if {count}_ < 128:"):
            self.run = [*run, ("B", f"{count}_")]
            self.flush()
        with self.source.block("else:"):
            self.run = run
            self.flush()
            self.source.line(f"{self.add}({wide}({count}_))")

    def _tag_buffer(self, struct: Struct, value: str) -> None:
        known = struct.tagged(self.layout.version)
        if not known:
            self.run.append(("x", ""))
            return
        self.flush()
        tags = self.source.fresh("t")
        self.source.line(f"{tags} = []")
        for field in known:
            with self.source.block(f"if {_differs_from_default(field, f'{value}.{field.name}')}:"):
                self._tagged_value(field, f"{value}.{field.name}", tags)
        self.source.line(f"{self.add}(tag_buffer({tags}) if {tags} else b'\\x00')")

    def _tagged_value(self, field: Field, value: str, tags: str) -> None:
        outer = self.out, self.add
        self.out, self.add = self.source.fresh("o"), self.source.fresh("add_")
        self.source.line(f"{self.out} = []")
        self.source.line(f"{self.add} = {self.out}.append")
        self._value(field, value)
        self.flush()
        self.source.line(f"{tags}.append(({field.tag}, {self.out}))")
        self.out, self.add = outer

    def flush(self) -> None:
        """Emit the pack of the pending fixed-width run."""
        if not self.run:
            return
        formats = "".join(letter for letter, _ in self.run)
        arguments = ", ".join(value for _, value in self.run if value)
        self.run = []
        if set(formats) == {"x"}:
            self.source.line(f"{self.add}({bytes(len(formats))!r})")
        elif formats == "B":
            self.source.line(f"{self.add}(one_byte[{arguments}])")
        else:
            pack, _ = self.source.run(formats, "pack")
            self.source.line(f"{self.add}({pack}({arguments}))")


def _differs_from_default(field: Field, value: str) -> str:
    """Return a condition that is true if a version without the field would lose its value."""
    if field.is_struct and not field.array:
        return f"{value} is not None and {value} != {field.type}()"
    if field.default is None:
        return f"{value} is not None"
    if field.array or field.type == "bytes":
        return value if not _ever_nullable(field) else f"{value} is None or {value}"
    return f"{value} != {default_source(field.default, field)}"


def _ever_nullable(field: Field) -> bool:
    return field.nullable.first <= field.nullable.last
