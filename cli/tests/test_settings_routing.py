"""`--set`: services of a setting, and refused values."""

from __future__ import annotations

import pytest
from ponor_cli.errors import CommandError
from ponor_cli.local.settings_routing import route_settings


@pytest.mark.parametrize(
    ("name", "role"),
    [
        ("log_cache_bytes_max", "broker"),
        ("block_cache_bytes_max", "broker"),
        ("upload_size_bytes_max", "broker"),
        ("upload_interval_ms", "broker"),
        ("prepared_ttl_ms", "broker"),
        ("destroy_delay_ms", "controller"),
    ],
)
def test_route_settings_finds_the_role_of_a_setting(name: str, role: str) -> None:
    assert route_settings([f"{name}=67108864"])[role][name] == "67108864"


def test_route_settings_suggests_the_nearest_name() -> None:
    with pytest.raises(CommandError, match="did you mean log_cache_bytes_max"):
        route_settings(["log_cache_byte_max=1"])


@pytest.mark.parametrize("text", ["log_cache_bytes_max", "=1", ""])
def test_route_settings_needs_name_and_value(text: str) -> None:
    with pytest.raises(CommandError, match="write NAME=VALUE"):
        route_settings([text])


def test_route_settings_refuses_a_value_out_of_bounds() -> None:
    with pytest.raises(CommandError, match="upload_interval_ms"):
        route_settings(["upload_interval_ms=-5"])
