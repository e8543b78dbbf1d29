"""Windows: how they lie in time, which rows are assigned to them, when they fire and with which results."""
