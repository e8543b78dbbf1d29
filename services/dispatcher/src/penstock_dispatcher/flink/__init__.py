"""Flink's REST interface (2.3) for what a Penstock cluster has: what Flink's command line and its web pages ask.

A module of routes per group of resources, and beside it one of shapes: documents, and pure functions that make them of
what the leader shows (`ClusterView`) and the job log says. What nobody recorded is said as Flink says it: -1, `"NaN"`,
null, an empty list, or `...-complete: false`.
"""
