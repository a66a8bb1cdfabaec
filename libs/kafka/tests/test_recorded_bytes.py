"""Messages that kio does not know, as encoded by Apache Kafka's Java classes (4.4.0, coordinator records
4.3.1)."""

import pytest
from ponor_kafka.codec import decode_as, decode_versioned, encode, encode_versioned
from ponor_kafka.message import Message
from ponor_kafka.messages import streams_group_describe as described
from ponor_kafka.messages import streams_group_heartbeat as heartbeat
from ponor_kafka.messages import streams_group_topology_description_update as topology
from ponor_kafka.messages.aborted_txn import AbortedTxn
from ponor_kafka.messages.api_versions import (
    ApiVersion,
    ApiVersionsRequest,
    ApiVersionsResponse,
    SupportedFeatureKey,
)
from ponor_kafka.messages.delete_groups import DeletableGroupResult, DeleteGroupsRequest, DeleteGroupsResponse
from ponor_kafka.messages.group_coordinator_records import (
    GroupMetadataKey,
    GroupMetadataValue,
    MemberMetadata,
    OffsetCommitKey,
    OffsetCommitValue,
)
from ponor_kafka.messages.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
    TxnOffsetCommitResponse,
    TxnOffsetCommitResponsePartition,
    TxnOffsetCommitResponseTopic,
)
from ponor_kafka.messages.unregister_controller import (
    UnregisterControllerRequest,
    UnregisterControllerResponse,
)

TOPIC_ID = bytes(range(16))
NODE = topology.TopologyDescriptionNode("source", 0, ["orders"], None, [], ["sink"])
DESCRIBED_NODE = described.TopologyDescriptionNode("sink", 2, [], "out", ["store"], [])
MEMBER = MemberMetadata("m-1", "i-1", "client", "/127.0.0.1", 60000, 45000, b"\x00\x01", b"\x02")
GROUP = GroupMetadataValue("consumer", 7, "range", "m-1", 1_700_000_000_000, [MEMBER])

