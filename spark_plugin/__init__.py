"""Everything of flinkish that knows Spark.  Nothing else imports pyspark."""
