"""Export a topic to Parquet files, completely or not at all. For spark-submit, with the arguments of `ponor
spark parquet`.

spark-submit spark/jobs/topic_to_parquet.py --help
"""

from __future__ import annotations

import sys

from ponor_spark.jobs.command import spark_app

if __name__ == "__main__":
    spark_app(["parquet", *sys.argv[1:]])
