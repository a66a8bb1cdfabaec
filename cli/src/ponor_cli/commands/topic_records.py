"""`ponor topic produce` and `ponor topic consume`: records between a topic and standard input and output."""

from __future__ import annotations

import os
import select
import sys
from collections.abc import Iterator
from dataclasses import asdict
from typing import Annotated, Final

import typer
from ponor_kafka.compression import Codec

from ponor_cli.clients.cluster_address import find_bootstrap
from ponor_cli.commands.options import BootstrapOption, DataOption, OutputOption
from ponor_cli.errors import CommandError
from ponor_cli.output import OutputFormat, counted, print_rows
from ponor_cli.records.leader_connections import LeaderConnections
from ponor_cli.records.record_text import RecordFormat, TextRecord, parse_header, parse_json, parse_plain
from ponor_cli.records.topic_consumption import Consumption, consume_until_done
from ponor_cli.records.topic_writer import TopicWriter

LINE_BYTES_MAX: Final = 64 * 1024 * 1024
CHUNK_BYTES: Final = 64 * 1024
LINGER_S: Final = 0.05
"""How long a line may wait for others before it is written."""

NameArgument = Annotated[str, typer.Argument(metavar="NAME", help="topic")]
SeparatorOption = Annotated[
    str | None,
    typer.Option(
        "--key-separator", "-K", metavar="TEXT", help="Between key and value; without it there are no keys."
    ),
]
JsonOption = Annotated[
    bool, typer.Option("--json", help="One JSON object a line: key, value, headers, partition, timestamp.")
]
PRODUCE_HELP = """Write records from standard input, a line each; returns when they are durable.

\b
Examples:
  echo hello | ponor topic produce greetings
  ponor topic produce -K : orders < lines.txt        # lines of KEY:VALUE
  ponor topic produce --json -H source=test orders < records.jsonl
"""
CONSUME_HELP = """Write a topic's records to standard output, as they come, until Ctrl-C.

\b
Examples:
  ponor topic consume greetings --from-beginning --no-follow
  ponor topic consume orders --json --partition 0 --offset 100 -n 10
  ponor topic consume orders --group readers         # shares partitions, commits what was written

Ends with 0 when it has written what was asked for or its reader closed the pipe, 1 on errors, 130 on Ctrl-C.
"""


