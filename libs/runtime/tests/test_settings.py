"""Settings: accepted values and error messages."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st
from ponor_runtime.settings import SettingError, describe, load, setting


@dataclass(frozen=True)
class CacheSettings:
    cache_bytes_max: int = setting(1 << 20, within=(1024, 1 << 40), doc="How much is kept")
    mode: str = setting("warm", choices=("warm", "cold"))


@dataclass(frozen=True)
class ServiceSettings:
    port: int = field(default=9092, metadata={"min": 0, "max": 65535})
    ratio: float = setting(0.5, within=(0.0, 1.0))
    verify: bool = True
    name: str = "x"
    cache: CacheSettings = field(default_factory=CacheSettings)


def test_text_and_json_values_become_typed_fields() -> None:
    values = {
        "port": "0",
        "ratio": "0.25",
        "verify": "no",
        "name": "n",
        "cache_bytes_max": "64MiB",
        "mode": "cold",
    }
    loaded = load(ServiceSettings, values)
    assert loaded == ServiceSettings(0, 0.25, False, "n", CacheSettings(64 << 20, "cold"))
    assert load(ServiceSettings, {"port": 1, "verify": False, "ratio": 1}) == ServiceSettings(1, 1.0, False)
    assert load(ServiceSettings, {}) == ServiceSettings()


@pytest.mark.parametrize(
    ("name", "value", "told"),
    [
        ("cache_byte_max", "1", "did you mean 'cache_bytes_max'"),
        ("qqqq", "1", "known settings: cache_bytes_max, mode"),
        ("port", "65536", "'port' is 65536; it must be at least 0 and at most 65535"),
        ("port", "many", "'port' is 'many'; it must be a whole number"),
        ("port", True, "must be a whole number"),
        ("port", None, "must be a whole number"),
        ("port", 1.5, "must be a whole number"),
        ("cache_bytes_max", "1", "is 1 bytes; it must be at least 1024"),
        ("ratio", "nan", "it must be a number"),
        ("ratio", "1e999", "it must be a number"),
        ("verify", "perhaps", "must be true or false"),
        ("mode", "hot", "must be one of warm, cold"),
    ],
)
def test_invalid_value_is_named_with_the_accepted_values(name: str, value: object, told: str) -> None:
    with pytest.raises(SettingError) as raised:
        load(ServiceSettings, {name: value})
    assert told in str(raised.value)
    assert name in str(raised.value)


def test_names_of_other_services_can_be_ignored() -> None:
    assert load(CacheSettings, {"port": "1", "mode": "cold"}, accept_others=True).mode == "cold"


KNOWN = [row.name for row in describe(ServiceSettings)]


@given(st.dictionaries(st.sampled_from(KNOWN) | st.text(max_size=20), st.text(max_size=20), max_size=3))
def test_any_text_is_parsed_or_refused_by_name(values: dict[str, str]) -> None:
    told = ""
    try:
        load(ServiceSettings, values)
    except SettingError as error:
        told = str(error)
    if told:
        assert any(repr(name) in told for name in values)
    else:
        assert values.keys() <= set(KNOWN)


@given(st.integers(1024, 1 << 40))
def test_numbers_round_trip_as_text(number: int) -> None:
    assert load(CacheSettings, {"cache_bytes_max": str(number)}).cache_bytes_max == number


def test_settings_describe_themselves() -> None:
    rows = {row.name: row for row in describe(ServiceSettings)}
    assert list(rows) == ["port", "ratio", "verify", "name", "cache_bytes_max", "mode"]
    assert (rows["cache_bytes_max"].unit, rows["cache_bytes_max"].doc) == ("bytes", "How much is kept")
