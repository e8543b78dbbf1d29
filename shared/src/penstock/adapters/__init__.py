"""Implementations of the ports, one file each. Only `__main__` modules and tests choose among them."""
