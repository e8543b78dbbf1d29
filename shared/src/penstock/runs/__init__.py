"""Bounded runs of pipelines on Spark: their log, their scheduler, their views."""
