"""The settings of both Kafka clients stand in `penstock.kafka_clients`, because connectors need them too and may not
import adapters. Adapters may import them from either place.
"""

from __future__ import annotations

from penstock.kafka_clients import (
    METADATA_MAX_AGE_MS,
    REQUEST_TIMEOUT_MS,
    aiokafka_options,
    broker_list,
    confluent_options,
)

__all__ = ["METADATA_MAX_AGE_MS", "REQUEST_TIMEOUT_MS", "aiokafka_options", "broker_list", "confluent_options"]
