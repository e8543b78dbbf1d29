"""Tables of Postgres, whoever reads or writes them: where they are, which columns they have, how they change.

The log of changes is read by logical replication: slots, the stream and its messages, and the rows that were there before
it. What that means for a pipeline is left to `penstock.connectors.postgres`.
"""
