"""Penstock, the dispatcher: the REST interface of a cluster. Stateless: any number of replicas agree."""
