"""The client's side of one connection, without I/O: numbers requests and matches answers to them."""

from __future__ import annotations

from collections import deque
from typing import Generic, NamedTuple, TypeVar

from ponor_kafka.codec import decode_as, encode, response_class
from ponor_kafka.errors import KafkaWireError
from ponor_kafka.headers import decode_response_header, encode_request_header
from ponor_kafka.message import Message
from ponor_kafka.primitives import Buffer

T = TypeVar("T")
_CORRELATION_ID_MAX = (1 << 31) - 1


class _Unanswered(NamedTuple, Generic[T]):
    correlation_id: int
    api_key: int
    version: int
    kept: T


class ClientRequests(Generic[T]):
    """The unanswered requests of one connection, in order: brokers answer in the order of the requests.

    The caller keeps one value of type `T` with each request. Frames have no length field here.
    """

    def __init__(self, client_id: str) -> None:
        self._client_id = client_id
        self._correlation_id = 0
        self._unanswered: deque[_Unanswered[T]] = deque()

    def __len__(self) -> int:
        return len(self._unanswered)

    def ask(self, request: Message, version: int, kept: T) -> bytes:
        """Return the frame of a request and expect its answer.

        Raises:
            KafkaEncodeError: `version` cannot represent the request.
        """
        frame = self.tell(request, version)
        self._unanswered.append(_Unanswered(self._correlation_id, request.API_KEY, version, kept))
        return frame

    def forget_newest(self) -> None:
        """Forget the newest request, whose frame was not sent."""
        self._unanswered.pop()

    def tell(self, request: Message, version: int) -> bytes:
        """Return the frame of a request without an answer, such as Produce with acks 0; otherwise like
        `ask`.
        """
        body = encode(request, version)
        self._correlation_id = self._correlation_id % _CORRELATION_ID_MAX + 1
        return encode_request_header(request.API_KEY, version, self._correlation_id, self._client_id) + body

    def answer(self, frame: Buffer) -> tuple[T, Message]:
        """Decode the answer to the oldest request. Returns what the caller kept with it, and the answer.

        Raises:
            KafkaWireError: the frame is not that answer; close the connection. The request stays unanswered.
        """
        if not self._unanswered:
            raise KafkaWireError("a response arrived, but no request waits for one")
        correlation_id, api_key, version, kept = self._unanswered[0]
        answered, position = decode_response_header(api_key, version, frame)
        if answered != correlation_id:
            raise KafkaWireError(
                f"expected the response to request {correlation_id}, received the response to"
                f" request {answered}"
            )
        response, _ = decode_as(response_class(api_key), version, frame, position)
        self._unanswered.popleft()
        return kept, response

    def give_up(self) -> list[T]:
        """Forget all unanswered requests, because the connection ended. Returns what the caller kept."""
        kept = [request.kept for request in self._unanswered]
        self._unanswered.clear()
        return kept
