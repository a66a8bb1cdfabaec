"""TLS of listeners: settings, contexts that follow their files, principals of client certificates."""

from __future__ import annotations

import logging
import re
import ssl
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any, Final

from ponor_broker.security.authentication import ANONYMOUS

LOG: Final = logging.getLogger("ponor.broker.listener")
CIPHERS: Final = "ECDHE+AESGCM:ECDHE+CHACHA20"
"""Cipher suites for TLS 1.2, all with forward secrecy; TLS 1.3 has its own."""
OTHERS: Final = 0o007
DEFAULT_RULE: Final = "DEFAULT"
SHORT_NAMES: Final = {
    "commonName": "CN",
    "countryName": "C",
    "domainComponent": "DC",
    "localityName": "L",
    "organizationName": "O",
    "organizationalUnitName": "OU",
    "stateOrProvinceName": "ST",
    "streetAddress": "STREET",
    "userId": "UID",
}
"""Short names of RFC 2253 for the names that Python's ssl module uses."""
_SPECIAL: Final = re.compile(r'([,+"\\<>;=])')
_RULE: Final = re.compile(r"RULE:((?:\\.|[^\\/])*)/((?:\\.|[^\\/])*)/([LU]?)")


class TlsConfigurationError(Exception):
    """The TLS settings of a listener are invalid; the message names the problem and the remedy."""


class ClientCertificates(Enum):
    """Kafka's ssl.client.auth: whether clients must present a certificate."""

    NONE = "none"
    REQUESTED = "requested"
    REQUIRED = "required"


@dataclass(frozen=True, slots=True)
class PrincipalRule:
    """One of Kafka's ssl.principal.mapping.rules (KIP-371). None as pattern: the name is not changed."""

    pattern: re.Pattern[str] | None = None
    replacement: str = ""
    case: str = ""

    @classmethod
    def parse(cls, text: str) -> PrincipalRule:
        """Parse `DEFAULT` or `RULE:PATTERN/REPLACEMENT/`, with an optional L or U at the end.

        Raises:
            TlsConfigurationError: the rule is malformed.
        """
        if text == DEFAULT_RULE:
            return cls()
        match = _RULE.fullmatch(text)
        if match is None:
            raise TlsConfigurationError(
                f"principal rule {text!r} is neither DEFAULT nor RULE:PATTERN/REPLACEMENT/[L|U]"
            )
        pattern, replacement, case = match.groups()
        try:
            # Kafka refers to groups as $1, Python as \g<1>.
            rule = cls(re.compile(pattern), re.sub(r"\$(\d)", r"\\g<\1>", replacement), case)
            # An alternative that matches the empty text, to find references to groups that do not exist.
            match = re.compile(f"(?:{pattern})|").match("")
            assert match is not None
            match.expand(rule.replacement)
        except re.error as error:
            raise TlsConfigurationError(f"principal rule {text!r}: {error}") from error
        return rule

    def apply(self, name: str) -> str | None:
        """Return the mapped name; None if the pattern does not match the whole name."""
        if self.pattern is None:
            return name
        match = self.pattern.fullmatch(name)
        if match is None:
            return None
        mapped = match.expand(self.replacement)
        return mapped.lower() if self.case == "L" else mapped.upper() if self.case == "U" else mapped


@dataclass(frozen=True, slots=True)
class TlsOptions:
    """Files and rules of a listener with TLS. `client_ca`: certificates of the authorities of clients."""

    certificate: Path
    key: Path
    client_ca: Path | None = None
    client_certificates: ClientCertificates = ClientCertificates.NONE
    principal_rules: tuple[PrincipalRule, ...] = (PrincipalRule(),)


