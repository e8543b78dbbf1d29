"""SQL: a second writer of plans, beside the verbs of `penstock.api`; both call `penstock.plan.building`.

A text becomes tokens (`tokens`), a tree whose every part knows its place in the text (`syntax`, `parsing`), and rows of a
plan (`binding`), over the tables of a catalogue. The dialect is Apache Flink's.
"""
