"""The task manager: worker processes that run subtasks, and the supervisor that keeps them."""
