"""Two jobs at a steady load for as long as is wanted: `make soak MINUTES=60`."""
