"""Topics as a Spark data source and sink: `spark.read.format("flowstone")`, registered by being installed."""
