"""Penstock, the dispatcher: the REST interface of a cluster."""
