"""`ponor topic produce` and `ponor topic consume`: records from standard input, and to standard output."""

from __future__ import annotations

import os
import select
import sys
from collections.abc import Iterator
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Final

import typer

from ponor_cli.clients.cluster_address import find_bootstrap
from ponor_cli.commands.options import BootstrapOption, DataOption, OutputOption
from ponor_cli.errors import CommandError
from ponor_cli.output import OutputFormat, counted, print_rows
from ponor_cli.records.text import RecordFormat, TextRecord, parse_header, parse_json, parse_plain

if TYPE_CHECKING:
    from ponor_cli.records.producer import TopicProducer

COMPRESSIONS: Final = ("none", "gzip", "snappy", "lz4", "zstd")
LINE_BYTES_MAX: Final = 64 * 1024 * 1024
CHUNK_BYTES: Final = 64 * 1024
STDIN: Final = 0
STDOUT: Final = 1
LINGER_S: Final = 0.05
"""Maximum time to collect more lines for a batch."""

NameArgument = Annotated[str, typer.Argument(metavar="NAME", help="topic")]
SeparatorOption = Annotated[
    str | None,
    typer.Option(
        "--key-separator",
        "-K",
        metavar="TEXT",
        help="Text between key and value; without this option, a line is a value.",
    ),
]
JsonOption = Annotated[
    bool, typer.Option("--json", help="A JSON object per line: key, value, headers, partition, timestamp.")
]
HeaderOption = Annotated[
    list[str] | None,
    typer.Option("--header", "-H", metavar="NAME=VALUE", help="Header of every record; repeatable."),
]
KeyOption = Annotated[str | None, typer.Option("--key", "-k", help="Key for records without a key.")]
TargetOption = Annotated[
    int | None, typer.Option("--partition", "-p", help="Partition of the records; default: by key.")
]
CompressionOption = Annotated[str, typer.Option(help="none, gzip, snappy, lz4 or zstd.")]
BeginningOption = Annotated[bool, typer.Option("--from-beginning", help="Start at the oldest record.")]
OffsetOption = Annotated[
    str | None,
    typer.Option(
        "--offset", metavar="WHERE", help="Start at earliest, latest, N, -N (the last N) or @MS (Unix time)."
    ),
]
PartitionsOption = Annotated[
    list[int] | None, typer.Option("--partition", "-p", help="Read only this partition; repeatable.")
]
MaxOption = Annotated[
    int | None, typer.Option("--max-messages", "-n", min=1, help="Stop after this number of records.")
]
GroupOption = Annotated[
    str | None, typer.Option("--group", "-g", help="Join this group and start at its offsets.")
]
FollowOption = Annotated[
    bool, typer.Option("--follow/--no-follow", help="At the end, wait for more records, or stop.")
]
FormOption = Annotated[
    RecordFormat,
    typer.Option(
        "-o", "--output", help="value: values only; table: with partition and offset; json: objects."
    ),
]
PRODUCE_HELP = """Write each line of standard input as a record. Returns when all records are
durable.

\b
Examples:
  echo hello | ponor topic produce greetings
  ponor topic produce -K : orders < lines.txt        # lines of KEY:VALUE
  ponor topic produce --json -H source=test orders < records.jsonl
"""
CONSUME_HELP = """Write the records of a topic to standard output until Ctrl-C.

\b
Examples:
  ponor topic consume greetings --from-beginning --no-follow
  ponor topic consume orders --json --partition 0 --offset 100 -n 10
  ponor topic consume orders --group readers         # shares partitions, commits written records

Exit codes: 0 when all requested records are written or the reader closed the pipe, 1 on errors, 130
after Ctrl-C.
"""


