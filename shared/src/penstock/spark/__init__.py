"""The same program on Spark: a vertex of the job graph becomes a stage, an edge an exchange; operators stay the same.

Responsible for running a job graph over bounded input through PySpark. `lowering` makes data frames of the graph,
`stage` runs inside Spark's tasks and drives the chains that the streaming runtime drives, `wire` is what passes between
the two, `committing` makes the results visible once per run: rows of exactly-once sinks are staged by tasks (`staging`)
and published by the driver (`publishing`). `splits` fixes what a run reads, `state` and `savepoints` bring operators'
state in and out, `progress` says how far event time has come where a stream goes on. `local_run` is a run whose driver is
this process, `catching_up` one between two lives of a job; `run_submission` takes a run to a cluster, where `submitting`
and `submitted` are the two sides of a run that the pipeline service starts. `tracking` says what Spark is at. `tables`
shows savepoints to Spark. PySpark is imported by `session`, `lowering` and `tables` only, and by nothing that
`import penstock` loads.
"""
