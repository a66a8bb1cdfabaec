"""Storage settings: parsing, limits, and consistent derived sizes for all valid values."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from ponor_journal.settings import JournalSettings
from ponor_runtime.settings import SettingError, describe, load
from s3stream.settings import GIB, KIB, MIB, StorageSettings


def test_named_values_are_parsed_and_limited() -> None:
    settings = load(StorageSettings, {"log_cache_bytes_max": "48MiB", "upload_size_bytes_max": "8MiB"})
    assert (settings.log_cache_bytes_max, settings.upload_size_bytes) == (48 * MIB, 8 * MIB)
    with pytest.raises(SettingError, match="log_cache_bytes_max"):
        load(StorageSettings, {"log_cache_bytes_max": "1MiB"})
    assert all(row.doc and (row.unit or row.kind == "str") for row in describe(StorageSettings))


def test_defaults() -> None:
    settings = StorageSettings()
    assert settings.upload_size_bytes == 512 * MIB // 3
    assert StorageSettings(log_cache_bytes_max=8 * GIB).upload_size_bytes == 500 * MIB
    assert settings.wal_segment_bytes == 64 * MIB


@given(
    st.integers(8 * MIB, 64 * GIB),
    st.integers(0, 64 * GIB),
    st.integers(1 * MIB, 64 * GIB),
    st.integers(64 * MIB, 64 * GIB),
)
def test_derived_sizes_are_consistent(cache: int, upload: int, waiting: int, wal: int) -> None:
    settings = StorageSettings(
        log_cache_bytes_max=cache,
        upload_size_bytes_max=upload,
        append_waiting_bytes_max=waiting,
        wal_bytes_max=wal,
    )
    assert 0 < settings.upload_size_bytes < settings.pressure_bytes <= settings.direct_bytes_max < cache
    assert settings.append_bytes_max >= 3 * MIB, (
        "a Kafka batch of the default size fits with any valid settings"
    )
    journal = JournalSettings(segment_bytes=settings.wal_segment_bytes)
    assert max(settings.append_bytes_max, settings.wal_entry_bytes_max) <= journal.entry_limit_bytes
    assert settings.wal_segment_bytes % (4 * KIB) in range(0, 4 * KIB, 512)
