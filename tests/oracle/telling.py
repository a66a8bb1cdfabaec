"""Runs stories against a running broker: finds its address, then runs one narrator per story."""

from __future__ import annotations

from contextlib import closing
from typing import Any

from ponor_kafka.codec import decode_response, encode
from ponor_kafka.headers import decode_response_header, encode_request_header
from ponor_kafka.messages.metadata import MetadataRequest

from tests.oracle.connection import Connection
from tests.oracle.exchange import Told
from tests.oracle.narrator import Narrator
from tests.oracle.plain import Canon
from tests.oracle.story import Story

METADATA_KEY, METADATA_VERSION = 3, 12


class Listener:
    """A broker on a port of this machine. `name` goes into the recordings."""

    def __init__(self, name: str, port: int) -> None:
        self.name = name
        self._port = port
        described = self._describe()
        self._node_id = described.brokers[0].node_id
        self._cluster_id = described.cluster_id
        with closing(self._narrator(Told("warm-up", name))) as narrator:
            narrator.warm_up()

    def hear(self, story: Story) -> Told:
        """Run a story. A story that ends early because of a missing answer records it in `broke_off`."""
        told = Told(story.name, self.name)
        narrator = self._narrator(told)
        try:
            story.tell(narrator)
        except Exception as error:
            told.broke_off = f"{type(error).__name__}: {error}"
        finally:
            narrator.close()
        return told

    def _narrator(self, told: Told) -> Narrator:
        canon = Canon(node_id=self._node_id, port=self._port, cluster_id=self._cluster_id)
        return Narrator(told, canon, self._port)

    def _describe(self) -> Any:
        with closing(Connection(self._port)) as connection:
            body = encode(MetadataRequest(topics=[]), METADATA_VERSION)
            connection.send(encode_request_header(METADATA_KEY, METADATA_VERSION, 1, "oracle") + body)
            frame = connection.receive()
            assert isinstance(frame, bytes), "the broker does not answer Metadata"
            _, position = decode_response_header(METADATA_KEY, METADATA_VERSION, frame)
            return decode_response(METADATA_KEY, METADATA_VERSION, frame, position)[0]
