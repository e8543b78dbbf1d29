"""What users write: pipelines, streams, windows, functions, state."""
