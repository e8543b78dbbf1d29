"""The protocol: pure decisions, no I/O, no clock, no randomness.

Every machine is fed with events (nouns in the past tense) and answers with commands (imperatives); ids and times come in
with the events or through injected callables. `penstock.task` and `penstock.jobmanager` carry them out; the simulator in
`tests/simulation` does the same against simulated parts. Read in this order: `messages`, `frames`, `channels`,
`subtask`, `joblog`, `checkpoints`, `endings`, `jobmaster`, `leader`, `worker`, `publishing`, `trimming`.
"""
