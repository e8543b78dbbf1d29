"""From a pipeline to an accepted job."""
