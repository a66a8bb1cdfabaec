"""Versions, headers, and malformed bytes of requests."""

from __future__ import annotations

from ponor_kafka.messages.api_versions import ApiVersionsRequest
from ponor_kafka.messages.metadata import MetadataRequest

from tests.oracle.asking import batch, fetch, list_offsets, produce
from tests.oracle.narrator import Narrator
from tests.oracle.story import story

HELLO = ApiVersionsRequest(client_software_name="oracle", client_software_version="1.0")


@story("Supported APIs and features, in every version")
def api_versions(k: Narrator) -> None:
    for version in (0, 1, 2):
        k.ask(ApiVersionsRequest(), version, "asked the old way")
    for version in (3, 4):
        k.ask(HELLO, version, "asked with a client's name")


@story("A version of ApiVersions that is too new is answered in version 0, and the connection stays open")
def api_versions_too_new(k: Narrator) -> None:
    for version in (6, 7, 99, 32767):
        k.raw(18, version, b"", f"version {version}", tagged=True)
    k.ask(HELLO, 3, "the connection lives")
    k.raw(18, -1, b"", "a negative version", tagged=False)


@story("Client software names and versions consist of letters, digits, dots and dashes")
def api_versions_names(k: Narrator) -> None:
    for name, version in (
        ("bad name", "1"),
        ("", "1"),
        ("-x", "1"),
        ("ok", "1_0"),
        ("ok", ""),
        ("a.b-c", "1.0-rc1"),
    ):
        k.ask(
            ApiVersionsRequest(client_software_name=name, client_software_version=version),
            3,
            f"{name!r} {version!r}",
        )


@story("Unknown APIs, removed APIs and controller APIs end the connection")
def api_keys_unknown(k: Narrator) -> None:
    for key in (999, -1, 32767, 95, 200):
        k.raw(key, 0, bytes(20), f"key {key}", tagged=False)
    for key in (4, 5, 6, 7):
        k.raw(key, 0, bytes(20), f"key {key}, gone since 4.0", tagged=False)
    for key in (52, 53, 54, 56, 58, 59, 62, 63, 67, 70, 73, 82):
        k.raw(key, 0, bytes(20), f"key {key}, for controllers", tagged=True)


@story("Versions just below and above the supported ones end the connection")
def api_versions_out_of_range(k: Narrator) -> None:
    bounds = {
        0: (2, 14),
        1: (3, 19),
        2: (0, 12),
        3: (-1, 14),
        8: (1, 11),
        9: (0, 11),
        10: (-1, 7),
        11: (-1, 10),
        12: (-1, 5),
    }
    bounds |= {
        13: (-1, 6),
        14: (-1, 6),
        15: (-1, 7),
        16: (-1, 6),
        19: (1, 8),
        20: (0, 7),
        22: (-1, 6),
        23: (1, 5),
        32: (0, 5),
    }
    for key, (below, above) in bounds.items():
        k.raw(key, below, bytes(20), f"key {key} version {below}", tagged=False)
        k.raw(key, above, bytes(20), f"key {key} version {above}", tagged=True)


@story("A client id may consist of any bytes")
def client_ids(k: Narrator) -> None:
    k.named(b"", ApiVersionsRequest(), 2, "an empty one")
    k.named(b"\xff\xfe", ApiVersionsRequest(), 2, "not UTF-8")
    k.named(b"a\xc3", ApiVersionsRequest(), 2, "ends in the middle of a character")


@story("Frames without a valid request end the connection")
def frames_malformed(k: Narrator) -> None:
    k.frame(b"\x00", "one byte")
    k.frame(b"\x00\x03\x00\x00\x00\x00\x00\x01", "no client id")
    k.frame(b"\x00\x03\x00\x00\x00\x00\x00\x01\x00\x50abc", "a client id longer than the frame")
    k.frame(b"\x00\x03\x00\x00\x00\x00\x00\x01\xff\xfeabc", "a client id of length -2")
    k.frame(b"\x00\x12\x00\x03\x00\x00\x00\x01\xff\xff\x01\x00\x7f", "a header tag longer than the frame")
    k.frame(b"\x00\x12\x00\x03\x00\x00\x00\x01\xff\xff\xff\xff\xff\xff\xff\x7f", "a header with 2^35 tags")
    k.frame(b"", "a negative length", length=-1)
    k.frame(b"", "a length over socket.request.max.bytes", length=104_857_601)
    k.frame(b"", "a length of 2 GiB", length=2_147_483_647)


