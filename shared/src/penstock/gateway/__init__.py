"""SQL over REST: what Flink's SQL Gateway serves, over embedded runs of this process.

A session has the tables that its statements declare; a statement becomes an operation, and its rows are fetched page by
page. Paths, documents and states are those of Flink's REST endpoint, so that Flink's own SQL client works with it.
"""
