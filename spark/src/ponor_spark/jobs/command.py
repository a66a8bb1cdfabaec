"""Command line of the jobs: `ponor spark`. A job runs in this process or under spark-submit.

The `ponor` command finds this module through the entry point "ponor.commands". The scripts in spark/jobs call
the same functions. An error is printed as one line. If Spark wrapped an error of this package, the line is
the original message.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from ponor_spark.cluster_address import CLUSTER_FILE
from ponor_spark.errors import OptionError, PonorSparkError
from ponor_spark.jobs.first_look import look
from ponor_spark.jobs.registry.decoding import Decoding
from ponor_spark.jobs.session import need, session
from ponor_spark.jobs.topic import TopicSource, pairs

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from rich.console import Console

DATA_DEFAULT: Final = "data"
NAMES_A_CLUSTER: Final = ("kafka.bootstrap.servers", "data", "controllers")
PROBLEMS_SHOWN_MAX: Final = 20
WIDTH_WITHOUT_TERMINAL: Final = 200
HELP = "Run Spark jobs that read topics directly from the object store."


class OutputFormat(StrEnum):
    """Choices of `-o`, as in other commands."""

    TABLE = "table"
    JSON = "json"


spark_app = typer.Typer(
    name="spark", help=HELP, no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False
)

Topic = Annotated[
    str, typer.Argument(metavar="TOPIC", help="one topic, or several topics separated by commas")
]
Bootstrap = Annotated[str, typer.Option("--bootstrap", metavar="HOST:PORT,…", help="Brokers of the cluster.")]
Controllers = Annotated[
    str,
    typer.Option("--controllers", metavar="HOST:PORT,…", help="Controllers, if no broker can be reached."),
]
Data = Annotated[
    str,
    typer.Option("--data", metavar="DIR", help="Data directory of a local cluster (default: data)."),
]
SourceOptions = Annotated[
    list[str],
    typer.Option(
        "--option", "-O", metavar="NAME=VALUE", help="An option of the source, e.g. startingOffsets=earliest."
    ),
]
SparkSettings = Annotated[list[str], typer.Option("--conf", metavar="NAME=VALUE", help="A setting of Spark.")]
Master = Annotated[
    str | None, typer.Option("--master", help="Spark master, unless spark-submit sets it; default: local[*].")
]
Output = Annotated[OutputFormat, typer.Option("-o", "--output", help="table for people, json for programs")]
RegistryUrl = Annotated[
    str,
    typer.Option("--registry", metavar="URL", help="Schema registry; adds a column of decoded values."),
]
Subject = Annotated[
    str,
    typer.Option(
        "--subject",
        help="Subject whose latest schema gives the decoded column's type; default: TOPIC-value.",
    ),
]


@spark_app.command("profile")
def profile_command(
    topic: Topic,
    bootstrap: Bootstrap = "",
    controllers: Controllers = "",
    data: Data = "",
    option: SourceOptions = [],  # noqa: B006 - typer's way to say that it may be repeated
    picture: Annotated[
        Path | None, typer.Option(help="Also draw the profile to this .png, .svg or .pdf file.")
    ] = None,
    output: Output = OutputFormat.TABLE,
    conf: SparkSettings = [],  # noqa: B006
    master: Master = None,
) -> None:
    """Count records, bytes, keys and sizes, by partition and by time."""
    from ponor_spark.jobs.profile.report import as_json, print_profile
    from ponor_spark.jobs.profile.topic_profile import profile

    source = _source(topic, bootstrap, controllers, data, option)
    with _one_line_errors():
        if picture is not None:
            need("matplotlib", "pictures", "--picture")
            from ponor_spark.jobs.profile.picture import check_kind, draw

            check_kind(picture)
        if source.parsed(streaming=False).columns is not None:
            raise OptionError("columns: a profile needs all columns; remove this option")
        with _session("ponor profile", source, conf, master) as spark:
            found = profile(source.read(spark), topic)
        if output is OutputFormat.JSON:
            _say(json.dumps(as_json(found), indent=2))
        else:
            print_profile(found, _console())
        if picture is not None:
            draw(found, picture)
            _say(f"picture: {picture}", to_error=output is OutputFormat.JSON)


@spark_app.command("parquet")
def parquet_command(
    topic: Topic,
    path: Annotated[
        str,
        typer.Argument(metavar="PATH", help="directory to create: a path, or a URL that Spark can write to"),
    ],
    bootstrap: Bootstrap = "",
    controllers: Controllers = "",
    data: Data = "",
    option: SourceOptions = [],  # noqa: B006
    partition_by: Annotated[
        str, typer.Option(help="Columns that become directories; date is the day of the timestamp.")
    ] = "partition",
    registry: RegistryUrl = "",
    subject: Subject = "",
    output: Output = OutputFormat.TABLE,
    conf: SparkSettings = [],  # noqa: B006
    master: Master = None,
) -> None:
    """Write a topic as Parquet, completely or not at all; existing files are not overwritten."""
    from ponor_spark.jobs.parquet import run_id, write

    source = _source(topic, bootstrap, controllers, data, option)
    with _one_line_errors("PATH"):
        by = [name.strip() for name in partition_by.split(",") if name.strip()]
        decoding = _decoding(registry, subject, topic)
        with _session("ponor parquet", source, conf, master) as spark:
            run = run_id(source.given(), path)
            done = write(source.read(spark), path, run, partition_by=by, decoding=decoding)
    _say(
        json.dumps(asdict(done), indent=2)
        if output is OutputFormat.JSON
        else f"{done.rows:,} rows of {topic} are in {done.path}"
    )


@spark_app.command("iceberg")
def iceberg_command(
    topic: Topic,
    table: Annotated[str, typer.Argument(metavar="NAMESPACE.TABLE")],
    checkpoint: Annotated[
        str,
        typer.Option(
            metavar="PATH", help="The query's checkpoint: a path, or a URL that Spark can write to."
        ),
    ],
    bootstrap: Bootstrap = "",
    controllers: Controllers = "",
    data: Data = "",
    option: SourceOptions = [],  # noqa: B006
    catalog: Annotated[str, typer.Option(help="Catalog's name in pyiceberg's configuration.")] = "default",
    catalog_property: Annotated[
        list[str], typer.Option(metavar="NAME=VALUE", help="Catalog property. Do not pass credentials here.")
    ] = [],  # noqa: B006
    follow: Annotated[bool, typer.Option(help="Continue with new records until stopped.")] = False,
    interval: Annotated[str, typer.Option(help="With --follow: time between micro-batches.")] = "10 seconds",
    registry: RegistryUrl = "",
    subject: Subject = "",
    conf: SparkSettings = [],  # noqa: B006
    master: Master = None,
) -> None:
    """Append a topic to an Iceberg table, every row exactly once, even if the job is killed and restarted."""
    source = _source(topic, bootstrap, controllers, data, option)
    with _one_line_errors("--checkpoint"):
        need("pyiceberg", "lakehouse", "the job iceberg")
        from ponor_spark.jobs.iceberg.catalogs import open_catalog
        from ponor_spark.jobs.iceberg.job import IcebergJob, start

        if not all(table.split(".")) or "." not in table:
            raise OptionError(
                f"NAMESPACE.TABLE: {table!r} lacks a namespace or a name; write for example lake.{topic}"
            )
        lake = open_catalog(catalog, pairs(catalog_property, "--catalog-property", "type=sql"))
        job = IcebergJob(
            source, table, checkpoint, not follow, interval, decoding=_decoding(registry, subject, topic)
        )
        with _session("ponor iceberg", source, conf, master, streaming=True) as spark:
            query = start(spark, lake, job)
            query.awaitTermination()
        _say(f"table {table} contains all records that {topic} had when the job started")


@spark_app.command("verify")
def verify_command(
    topic: Topic,
    bootstrap: Bootstrap = "",
    controllers: Controllers = "",
    data: Data = "",
    option: SourceOptions = [],  # noqa: B006
    against_broker: Annotated[
        bool, typer.Option("--against-broker", help="Also compare with what a Kafka consumer sees.")
    ] = False,
    output: Output = OutputFormat.TABLE,
    conf: SparkSettings = [],  # noqa: B006
    master: Master = None,
) -> None:
    """Verify every object, batch, offset and row of a topic. If there are problems, print the first of them
    and exit with 1.
    """
    from ponor_spark.jobs.audit.findings import first_problems
    from ponor_spark.jobs.audit.job import audit, check_source
    from ponor_spark.jobs.audit.report import as_json, print_audit

    source = _source(topic, bootstrap, controllers, data, option)
    with _one_line_errors():
        check_source(source, against_broker=against_broker)
        with _session("ponor verify", source, conf, master) as spark:
            found = audit(spark, source, against_broker=against_broker)
    if output is OutputFormat.JSON:
        _say(json.dumps(as_json(found), indent=2))
    else:
        print_audit(found, _console())
    for problem in first_problems([each.findings for each in found], PROBLEMS_SHOWN_MAX):
        _say(f"problem: {problem}", to_error=True)
    if any(each.findings.problem_count for each in found):
        raise typer.Exit(1)


def _source(topic: str, bootstrap: str, controllers: str, data: str, option: Sequence[str]) -> TopicSource:
    with _one_line_errors():
        options = pairs(list(option), "--option")
        if bootstrap:
            options["kafka.bootstrap.servers"] = bootstrap
        if controllers:
            options["controllers"] = controllers
        if data:
            options["data"] = data
        if not set(NAMES_A_CLUSTER) & {name.lower() for name in options}:
            options["data"] = _data_default()
        return TopicSource(topic, options)


def _data_default() -> str:
    """Return the default data directory of `ponor up`.

    Raises:
        OptionError: there is none.
    """
    if not (Path(DATA_DEFAULT) / CLUSTER_FILE).exists():
        raise OptionError(
            f"--bootstrap: no cluster is given, and ./{DATA_DEFAULT} contains none; give the cluster's"
            " brokers, or use --controllers or --data"
        )
    return DATA_DEFAULT


@contextmanager
def _session(
    name: str, source: TopicSource, conf: list[str], master: str | None, *, streaming: bool = False
) -> Iterator[SparkSession]:
    """Start Spark for a job, after all checks that do not need Spark.

    Raises:
        PonorSparkError: a package, an option, the cluster or a topic is missing or wrong.
    """
    settings = pairs(conf, "--conf", "spark.driver.memory=4g")
    need("pyspark", "spark", f"the job {name}")
    look(source.parsed(streaming=streaming))
    with session(name, settings, master) as spark:
        yield spark


def _decoding(registry: str, subject: str, topic: str) -> Decoding | None:
    if not registry:
        if subject:
            raise OptionError("--subject: without --registry nothing is decoded; give both")
        return None
    return Decoding(registry, subject or f"{topic}-value")


@contextmanager
def _one_line_errors(written: str = "") -> Iterator[None]:
    """Reduce errors to one line. `written`: the option with the path to which Spark writes."""
    try:
        yield
    except PonorSparkError as error:
        _fail(str(error))
    except Exception as error:
        words = unwrapped(error)
        if words is None and written and (cause := _unwritten(error)) is not None:
            words = (
                f"{written}: Spark cannot write there: {cause}; check the path, and the permissions of the"
                " driver and the executors"
            )
        if words is None:
            raise
        _fail(words)


def unwrapped(error: Exception) -> str | None:
    """Return this package's one-line error from the text of an error that Spark raised for a worker or
    executor; None for other errors.
    """
    return _last_line(error, r"^\s*ponor_spark\.[\w.]+Error: (.+)$")


def _unwritten(error: Exception) -> str | None:
    """Return the file system's error from Spark's error text; None for other errors."""
    return _last_line(
        error,
        r"^(?:Caused by)?: (?!java\.io\.EOF)(?:java\.io|java\.nio\.file|org\.apache\.hadoop\.[\w.]+)\.\w+Exception: (.+)$",  # noqa: E501
    )


def _last_line(error: Exception, pattern: str) -> str | None:
    if not type(error).__module__.startswith(("pyspark.", "py4j.")):
        return None
    found = re.findall(pattern, str(error), re.MULTILINE)
    return found[-1].strip() if found else None


def _fail(words: str) -> None:
    _say(f"ponor: {words}", to_error=True)
    raise typer.Exit(1)


def _console() -> Console:
    from rich.console import Console

    terminal = Console(highlight=False)
    return terminal if terminal.is_terminal else Console(highlight=False, width=WIDTH_WITHOUT_TERMINAL)


def _say(line: Any, *, to_error: bool = False) -> None:
    stream = sys.stderr if to_error else sys.stdout
    stream.write(f"{line}\n")
    stream.flush()
