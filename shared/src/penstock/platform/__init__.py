"""The local platform: Kafka, MinIO and Redis as ordinary processes of this machine, and the services beside them.

`parts` fetches what is needed once; `kafka`, `minio` and `redis` are servers that can be started, stopped, killed,
paused and restarted; `servers` has the three together; `local` is what `penstock up` and `penstock down` do; `doctor`
checks any cluster, local or not.

Nothing here is needed by a cluster whose Kafka, Redis and object store somebody else runs.
"""
