"""Lake tables without a jar: Delta, Iceberg and Parquet, written exactly once from Spark."""
