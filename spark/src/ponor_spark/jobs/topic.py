"""Which topic a job reads, and how it becomes a DataFrame.

What lives here: the few things that every job is told about its source, as options of `format("ponor")`. What they mean is the source's
(docs/operations/spark.md).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ponor_spark.errors import OptionError
from ponor_spark.options import Options, parse_options

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


@dataclass(frozen=True, slots=True)
class TopicSource:
    """Topics (names, comma between) of a cluster. `options`: any others of the source, by their names."""

    topics: str
    options: Mapping[str, str] = field(default_factory=dict)

    def given(self, **more: str) -> dict[str, str]:
        """The source's options."""
        return {"subscribe": self.topics, **self.options, **more}

    def parsed(self, *, streaming: bool, **more: str) -> Options:
        """The same, checked.

        Raises:
            OptionError: one is wrong.
        """
        return parse_options(self.given(**more), streaming=streaming)

    def read(self, spark: SparkSession, **more: str) -> DataFrame:
        """All of it up to now: one snapshot, for all actions."""
        return spark.read.format("ponor").options(**self.given(**more)).load()

    def read_stream(self, spark: SparkSession, **more: str) -> DataFrame:
        """All of it, and what comes."""
        return spark.readStream.format("ponor").options(**self.given(**more)).load()


def pairs(texts: list[str], option: str, example: str = "startingOffsets=earliest") -> dict[str, str]:
    """NAME=VALUE words of a command line.

    Raises:
        OptionError: one has no "=".
    """
    found: dict[str, str] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise OptionError(f"{option}: {text!r} is no NAME=VALUE; write for example {option} {example}")
        found[name] = value
    return found
