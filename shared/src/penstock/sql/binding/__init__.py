"""From the tree of a text to rows of a plan: names, types, clauses.

A clause takes a `Relation` (rows, and what the text calls their columns) and gives the next one. What a clause cannot do
alone, because a later one decides how it is computed, stays pending in the relation: windows of a windowing function
until a grouping by them, and row numbers until a condition bounds them.
"""
