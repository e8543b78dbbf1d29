"""The logical plan: what a pipeline declares, before it is cut into vertices.

A plan is a list of nodes. A `Node` is an `Operation` applied to the rows of other nodes, with the settings that users
give it (uid, parallelism, slot group). An operation answers for itself: how it is described, which state it keeps, which
columns of its input it needs, how it treats event time (`Traits`). Passes, job graphs, engines and explanations ask it,
so that a new operation is a module in `operations/`, its operator in `penstock.task.operators`, and a verb in
`penstock.api`.
"""