@story("Truncated bodies and wrong lengths end the connection")
def bodies_malformed(k: Narrator) -> None:
    k.raw(3, 1, b"\x7f\xff\xff\xff", "Metadata: an array of 2^31-1 topics")
    k.raw(3, 1, b"\x00\x00\x00\x01\x7f\xff", "Metadata: a name of 32767 bytes")
    k.raw(3, 12, b"\xff\xff\xff\xff\x0f", "Metadata: a compact array of 2^32-2 topics")
    k.raw(3, 12, b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01", "Metadata: a varint of ten bytes")
    k.raw(0, 3, b"\xff\xff\xff\xff\x00\x00\x10\x00\x00\x00\x00\x01", "Produce: cut off before the topic")
    k.raw(0, 3, b"\xff\xff\xff\xff\x00\x00\x10\x00\x7f\xff\xff\xff", "Produce: 2^31-1 topics")
    k.raw(
        0,
        9,
        b"\x00\xff\xff\x00\x00\x10\x00\x02\x02t\x02\x00\x00\x00\x00\xff\xff\xff\xff\x0f",
        "Produce: records of 4 GiB",
    )
    k.raw(1, 4, b"\xff\xff\xff\xff" + bytes(13) + b"\x40\x00\x00\x00", "Fetch: 2^30 topics")
    k.raw(1, 12, b"\xff\xff\xff\xff\x00\x00", "Fetch: cut off in the middle of a number")
    k.raw(
        2,
        1,
        b"\xff\xff\xff\xff\x00\x00\x00\x01\x00\x01t\x00\x10\x00\x00",
        "ListOffsets: a million partitions in no bytes",
    )
    k.raw(
        8, 8, b"\x02g\xff\xff\xff\xff\x01\x00\xff\xff\xff\x07", "OffsetCommit: 16 million topics in no bytes"
    )
    k.raw(10, 4, b"\x00\xff\xff\xff\xff\x07", "FindCoordinator: two billion keys in no bytes")
    k.raw(
        11,
        0,
        b"\x00\x01g\x00\x00\x75\x30\x00\x00\x00\x08consumer\x7f\xff\xff\xff",
        "JoinGroup: 2^31-1 protocols",
    )
    k.raw(19, 5, b"\xff\xff\xff\xff\x07", "CreateTopics: two billion topics in no bytes")
    k.raw(18, 3, b"\x02a\x00\x00", "ApiVersions: a compact string of length 0 where null is not allowed")
    k.raw(18, 3, b"\x02a\x02\xff\x00", "ApiVersions: a name that is not UTF-8")
    k.raw(22, 1, b"", "InitProducerId: no body at all")
    k.raw(60, 0, b"", "DescribeCluster: no body at all")


@story("Bytes behind a request and unknown tags do not end a connection")
def bodies_with_more(k: Narrator) -> None:
    k.raw(18, 0, b"\x01\x02\x03", "ApiVersions v0: bytes behind the body")
    k.raw(18, 3, b"\x02a\x021\x01\x63\x03abc", "ApiVersions v3: an unknown tag 99")
    k.raw(18, 3, b"\x02a\x021\x02\x05\x01x\x05\x01y", "ApiVersions v3: the same tag twice")
    k.raw(3, 9, b"\x01\x00\x00\x00\x01\x07\x02no", "Metadata v9: an unknown tag 7, and no topics")
    k.ask(MetadataRequest(topics=[]), 1, "the connection lives")


@story("Pipelined requests are answered in order")
def requests_pipelined(k: Narrator) -> None:
    topic = k.topic("pipelined")
    tickets = [
        k.send(fetch(topic, 0, min_bytes=1, wait_ms=100), 12, "a fetch that waits"),
        k.send(produce(topic, batch(2)), 9, "a batch"),
        k.send(produce(topic, batch(1)), 9, "another"),
        k.send(list_offsets(topic, -1), 7, "the end of the log"),
        k.send(HELLO, 3, "something else"),
        k.send(fetch(topic, 0), 12, "all of it"),
    ]
    for ticket in tickets:
        k.take(ticket)
