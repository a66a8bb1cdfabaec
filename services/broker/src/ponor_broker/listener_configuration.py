"""The `listeners` of a broker's configuration file: a list of JSON objects.

    {"name": NAME, "protocol": "PLAINTEXT" | "SSL" | "SASL_PLAINTEXT" | "SASL_SSL",
     "host": HOST, "port": PORT, "advertised_host": HOST, "advertised_port": PORT,
     "sasl_mechanisms": ["SCRAM-SHA-256" | "SCRAM-SHA-512" | "PLAIN"],
     "certificate": FILE, "key": FILE, "client_ca": FILE,
     "client_certificates": "none" | "requested" | "required", "principal_rules": [RULE]}

`name`, `protocol` and `port` are required, and for TLS `certificate` and `key`. PLAIN needs TLS, because the
client sends its password.
"""

from __future__ import annotations

import re
from enum import Enum
from ipaddress import ip_address
from pathlib import Path
from typing import Any, Final, TypeVar

from ponor_runtime.host_port import HOST_CHARACTERS_MAX, PORT_MAX

from ponor_broker.options import ListenerOptions, ListenerProtocol
from ponor_broker.security.mechanisms import MECHANISMS, PLAIN, SCRAM
from ponor_broker.security.tls import ClientCertificates, PrincipalRule, TlsConfigurationError, TlsOptions

COMMON_KEYS: Final = frozenset({"name", "protocol", "host", "port", "advertised_host", "advertised_port"})
TLS_KEYS: Final = frozenset({"certificate", "key", "client_ca", "client_certificates", "principal_rules"})
SASL_KEYS: Final = frozenset({"sasl_mechanisms"})
LISTENERS_MAX: Final = 16
_HOST: Final = re.compile(r"[A-Za-z0-9_.:%-]*")
_NAME: Final = re.compile(r"[A-Za-z0-9_.-]{1,64}")
_EnumT = TypeVar("_EnumT", bound=Enum)


class ListenerConfigurationError(Exception):
    """A listener is configured wrongly; the message names it and the remedy."""


def read_listeners(content: object) -> tuple[ListenerOptions, ...]:
    """Return the listeners of a configuration file.

    Raises:
        ListenerConfigurationError: the list or one of its listeners is invalid.
    """
    if not isinstance(content, list) or len(content) > LISTENERS_MAX:
        raise ListenerConfigurationError(f"'listeners' must be a list of at most {LISTENERS_MAX} objects")
    listeners = tuple(_listener(one, number) for number, one in enumerate(content))
    names = [listener.name for listener in listeners]
    for name in names:
        if names.count(name) > 1:
            raise ListenerConfigurationError(f"two listeners have the name {name!r}; choose distinct names")
    return listeners


def _listener(content: object, number: int) -> ListenerOptions:
    if not isinstance(content, dict):
        raise ListenerConfigurationError(f"listener {number} is not an object")
    name = content.get("name")
    if not isinstance(name, str) or _NAME.fullmatch(name) is None:
        raise ListenerConfigurationError(
            f"listener {number}: 'name' must have 1 to 64 letters, digits, dots, hyphens or underscores"
        )
    reader = _Reader(name, content)
    protocol = reader.choice("protocol", ListenerProtocol, None)
    reader.check_keys(protocol)
    listener = ListenerOptions(
        name,
        protocol,
        host=reader.host("host", "127.0.0.1"),
        port=reader.port("port", None),
        advertised_host=reader.host("advertised_host", ""),
        advertised_port=reader.port("advertised_port", 0),
        tls=_tls(reader) if protocol.has_tls else None,
        mechanisms=_mechanisms(reader, protocol) if protocol.has_sasl else (),
    )
    if not listener.client_host or _is_unspecified(listener.client_host):
        raise reader.refused("set 'advertised_host' to the host name that clients connect to")
    return listener


def _is_unspecified(host: str) -> bool:
    """Return whether the host is an address of every interface, such as 0.0.0.0."""
    try:
        return ip_address(host).is_unspecified
    except ValueError:
        return False


