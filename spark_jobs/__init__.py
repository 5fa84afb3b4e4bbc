"""Jobs over the data of a quire cluster, for PySpark: `quire-spark report | audit | archive`.

Each reads what pyspark_quire reads, the metadata and the ledgers on their bookies, and asks no
broker. The driver plans from metadata; what is large is cut into pieces (spark_jobs/runner.py),
which Spark's executors work at, or this process where no `--master` is named.
"""
