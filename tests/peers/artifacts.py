"""Java programs of other projects: a real Kafka with its tools, and Java clients of several versions.

Lists the artifacts, checks for them, and fetches them with Maven into `build/peers`. Only `make
peers` fetches, by running this module; tests without their artifact are skipped with a reason.
"""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
CACHE = ROOT / "build" / "peers"
POMS = Path(__file__).parent / "maven"
KAFKA_VERSION = "4.3.1"
CLIENT_VERSIONS = ("2.1.1", "2.8.2", "3.9.1", "4.3.1", "4.4.0")
SPARK_VERSION = "4.2.0"
FETCH_S_MAX = 900


class PeerMissingError(Exception):
    """A required program is not on this machine; the message names it and the remedy."""


@dataclass(frozen=True, slots=True)
class JavaLibraries:
    """A directory of jars that one pom names."""

    name: str
    pom: Path
    properties: tuple[str, ...] = ()

    @property
    def directory(self) -> Path:
        """The directory of the jars, even if it does not exist."""
        return CACHE / self.name

    @property
    def class_path(self) -> str:
        """Value for `java -cp`. Raises PeerMissingError if the jars were not fetched."""
        if not self.is_complete():
            raise PeerMissingError(
                f"{self.name} is not in {CACHE.relative_to(ROOT)}; `make peers` fetches it"
            )
        return f"{self.directory}/*"

    def is_complete(self) -> bool:
        """Whether the jars of the pom were fetched completely."""
        mark = self._mark
        return mark.is_file() and mark.read_text() == self._digest()

    def fetch(self) -> None:
        """Fetch the jars with Maven, which verifies their checksums. Raises PeerMissingError without
        Maven.
        """
        if self.is_complete():
            return
        maven = program("mvn", "Maven")
        shutil.rmtree(self.directory, ignore_errors=True)
        command = [maven, "-q", "-B", "-f", str(self.pom), "dependency:copy-dependencies"]
        command += [f"-DoutputDirectory={self.directory}", *self.properties]
        done = subprocess.run(command, capture_output=True, text=True, timeout=FETCH_S_MAX, check=False)
        if done.returncode != 0:
            raise PeerMissingError(
                f"Maven could not fetch {self.name}:\n{done.stdout[-2000:]}{done.stderr[-2000:]}"
            )
        self._mark.write_text(self._digest())

    @property
    def _mark(self) -> Path:
        return self.directory / ".complete"

    def _digest(self) -> str:
        return hashlib.sha256(self.pom.read_bytes() + " ".join(self.properties).encode()).hexdigest()


KAFKA = JavaLibraries(f"kafka-{KAFKA_VERSION}", POMS / "kafka" / "pom.xml")
ECOSYSTEM = JavaLibraries(f"ecosystem-{KAFKA_VERSION}", POMS / "ecosystem" / "pom.xml")
"""Kafka Connect, MirrorMaker 2 and Kafka Streams."""
SPARK_CONNECTOR = JavaLibraries(f"spark-connector-{SPARK_VERSION}", POMS / "spark-connector" / "pom.xml")
"""Spark's own Kafka connector, for the pyspark of that version."""


def clients(version: str) -> JavaLibraries:
    """The Java client of one version, without other parts of Kafka."""
    return JavaLibraries(f"clients-{version}", POMS / "clients" / "pom.xml", (f"-Dclients={version}",))


def program(command: str, called: str) -> str:
    """The path of an installed program. Raises PeerMissingError when there is none."""
    path = shutil.which(command)
    if path is None:
        raise PeerMissingError(f"{called} (`{command}`) is not installed on this machine")
    return path


def java() -> str:
    """The Java runtime. Raises PeerMissingError when there is none."""
    return program("java", "a Java runtime, 17 or newer")


def main() -> int:
    """Fetch everything; print what was not available."""
    missing = 0
    for libraries in (KAFKA, ECOSYSTEM, SPARK_CONNECTOR, *map(clients, CLIENT_VERSIONS)):
        try:
            libraries.fetch()
            print(f"{libraries.name}: {sum(1 for _ in libraries.directory.glob('*.jar'))} jars")
        except PeerMissingError as error:
            missing += 1
            print(f"{libraries.name}: skipped: {error}")
    for command, called in (("java", "a Java runtime"), ("javac", "a Java compiler"), ("kcat", "kcat")):
        try:
            print(f"{command}: {program(command, called)}")
        except PeerMissingError as error:
            print(f"{command}: skipped: {error}; the tests that need it will say so")
    return 1 if missing else 0


if __name__ == "__main__":
    sys.exit(main())
