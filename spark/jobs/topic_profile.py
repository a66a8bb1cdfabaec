"""Profile a topic in numbers and a picture. For spark-submit, with the arguments of `ponor spark profile`.

spark-submit spark/jobs/topic_profile.py --help
"""

from __future__ import annotations

import sys

from ponor_spark.jobs.command import spark_app

if __name__ == "__main__":
    spark_app(["profile", *sys.argv[1:]])
