"""Histories of determinate subtasks (`penstock.protocol.determinate`): logs, failures, and processes that were given up
and go on without knowing it."""
