"""Verify a topic's objects. For spark-submit, with the arguments of `ponor spark verify`.

spark-submit spark/jobs/topic_verify.py --help
"""

from __future__ import annotations

import sys

from ponor_spark.jobs.command import spark_app

if __name__ == "__main__":
    spark_app(["verify", *sys.argv[1:]])