def _tls(reader: _Reader) -> TlsOptions:
    clients = reader.choice("client_certificates", ClientCertificates, ClientCertificates.NONE)
    client_ca = reader.path("client_ca")
    if clients is not ClientCertificates.NONE and client_ca is None:
        raise reader.refused("'client_certificates' needs 'client_ca', a file of certificates")
    if clients is ClientCertificates.NONE and (client_ca is not None or reader.has("principal_rules")):
        raise reader.refused(
            "'client_ca' and 'principal_rules' have no effect without 'client_certificates': add"
            ' "client_certificates": "required"'
        )
    certificate, key = reader.path("certificate"), reader.path("key")
    if certificate is None or key is None:
        raise reader.refused("a listener with TLS needs 'certificate' and 'key', two PEM files")
    try:
        rules = tuple(PrincipalRule.parse(text) for text in reader.texts("principal_rules", ["DEFAULT"]))
    except TlsConfigurationError as error:
        raise reader.refused(str(error)) from error
    if not rules:
        raise reader.refused("'principal_rules' is empty; omit it, or write at least \"DEFAULT\"")
    return TlsOptions(certificate, key, client_ca, clients, rules)


def _mechanisms(reader: _Reader, protocol: ListenerProtocol) -> tuple[str, ...]:
    mechanisms = reader.texts("sasl_mechanisms", list(SCRAM))
    for name in mechanisms:
        if name not in MECHANISMS:
            raise reader.refused(f"the mechanism {name!r} is unknown; choose from {', '.join(MECHANISMS)}")
    if not mechanisms:
        raise reader.refused("'sasl_mechanisms' is empty; name at least one")
    if PLAIN in mechanisms and not protocol.has_tls:
        raise reader.refused("PLAIN sends passwords unencrypted without TLS; use SASL_SSL, or SCRAM")
    return tuple(dict.fromkeys(mechanisms))


class _Reader:
    """Reads the values of one listener."""

    def __init__(self, name: str, content: dict[str, Any]) -> None:
        self._name = name
        self._content = content

    def refused(self, problem: str) -> ListenerConfigurationError:
        return ListenerConfigurationError(f"listener {self._name}: {problem}")

    def has(self, key: str) -> bool:
        return key in self._content

    def check_keys(self, protocol: ListenerProtocol) -> None:
        known = COMMON_KEYS
        if protocol.has_tls:
            known |= TLS_KEYS
        if protocol.has_sasl:
            known |= SASL_KEYS
        for key in self._content:
            if key not in known:
                raise self.refused(
                    f"unknown key {key!r} for {protocol.value}; known keys: {', '.join(sorted(known))}"
                )

    def choice(self, key: str, kind: type[_EnumT], default: _EnumT | None) -> _EnumT:
        value = self._content.get(key, None if default is None else default.value)
        for each in kind:
            if each.value == value:
                return each
        raise self.refused(f"{key!r} must be one of {', '.join(each.value for each in kind)}")

    def host(self, key: str, default: str) -> str:
        value = self._content.get(key, default)
        if not isinstance(value, str) or len(value) > HOST_CHARACTERS_MAX or _HOST.fullmatch(value) is None:
            raise self.refused(
                f"{key!r} must be a host name or an address of at most {HOST_CHARACTERS_MAX} characters"
            )
        return value

    def port(self, key: str, default: int | None) -> int:
        value = self._content.get(key, default)
        if type(value) is not int or not 0 <= value <= PORT_MAX:
            raise self.refused(f"{key!r} must be a port, 0 to {PORT_MAX}")
        return value

    def path(self, key: str) -> Path | None:
        value = self._content.get(key, "")
        if not isinstance(value, str):
            raise self.refused(f"{key!r} must be the path of a file")
        return Path(value).absolute() if value else None

    def texts(self, key: str, default: list[str]) -> list[str]:
        value = self._content.get(key, default)
        if not isinstance(value, list) or not all(isinstance(each, str) for each in value):
            raise self.refused(f"{key!r} must be a list of texts")
        return value
