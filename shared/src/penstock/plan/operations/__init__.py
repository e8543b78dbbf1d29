"""The operations of a plan, one module each."""
