"""Log, blobs and claims in a directory of one machine."""
