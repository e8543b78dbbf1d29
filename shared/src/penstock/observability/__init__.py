"""Structured logs and the typed catalogue of metrics."""