RECORDED: list[tuple[Message, int, str]] = [
    (
        ApiVersionsRequest("librdkafka", "2.16.1", "abc", 3),
        5,
        "0b6c696272646b61666b6107322e31362e31046162630000000300",
    ),
    (
        ApiVersionsResponse(
            0, [ApiVersion(18, 0, 5)], 9, [SupportedFeatureKey("kraft.version", 0, 1)], 11, (), True
        ),
        5,
        "0000020012000000050000000009030014020e6b726166742e76657273696f6e00000001000108000000000000000b030101",
    ),
    (
        TxnOffsetCommitRequest(
            "txn",
            "group",
            4000,
            5,
            6,
            "member",
            None,
            [TxnOffsetCommitRequestTopic("", TOPIC_ID, [TxnOffsetCommitRequestPartition(1, 100, 2, "note")])],
        ),
        6,
        "0474786e0667726f75700000000000000fa0000500000006076d656d6265720002000102030405060708090a0b0c0d0e0f0200000001000000000000006400000002056e6f7465000000",
    ),
    (
        TxnOffsetCommitResponse(
            3, [TxnOffsetCommitResponseTopic("", TOPIC_ID, [TxnOffsetCommitResponsePartition(1, 100)])]
        ),
        6,
        "0000000302000102030405060708090a0b0c0d0e0f02000000010064000000",
    ),
    (DeleteGroupsRequest(["a", "b"]), 3, "030261026200"),
    (
        DeleteGroupsResponse(0, [DeletableGroupResult("a", 68, "in use"), DeletableGroupResult("b")]),
        3,
        "00000000030261004407696e207573650002620000000000",
    ),
    (
        heartbeat.StreamsGroupHeartbeatRequest(
            "app",
            "m",
            2,
            user_endpoint=heartbeat.StreamsGroupHeartbeatRequestEndpoint("host", 65535),
            client_tags=[heartbeat.KeyValue("zone", "a")],
            task_offsets=[heartbeat.TaskOffset("0", 1, 1 << 40)],
        ),
        1,
        "04617070026d00000002000000000000ffffffffff000000000105686f7374ffff0002057a6f6e6502610002023000000001000001000000000000000000",
    ),
    (
        heartbeat.StreamsGroupHeartbeatResponse(
            member_id="m",
            acceptable_recovery_lag=1 << 33,
            status=[heartbeat.Status(6, "tags")],
            topology_description_required=True,
        ),
        1,
        "00000000000000026d0000000000000000000000000000000200000000020605746167730000000001000000000000",
    ),
    (described.StreamsGroupDescribeRequest(["app"], True, True), 1, "0204617070010100"),
    (
        described.StreamsGroupDescribeResponse(
            0,
            [
                described.DescribedGroup(
                    group_id="app",
                    topology_description=described.TopologyDescription(
                        [described.TopologyDescriptionSubtopology("0", [DESCRIBED_NODE])],
                        [described.TopologyDescriptionGlobalStore(DESCRIBED_NODE, DESCRIBED_NODE)],
                    ),
                    topology_description_status=1,
                    assignor_name="sticky",
                )
            ],
        ),
        1,
        "000000000200000004617070010000000000000000ff018000000001020230020573696e6b0201046f7574020673746f7265010000020573696e6b0201046f7574020673746f726501000573696e6b0201046f7574020673746f7265010000000107737469636b790000",
    ),
    (
        topology.StreamsGroupTopologyDescriptionUpdateRequest(
            "app",
            "m",
            4,
            topology.TopologyDescription([topology.TopologyDescriptionSubtopology("0", [NODE])], ()),
        ),
        0,
        "04617070026d000000040202300207736f757263650002076f72646572730001020573696e6b0000010000",
    ),
    (topology.StreamsGroupTopologyDescriptionUpdateResponse(0, 135, "full"), 0, "0000000000870566756c6c00"),
    (UnregisterControllerRequest(3001), 0, "00000bb900"),
    (UnregisterControllerResponse(0, 136, None), 0, "0000000000880000"),
    (AbortedTxn(1, 2, 3, 4), 0, "0000000000000001000000000000000200000000000000030000000000000004"),
    (OffsetCommitKey("group", "topic", 3), 1, "000567726f75700005746f70696300000003"),
    (
        OffsetCommitValue(100, 4, "note", 1_700_000_000_000),
        3,
        "00000000000000640000000400046e6f74650000018bcfe56800",
    ),
    (
        OffsetCommitValue(100, 4, "note", 1_700_000_000_000, topic_id=TOPIC_ID),
        4,
        "000000000000006400000004056e6f74650000018bcfe56800010010000102030405060708090a0b0c0d0e0f",
    ),
    (GroupMetadataKey("group"), 2, "000567726f7570"),
    (
        GROUP,
        3,
        "0008636f6e73756d657200000007000572616e676500036d2d310000018bcfe568000000000100036d2d310003692d310006636c69656e74000a2f3132372e302e302e310000ea600000afc80000000200010000000102",
    ),
    (
        GROUP,
        4,
        "09636f6e73756d6572000000070672616e6765046d2d310000018bcfe5680002046d2d3104692d3107636c69656e740b2f3132372e302e302e310000ea600000afc803000102020000",
    ),
]


@pytest.mark.parametrize(
    ("message", "version", "recorded"),
    RECORDED,
    ids=[f"{type(one).__name__}-{version}" for one, version, _ in RECORDED],
)
def test_message_equals_the_java_encoding(message: Message, version: int, recorded: str) -> None:
    wire = bytes.fromhex(recorded)

    assert encode(message, version).hex() == recorded
    assert decode_as(type(message), version, wire) == (message, len(wire))


def test_coordinator_records_start_with_their_version() -> None:
    key = OffsetCommitKey("group", "topic", 3)

    stored = encode_versioned(key, 1)

    assert stored.hex() == "0001" + "000567726f7570" + "0005746f706963" + "00000003"
    assert decode_versioned(OffsetCommitKey, stored) == (key, 1)


def test_future_consumer_protocol_version_is_decoded_as_the_newest_known() -> None:
    stored = bytearray(encode_versioned(OffsetCommitKey("g", "t", 0), 1)) + b"more"
    stored[:2] = (99).to_bytes(2, "big")

    assert decode_versioned(OffsetCommitKey, stored) == (OffsetCommitKey("g", "t", 0), 99)
