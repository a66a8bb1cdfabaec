"""Telemetry: one registry of metric and span names; cheap instruments; a Prometheus endpoint.

Every name is declared in this file and nowhere else (tests/tidy holds a snapshot). Instruments are plain Python numbers that the hot
path adds to; OpenTelemetry reads them by observable callbacks when somebody asks, so that telemetry costs nothing when nobody does.
"""

from __future__ import annotations
