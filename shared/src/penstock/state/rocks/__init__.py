"""The backend `rocksdb`: object state of process functions on the local disk, larger than memory."""
