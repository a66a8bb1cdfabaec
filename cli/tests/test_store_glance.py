"""Who starts a cluster on a store that does not answer hears of it at once."""

from __future__ import annotations

from ponor_cli.store_glance import silence_of

KEYS = {"AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b"}


async def test_a_directory_is_not_looked_at() -> None:
    assert await silence_of("file:///nowhere", "file", {}) is None


async def test_a_server_that_is_not_there_is_named_with_what_it_means() -> None:
    line = await silence_of("s3://bucket/p?endpoint=http://127.0.0.1:1", "object", KEYS)
    assert line is not None
    assert "Nothing that is produced is acknowledged until it does" in line
    assert line.startswith("THE OBJECT STORE s3://bucket/p?endpoint=http://127.0.0.1:1 DOES NOT ANSWER: ")
    assert "`ponor doctor storage" in line
    assert "\n" not in line


async def test_a_slip_in_the_url_is_named() -> None:
    line = await silence_of("s3://bucket/p?place=http://127.0.0.1:1", "file", KEYS)
    assert line is not None
    assert "place" in line
