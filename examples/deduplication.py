"""Deduplication: a feed delivers some orders again, and each is to be written once.

Which orders were seen is remembered for an hour; a repeat that comes later than that is taken for a new order.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from penstock import Pipeline, param
from penstock.connectors import files, generate


@dataclass
class Delivery:
    order: int
    delivery: int


def deliveries(numbers: NDArray[np.int64]) -> dict[str, NDArray[np.int64]]:
    """Every fifth one, more or less, repeats an order of the last fifty deliveries."""
    repeated = generate.random_integers(numbers, seed=1, stream=0, below=5) == 0
    back = generate.random_integers(numbers, seed=1, stream=1, below=50)
    return {"order": np.where(repeated, np.maximum(numbers - back, 0), numbers), "delivery": numbers}


p = Pipeline("deduplication")

(
    p.read(generate.Source(deliveries, schema=Delivery, rows=param("rows", 10_000), rate=param("rate", 0) or None))
    .key_by("order")
    .deduplicate("first", ttl="1h")
    .write(files.Sink(param("out", "out/deduplication"), existing="replace"))
)

if __name__ == "__main__":
    p.run()
