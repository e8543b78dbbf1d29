"""Tests of a text of SQL, in files that are SQL: rows that are given, queries, and the answers that are expected of them.

`files` reads them, `given` says which rows INSERT INTO gives, `tables` reads and writes answers as tables of text,
`changes` knows what is left of rows that replace others, and `comparing` tells two answers apart. They are run by
`penstock.testing.sql`.
"""
