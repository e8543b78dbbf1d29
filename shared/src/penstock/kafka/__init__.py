"""Kafka for both planes: the settings of clients, and transactions that nobody has ended."""
