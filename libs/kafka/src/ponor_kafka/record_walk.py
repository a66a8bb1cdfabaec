"""The walk over the records of a batch, uncompressed: what a broker checks of every record a producer sends.

What lives here: the choice of the implementation. `record_walk_native` is compiled when this member is installed (docs/design/kafka-protocol-and-produce-path.md#record-validation);
where it is not there, `record_walk_python` gives the same results, some hundred times slower.
"""

from __future__ import annotations

try:
    from ponor_kafka.record_walk_native import first_at_or_after, walk_records

    IS_NATIVE = True
except ImportError:  # pragma: no cover - no C compiler was there when the member was installed
    from ponor_kafka.record_walk_python import first_at_or_after, walk_records

    IS_NATIVE = False

__all__ = ["IS_NATIVE", "first_at_or_after", "walk_records"]
