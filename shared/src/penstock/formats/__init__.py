"""Formats of rows, whatever system they come from."""
