"""A plain Produce request, nearly every one: from its frame to its last record in two compiled steps.

What lives here: the choice of the implementation. `plain_produce_native` is compiled when this member is installed (docs/design/kafka-protocol-and-produce-path.md#plain-requests); where it is
not there, `plain_produce_python` gives the same results, at the cost of the long way.
"""

from __future__ import annotations

from ponor_kafka.plain_produce_python import PlainProduce, PlainRecords

try:
    from ponor_kafka.plain_produce_native import read_plain_produce, stamped_copy, walk_plain_batch

    IS_NATIVE = True
except ImportError:  # pragma: no cover - no C compiler was there when the member was installed
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