def produce(
    name: NameArgument,
    key_separator: SeparatorOption = None,
    json_lines: JsonOption = False,
    header: Annotated[
        list[str] | None,
        typer.Option("--header", "-H", metavar="NAME=VALUE", help="On every record; repeatable."),
    ] = None,
    key: Annotated[
        str | None, typer.Option("--key", "-k", help="Key of every record that has none of its own.")
    ] = None,
    partition: Annotated[
        int | None, typer.Option("--partition", "-p", help="Write to this one; default: by key.")
    ] = None,
    compression: Annotated[str, typer.Option(help="none, gzip, snappy, lz4 or zstd.")] = "none",
    data: DataOption = None,
    bootstrap: BootstrapOption = None,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """See PRODUCE_HELP."""
    if json_lines and key_separator is not None:
        raise CommandError("--json and --key-separator: JSON names keys itself; give one of them")
    headers = [parse_header(text) for text in header or []]
    own_key = None if key is None else key.encode()
    separator = None if key_separator is None else _separator(key_separator)
    with LeaderConnections(find_bootstrap(data, bootstrap), name) as leaders:
        writer = TopicWriter(leaders, codec=_codec(compression), partition=partition)
        try:
            for number, line in _lines(sys.stdin.fileno()):
                if line is None:
                    writer.flush()
                elif json_lines:
                    if line.strip():
                        writer.add(_with_key(parse_json(line, number, [*headers]), own_key))
                else:
                    writer.add(parse_plain(line, separator, [*headers], own_key))
            writer.flush()
        except CommandError:
            if writer.written:
                _report(name, writer, output)
            raise
        _report(name, writer, output)


def consume(
    name: NameArgument,
    from_beginning: Annotated[
        bool, typer.Option("--from-beginning", help="From the oldest record on.")
    ] = False,
    offset: Annotated[
        str | None,
        typer.Option(
            "--offset", metavar="WHERE", help="earliest, latest, N, -N (the last N), or @MS (a time)."
        ),
    ] = None,
    partition: Annotated[
        list[int] | None, typer.Option("--partition", "-p", help="Only this one; repeatable.")
    ] = None,
    max_messages: Annotated[
        int | None, typer.Option("--max-messages", "-n", min=1, help="Stop after so many.")
    ] = None,
    group: Annotated[
        str | None, typer.Option("--group", "-g", help="As a member of this group, from its offsets on.")
    ] = None,
    follow: Annotated[
        bool, typer.Option("--follow/--no-follow", help="Wait for more at the end, or stop there.")
    ] = True,
    json_lines: JsonOption = False,
    output: Annotated[
        RecordFormat,
        typer.Option(
            "-o", "--output", help="value: values alone; table: with their places; json: a line each."
        ),
    ] = RecordFormat.VALUE,
    key_separator: SeparatorOption = None,
    data: DataOption = None,
    bootstrap: BootstrapOption = None,
) -> None:
    """See CONSUME_HELP."""
    if from_beginning and offset is not None:
        raise CommandError("--from-beginning and --offset both say where to begin; give one of them")
    if group is not None and partition:
        raise CommandError("--group shares partitions among its members; leave --partition out")
    wanted = Consumption(
        start="earliest" if from_beginning else offset,
        partitions=partition or [],
        records_max=max_messages,
        group=group,
        follow=follow,
        form=RecordFormat.JSON if json_lines else output,
        separator=None if key_separator is None else _separator(key_separator),
    )
    with LeaderConnections(find_bootstrap(data, bootstrap), name) as leaders:
        try:
            consume_until_done(leaders, wanted, sys.stdout.buffer)
        except BrokenPipeError:
            # The reader has seen enough. What Python still holds for it must not be an error when the process ends.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _lines(descriptor: int) -> Iterator[tuple[int, bytes | None]]:
    """Numbered lines without their ends; None whenever nobody writes for a moment."""
    number = 0
    pending = bytearray()
    while True:
        if not select.select([descriptor], [], [], LINGER_S)[0]:
            yield number, None
            select.select([descriptor], [], [])
        chunk = os.read(descriptor, CHUNK_BYTES)
        if not chunk:
            break
        pending += chunk
        *whole, rest = pending.split(b"\n")
        for line in whole:
            number += 1
            yield number, bytes(line.removesuffix(b"\r"))
        pending = bytearray(rest)
        if len(pending) > LINE_BYTES_MAX:
            raise CommandError(
                f"line {number + 1} is longer than {LINE_BYTES_MAX} bytes; records are smaller"
            )
    if pending:
        yield number + 1, bytes(pending)


def _with_key(record: TextRecord, key: bytes | None) -> TextRecord:
    if record.key is not None or key is None:
        return record
    return TextRecord(key, record.value, record.headers, record.partition, record.timestamp_ms)


def _separator(text: str) -> bytes:
    if not text:
        raise CommandError("--key-separator is empty; give the text between key and value, such as ':'")
    return text.encode().decode("unicode_escape").encode("latin-1") if "\\" in text else text.encode()


def _codec(name: str) -> Codec:
    try:
        return Codec[name.upper()]
    except KeyError:
        known = ", ".join(codec.name.lower() for codec in Codec)
        raise CommandError(f"--compression {name}: choose {known}") from None


def _report(topic: str, writer: TopicWriter, output: OutputFormat) -> None:
    """Where the records are, on standard error for people: standard output stays free for programs."""
    written = sorted(writer.written.values(), key=lambda each: each.partition)
    if output is OutputFormat.JSON:
        print_rows([{"topic": topic, **asdict(each)} for each in written], [], output)
        return
    total = sum(each.records for each in written)
    places = ", ".join(f"{each.partition} [{each.first_offset}, {each.last_offset + 1})" for each in written)
    sys.stderr.write(
        f"{counted(total, 'record')} durable in {topic}{f', partition {places}' if places else ''}\n"
    )


def register(app: typer.Typer) -> None:
    """Put both commands into `ponor topic`."""
    app.command("produce", help=PRODUCE_HELP)(produce)
    app.command("consume", help=CONSUME_HELP)(consume)
