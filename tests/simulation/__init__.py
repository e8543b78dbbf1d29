"""The seeded simulation of the protocol: production machines in a world of simulated parts and injected faults.

Read in this order: `kernel` (time, nodes, processes), `parts` (log, blobs, metadata, sink cluster, folder), `scenario`,
`leading`, `working`, `tasks` (with `operators`, `sending`, `snapshots`, `publisher`), `invariants`, `faults`, `world`,
`mutants`, `running`, `recording`.
"""
