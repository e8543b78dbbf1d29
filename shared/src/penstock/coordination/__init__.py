"""What job manager, task managers and clients share: topics, keys, documents, retrying ports, failpoints."""