def produce(
    name: NameArgument,
    key_separator: SeparatorOption = None,
    json_lines: JsonOption = False,
    header: HeaderOption = None,
    key: KeyOption = None,
    partition: TargetOption = None,
    compression: CompressionOption = "none",
    data: DataOption = None,
    bootstrap: BootstrapOption = None,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """See PRODUCE_HELP."""
    from ponor_cli.records.producer import open_producer  # aiokafka takes a while to import

    if json_lines and key_separator is not None:
        raise CommandError("--json and --key-separator: a JSON object contains its key; give one of them")
    if compression not in COMPRESSIONS:
        raise CommandError(f"--compression {compression}: choose {', '.join(COMPRESSIONS)}")
    headers = [parse_header(text) for text in header or []]
    own_key = None if key is None else os.fsencode(key)
    separator = None if key_separator is None else _separator(key_separator)
    if sys.stdin is None:  # descriptor 0 may belong to another file
        raise CommandError("standard input is closed; the command reads the records from it")
    address = find_bootstrap(data, bootstrap)
    with open_producer(address, name, compression=compression, partition=partition) as producer:
        try:
            for number, line in _lines(STDIN):
                if line is None:
                    producer.flush()
                elif json_lines:
                    if line.strip():
                        record = _with_key(parse_json(line, number, [*headers]), own_key)
                        if record.key is None and record.value is None:
                            raise CommandError(f"line {number}: give the record a key or a value")
                        producer.add(record)
                else:
                    producer.add(parse_plain(line, separator, [*headers], own_key))
            producer.flush()
        except CommandError:
            if producer.written:
                _report(name, producer, output)
            raise
        _report(name, producer, output)


def consume(
    name: NameArgument,
    from_beginning: BeginningOption = False,
    offset: OffsetOption = None,
    partition: PartitionsOption = None,
    max_messages: MaxOption = None,
    group: GroupOption = None,
    follow: FollowOption = True,
    json_lines: JsonOption = False,
    output: FormOption = RecordFormat.VALUE,
    key_separator: SeparatorOption = None,
    data: DataOption = None,
    bootstrap: BootstrapOption = None,
) -> None:
    """See CONSUME_HELP."""
    from ponor_cli.records.consumer import Consumption, consume_until_done  # aiokafka takes a while to import

    if from_beginning and offset is not None:
        raise CommandError("--from-beginning and --offset both set the start; give one of them")
    if group is not None and partition:
        raise CommandError("--group assigns the partitions; remove --partition")
    wanted = Consumption(
        start="earliest" if from_beginning else offset,
        partitions=partition or [],
        records_max=max_messages,
        group=group,
        follow=follow,
        form=RecordFormat.JSON if json_lines else output,
        separator=None if key_separator is None else _separator(key_separator),
    )
    if sys.stdout is None:  # descriptor 1 may belong to another file
        raise CommandError("standard output is closed; the command writes the records to it")
    address = find_bootstrap(data, bootstrap)
    # `sys.stdout` would need a system call per record with PYTHONUNBUFFERED.
    # `out` is not closed, because a close would repeat a failed flush.
    out = open(STDOUT, "wb", closefd=False)  # noqa: SIM115
    try:
        consume_until_done(address, name, wanted, out)
    except BrokenPipeError:
        # The reader closed the pipe. Python would fail when it flushes the rest at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), STDOUT)


def _lines(descriptor: int) -> Iterator[tuple[int, bytes | None]]:
    """Yield numbered lines without their ends, and None when no line arrives for `LINGER_S`."""
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
            raise CommandError(f"line {number + 1} is longer than {LINE_BYTES_MAX} bytes, the maximum")
    if pending:
        yield number + 1, bytes(pending)


def _with_key(record: TextRecord, key: bytes | None) -> TextRecord:
    if record.key is not None or key is None:
        return record
    return TextRecord(key, record.value, record.headers, record.partition, record.timestamp_ms)


def _separator(text: str) -> bytes:
    if not text:
        raise CommandError("--key-separator is empty; give the text between key and value, such as ':'")
    if "\\" not in text:
        return os.fsencode(text)
    try:
        return text.encode().decode("unicode_escape").encode("latin-1")
    except UnicodeError as error:
        raise CommandError(
            f"--key-separator {text!a}: write escapes of single bytes, such as \\t or \\xff"
        ) from error


def _report(topic: str, producer: TopicProducer, output: OutputFormat) -> None:
    """Print the written offsets: the sentence to standard error, JSON to standard output."""
    written = sorted(producer.written.values(), key=lambda each: each.partition)
    if output is OutputFormat.JSON:
        print_rows([{"topic": topic, **asdict(each)} for each in written], [], output)
        return
    total = sum(each.records for each in written)
    places = ", ".join(f"{each.partition} [{each.first_offset}, {each.last_offset + 1})" for each in written)
    sys.stderr.write(
        f"{counted(total, 'record')} durable in {topic}{f', partition {places}' if places else ''}\n"
    )


def register(app: typer.Typer) -> None:
    """Add both commands to `ponor topic`."""
    app.command("produce", help=PRODUCE_HELP)(produce)
    app.command("consume", help=CONSUME_HELP)(consume)
