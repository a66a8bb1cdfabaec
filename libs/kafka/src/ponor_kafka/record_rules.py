"""Result and error messages of the pass over a batch's records, shared by the compiled and the Python
version.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Final, NamedTuple

from ponor_kafka.errors import KafkaWireError

INT64_MIN: Final = -(1 << 63)
INT64_MAX: Final = (1 << 63) - 1
NO_TIMESTAMP: Final = -1


class RecordFault(NamedTuple):
    """A well-formed record that must not be appended: it has no key, or `timestamp` is out of bounds.

    `record` counts from 0.
    """

    record: int
    lacks_key: bool
    timestamp: int


class RecordWalk(NamedTuple):
    """Result of a pass over well-formed records.

    `max_timestamp` and its index are -1 if no record has a timestamp. `min_timestamp` is the smallest
    timestamp; -1 if a record has no timestamp, 2^63 - 1 if there are no records. `faults` holds only the
    first faults; the counts include all.
    """

    max_timestamp: int
    max_timestamp_index: int
    missing_keys: int
    bad_timestamps: int
    faults: list[RecordFault]
    min_timestamp: int


class Rule(IntEnum):
    """Rules for a record's bytes. The compiled version uses the same numbers."""

    NUMBER_ENDS = 1
    NUMBER_TOO_LONG = 2
    LENGTH = 3
    KEY = 4
    VALUE = 5
    HEADER_COUNT = 6
    HEADER_KEY = 7
    HEADER_VALUE = 8
    BODY_LEFT = 9
    RECORDS_LEFT = 10
    OFFSET = 11


_WORDS: Final = {
    Rule.NUMBER_ENDS: "a number of record {index} runs past the record's end",
    Rule.NUMBER_TOO_LONG: "a number of record {index} has more bytes than its type allows",
    Rule.LENGTH: "record {index} claims {value} bytes, but only {left} are left",
    Rule.KEY: "the key of record {index} claims {value} bytes, but only {left} are left",
    Rule.VALUE: "the value of record {index} claims {value} bytes, but only {left} are left",
    Rule.HEADER_COUNT: "record {index} claims {value} headers in {left} bytes",
    Rule.HEADER_KEY: "a header key of record {index} claims {value} bytes, but only {left} are left",
    Rule.HEADER_VALUE: "a header value of record {index} claims {value} bytes, but only {left} are left",
    Rule.BODY_LEFT: "{left} bytes are left after the headers of record {index}",
    Rule.RECORDS_LEFT: "{left} bytes are left after the last of {index} records",
    Rule.OFFSET: "record {index} has the offset delta {value}",
}


def malformed(rule: int, index: int, value: int, left: int) -> KafkaWireError:
    """Create the error for a record that violates a rule."""
    return KafkaWireError(_WORDS[Rule(rule)].format(index=index, value=value, left=left))
