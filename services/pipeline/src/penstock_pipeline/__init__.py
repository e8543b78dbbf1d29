"""Penstock, the pipeline service: runs pipelines over bounded input on Spark, one service per cluster."""
