"""`make spark-demo`: Spark reads a topic of a fresh cluster from its objects, as a table and as a stream."""
