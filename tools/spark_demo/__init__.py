"""`make spark-demo`: a topic of a fresh cluster read by Spark, as a table and as a stream, straight from the objects."""
