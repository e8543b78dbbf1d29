"""Tools for contributors; `make lint` and the tests run them."""
