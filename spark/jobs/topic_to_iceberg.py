"""Copy a topic into an Iceberg table exactly once. For spark-submit, with the arguments of `ponor spark
iceberg`.

spark-submit spark/jobs/topic_to_iceberg.py --help
"""

from __future__ import annotations

import sys

from ponor_spark.jobs.command import spark_app

if __name__ == "__main__":
    spark_app(["iceberg", *sys.argv[1:]])
