"""Bound of the rows that one request may name."""

from __future__ import annotations

from typing import Final

from ponor_kafka.errors import KafkaWireError

ROWS_MAX: Final = 100_000
"""The default of `fetch_partitions_max`; a cluster has fewer partitions. Without this bound, a request of
4 MiB could name a million."""


def check_rows(rows: int) -> None:
    """Refuse a request that names too many partitions, before work is done for each.

    Raises:
        KafkaWireError: more than `ROWS_MAX`; the client is disconnected.
    """
    if rows > ROWS_MAX:
        raise KafkaWireError(f"the request names {rows} partitions; name at most {ROWS_MAX}")