@dataclass(slots=True)
class TlsContext:
    """The context for new handshakes. `reload` replaces it after a change of the files."""

    options: TlsOptions
    context: ssl.SSLContext
    _versions: tuple[tuple[int, int], ...] = field(repr=False)
    _problem: str = ""
    """The last error of `reload`, which is logged once."""

    @classmethod
    def load(cls, options: TlsOptions) -> TlsContext:
        """Read the files.

        Raises:
            TlsConfigurationError: a file is missing, invalid, or readable by other users.
        """
        versions = _versions(options)
        return cls(options, _context(options), versions)

    def reload(self) -> bool:
        """Use changed files for new handshakes; return whether they changed. If a file is invalid, the former
        certificate stays in use.
        """
        try:
            versions = _versions(self.options)
            if versions == self._versions:
                return False
            self.context = _context(self.options)
            self._versions = versions
        except TlsConfigurationError as error:
            if str(error) != self._problem:
                self._problem = str(error)
                LOG.warning("keeping the former certificate: %s", error)
            return False
        self._problem = ""
        LOG.info("loaded the certificate %s", self.options.certificate)
        return True


def principal_of(certificate: Any, rules: Sequence[PrincipalRule]) -> str:
    """Return the principal of a client certificate, as `ssl.SSLObject.getpeercert` returns it; ANONYMOUS if
    there is none.

    Raises:
        TlsConfigurationError: no rule matches the name, so the client gets no principal.
    """
    if not certificate:
        return ANONYMOUS
    name = distinguished_name(certificate)
    for rule in rules:
        mapped = rule.apply(name)
        if mapped is not None:
            return f"User:{mapped}"
    raise TlsConfigurationError(f"no principal rule matches the certificate of {name!r}")


def distinguished_name(certificate: Any) -> str:
    """Return the subject in the form of RFC 2253: the last component first."""
    parts = [
        "+".join(f"{SHORT_NAMES.get(kind, kind)}={_escaped(value)}" for kind, value in component)
        for component in certificate.get("subject", ())
    ]
    return ",".join(reversed(parts))


def _escaped(value: str) -> str:
    escaped = _SPECIAL.sub(r"\\\1", value)
    if escaped[:1] in ("#", " "):
        escaped = f"\\{escaped}"
    return f"{escaped[:-1]}\\ " if len(escaped) > 1 and escaped.endswith(" ") else escaped


def _files(options: TlsOptions) -> tuple[Path, ...]:
    further = () if options.client_ca is None else (options.client_ca,)
    return (options.certificate, options.key, *further)


def _versions(options: TlsOptions) -> tuple[tuple[int, int], ...]:
    try:
        states = [path.stat() for path in _files(options)]
    except OSError as error:
        raise TlsConfigurationError(f"{error.filename} cannot be read: {error.strerror}") from error
    if states[1].st_mode & OTHERS:
        raise TlsConfigurationError(
            f"every user can access the private key {options.key}; run `chmod o= {options.key}`"
        )
    return tuple((state.st_mtime_ns, state.st_ino) for state in states)


def _context(options: TlsOptions) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_ciphers(CIPHERS)
    context.options |= ssl.OP_CIPHER_SERVER_PREFERENCE | ssl.OP_NO_RENEGOTIATION
    try:
        context.load_cert_chain(options.certificate, options.key, password=_no_password)
        if options.client_ca is not None:
            context.load_verify_locations(options.client_ca)
    except (OSError, ValueError) as error:  # ssl.SSLError is an OSError
        raise TlsConfigurationError(
            f"certificate {options.certificate}, key {options.key} or client CA {options.client_ca} cannot be"
            f" used: {error}"
        ) from error
    if options.client_certificates is ClientCertificates.REQUIRED:
        context.verify_mode = ssl.CERT_REQUIRED
    elif options.client_certificates is ClientCertificates.REQUESTED:
        context.verify_mode = ssl.CERT_OPTIONAL
    return context


def _no_password() -> str:
    """Refuse an encrypted key: without this, OpenSSL would ask for the password on the terminal."""
    raise ValueError("the private key is encrypted; decrypt it")
