"""Jobs: what people do with a topic on Spark, as a library. `spark/jobs/*.py` hands them to spark-submit, `ponor spark` to a terminal."""
