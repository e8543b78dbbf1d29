"""Penstock, the coordinator: JobManager and ResourceManager in one, N replicas, one leader."""
