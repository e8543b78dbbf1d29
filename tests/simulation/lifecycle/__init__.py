"""Seeded histories of what the operator on Kubernetes decides, and mutants of it."""
