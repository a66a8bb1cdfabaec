"""Parsing of a plain Produce request, the most frequent kind, from its frame to its last record in two
compiled steps.

Selects `plain_produce_native`, compiled at installation
(docs/design/kafka-protocol-and-produce-path.md#plain-requests), or the equivalent `plain_produce_python`.
"""

from __future__ import annotations

from ponor_kafka.plain_produce_python import PlainProduce, PlainRecords

try:
    from ponor_kafka.plain_produce_native import read_plain_produce, stamped_copy, walk_plain_batch

    IS_NATIVE = True
except ImportError:  # pragma: no cover - installed without a C compiler
    from ponor_kafka.plain_produce_python import read_plain_produce, stamped_copy, walk_plain_batch

    IS_NATIVE = False

__all__ = [
    "IS_NATIVE",
    "PlainProduce",
    "PlainRecords",
    "read_plain_produce",
    "stamped_copy",
    "walk_plain_batch",
]
