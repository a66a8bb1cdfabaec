"""A separate driver process: copies a topic to a table until everything is there, or until a step
at which it kills itself with its JVM.

python iceberg_driver.py FOLDER OPTIONS STEP
"""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path

from ponor_spark.jobs.iceberg.job import IcebergJob, start
from ponor_spark.jobs.iceberg.steps import Step
from ponor_spark.jobs.session import session
from ponor_spark.jobs.topic import TopicSource

from tests.spark.conftest import SESSION_SETTINGS
from tests.spark.iceberg_kills import TABLE, catalog_in


class KillGroup:
    """SIGKILL the whole process group: no handler runs, in Python or in Java."""

    def __init__(self, step: Step | None) -> None:
        self._step = step

    def reached(self, step: Step, batch_id: int) -> None:
        if step is self._step:
            os.killpg(os.getpgid(0), signal.SIGKILL)


def main() -> None:
    folder, options, step = Path(sys.argv[1]), json.loads(sys.argv[2]), sys.argv[3]
    topic = options.pop("subscribe")
    job = IcebergJob(TopicSource(topic, options), TABLE, str(folder / "checkpoint"))
    with session("driver", {**SESSION_SETTINGS, "spark.driver.memory": "512m"}, "local[1]") as spark:
        start(
            spark, catalog_in(folder / "lake"), job, KillGroup(Step(step) if step else None)
        ).awaitTermination()


if __name__ == "__main__":
    main()
