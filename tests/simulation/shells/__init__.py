"""Seeded histories of production's own classes on simulated ports in virtual time.

Read in this order: `loop` (time, processes, threads), `ports`, `filesystem`; for the set `cluster`: `jobs`, `extras`,
`cluster`, `faults`; for the set `workers`: `adversary`, `children`, `workers`; then `mutants`, `running`, `recording`.
"""
