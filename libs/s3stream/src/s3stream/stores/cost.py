"""List price of the requests of this process: dollars by class, and per gigabyte appended.

`stores.metered` counts requests, with retries and parts. Prices are settings and exclude storage and traffic.
"""

from __future__ import annotations

from functools import partial
from typing import Final

from ponor_runtime.telemetry import Telemetry

from s3stream.settings import StorageSettings

GB: Final = 1_000_000_000
_MILLION: Final = 1_000_000


def cost_usd(telemetry: Telemetry, request_class: str, usd_per_million: float) -> float:
    """List price of all requests of a class so far."""
    requests = sum(
        value
        for labels, value in telemetry.counters("ponor_object_store_requests_total")
        if labels[1] == request_class
    )
    return requests * usd_per_million / _MILLION


def register_cost(telemetry: Telemetry, settings: StorageSettings) -> None:
    """Offer the cost metrics. Deletes are free where this list is from."""
    prices = {"put": settings.store_put_usd_per_million, "get": settings.store_get_usd_per_million}
    for request_class, price in prices.items():
        telemetry.calculated_counter(
            "ponor_store_cost_usd_total",
            partial(cost_usd, telemetry, request_class, price),
            **{"class": request_class},
        )

    def per_gb() -> float:
        appended_bytes = sum(value for _, value in telemetry.counters("ponor_wal_object_bytes_total"))
        total_usd = sum(cost_usd(telemetry, name, price) for name, price in prices.items())
        return total_usd * GB / appended_bytes if appended_bytes else 0.0

    telemetry.gauge("ponor_store_cost_usd_per_gigabyte", per_gb)
