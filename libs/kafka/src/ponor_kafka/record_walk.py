"""Validation of a batch's uncompressed records, as a broker does for every produced record.

Selects `record_walk_native`, compiled at installation
(docs/design/kafka-protocol-and-produce-path.md#record-validation), or the equivalent `record_walk_python`,
which is about a hundred times slower.
"""

from __future__ import annotations

try:
    from ponor_kafka.record_walk_native import first_at_or_after, walk_records

    IS_NATIVE = True
except ImportError:  # pragma: no cover - installed without a C compiler
    from ponor_kafka.record_walk_python import first_at_or_after, walk_records

    IS_NATIVE = False

__all__ = ["IS_NATIVE", "first_at_or_after", "walk_records"]
