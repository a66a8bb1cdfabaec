"""A topic into Parquet files: all of it or nothing. For spark-submit: the same words as `ponor spark parquet` takes.

spark-submit spark/jobs/topic_to_parquet.py --help
"""

from __future__ import annotations

import sys

from ponor_spark.jobs.command import spark_app

if __name__ == "__main__":
    spark_app(["parquet", *sys.argv[1:]])
