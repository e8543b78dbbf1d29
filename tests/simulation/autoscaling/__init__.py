"""Seeded histories of load, in which the operator on Kubernetes scales a job, and mutants of what it decides."""
