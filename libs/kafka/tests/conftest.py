"""Random instances of any message in any version, from `tests.fuzz.instances`."""

import random
from collections.abc import Callable

import pytest
from ponor_kafka.message import Message

from tests.fuzz.instances import random_message

MakeMessage = Callable[[type[Message], int, random.Random], Message]


@pytest.fixture(scope="session")
def make_message() -> MakeMessage:
    """Create a random instance of a message class for one version."""
    return random_message
