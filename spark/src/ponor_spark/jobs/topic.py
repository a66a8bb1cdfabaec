"""Topic of a job, and its DataFrame. The options are those of `format("ponor")`
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
    """Topics (comma-separated names) of a cluster. `options`: any other options of the source."""

    topics: str
    options: Mapping[str, str] = field(default_factory=dict)

    def given(self, **more: str) -> dict[str, str]:
        """Return the source's options."""
        return {"subscribe": self.topics, **self.options, **more}

    def parsed(self, *, streaming: bool, **more: str) -> Options:
        """Return the parsed options.

        Raises:
            OptionError: an option is invalid.
        """
        return parse_options(self.given(**more), streaming=streaming)

    def read(self, spark: SparkSession, **more: str) -> DataFrame:
        """Return a DataFrame of everything up to now: one snapshot for all actions."""
        return spark.read.format("ponor").options(**self.given(**more)).load()

    def read_stream(self, spark: SparkSession, **more: str) -> DataFrame:
        """Return a streaming DataFrame of everything, including future rows."""
        return spark.readStream.format("ponor").options(**self.given(**more)).load()


def pairs(texts: list[str], option: str, example: str = "startingOffsets=earliest") -> dict[str, str]:
    """Parse NAME=VALUE arguments.

    Raises:
        OptionError: one has no "=".
    """
    found: dict[str, str] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise OptionError(f"{option}: {text!r} is not NAME=VALUE; write for example {option} {example}")
        found[name] = value
    return found
