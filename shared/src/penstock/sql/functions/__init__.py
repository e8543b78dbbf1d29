"""What SQL calls: scalar functions, operators and aggregates, as builders of expressions."""
