"""The client's side of a connection: correlation ids, order, answers that do not fit."""

import pytest
from ponor_kafka.client_requests import ClientRequests
from ponor_kafka.codec import encode
from ponor_kafka.errors import KafkaEncodeError, KafkaWireError
from ponor_kafka.headers import decode_request_header, encode_response_header
from ponor_kafka.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from ponor_kafka.messages.metadata import MetadataRequest, MetadataResponse


def answer_to(frame: bytes, error_code: int = 0) -> bytes:
    header = decode_request_header(frame)
    body = encode(ApiVersionsResponse(error_code), header.api_version)
    return encode_response_header(header.api_key, header.api_version, header.correlation_id) + body


def test_answers_arrive_in_the_order_of_the_requests() -> None:
    requests: ClientRequests[str] = ClientRequests("me")
    frames = [requests.ask(ApiVersionsRequest(), version, f"v{version}") for version in (0, 3, 4)]
    assert [decode_request_header(frame).client_id for frame in frames] == ["me"] * 3

    answers = [requests.answer(answer_to(frame, code)) for code, frame in enumerate(frames)]

    assert [kept for kept, _ in answers] == ["v0", "v3", "v4"]
    assert [message.error_code for _, message in answers] == [0, 1, 2]  # type: ignore[attr-defined]
    assert len(requests) == 0


def test_a_request_without_an_answer_takes_a_number_and_no_place() -> None:
    requests: ClientRequests[str] = ClientRequests("me")
    silent = requests.tell(ApiVersionsRequest(), 3)
    asked = requests.ask(ApiVersionsRequest(), 3, "asked")

    numbers = [decode_request_header(frame).correlation_id for frame in (silent, asked)]
    assert numbers[0] != numbers[1]
    assert requests.answer(answer_to(asked))[0] == "asked"


def test_an_answer_out_of_order_is_refused_and_the_request_stays() -> None:
    requests: ClientRequests[str] = ClientRequests("me")
    requests.ask(ApiVersionsRequest(), 3, "first")
    second = requests.ask(ApiVersionsRequest(), 3, "second")

    with pytest.raises(KafkaWireError, match="response to request 1, received the response to request 2"):
        requests.answer(answer_to(second))
    assert requests.give_up() == ["first", "second"]
    assert len(requests) == 0


def test_an_answer_without_a_request_is_refused() -> None:
    requests: ClientRequests[str] = ClientRequests("me")
    with pytest.raises(KafkaWireError, match="no request waits"):
        requests.answer(answer_to(ClientRequests("you").tell(ApiVersionsRequest(), 3)))


def test_a_malformed_answer_is_refused_and_the_request_stays() -> None:
    requests: ClientRequests[str] = ClientRequests("me")
    frame = requests.ask(MetadataRequest(), 12, "metadata")
    correlation_id = decode_request_header(frame).correlation_id
    whole = encode_response_header(3, 12, correlation_id) + encode(MetadataResponse(), 12)

    with pytest.raises(KafkaWireError):
        requests.answer(whole[:-3])
    assert requests.give_up() == ["metadata"]


def test_a_request_that_cannot_be_encoded_expects_no_answer() -> None:
    requests: ClientRequests[str] = ClientRequests("me")
    with pytest.raises(KafkaEncodeError):
        requests.ask(ApiVersionsRequest(), 99, "never sent")
    assert len(requests) == 0


def test_correlation_ids_stay_positive() -> None:
    requests: ClientRequests[str] = ClientRequests("me")
    requests._correlation_id = (1 << 31) - 2
    frames = [requests.ask(ApiVersionsRequest(), 3, str(number)) for number in range(3)]

    numbers = [decode_request_header(frame).correlation_id for frame in frames]
    assert numbers == [(1 << 31) - 1, 1, 2]
    assert [requests.answer(answer_to(frame))[0] for frame in frames] == ["0", "1", "2"]
