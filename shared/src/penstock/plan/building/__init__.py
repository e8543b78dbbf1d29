"""How plans are made: each function checks and types one verb, and adds its nodes behind the rows that it is given.

Two writers call these functions: the fluent `penstock.api`, whose streams wrap `Rows`, and SQL. Neither knows the other:
what a verb refuses, and which columns it makes, is decided here alone.
"""
