"""The data plane of a subtask: sources, operator chains, the exchange, snapshots, publishing to sinks."""
