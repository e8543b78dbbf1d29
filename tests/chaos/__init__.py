"""Kill tests on the real parts: what `protocol.md` promises, held against real Kafka, Redis, MinIO and real services."""
