"""Penstock, the task manager: a supervisor with one worker process per slot."""
