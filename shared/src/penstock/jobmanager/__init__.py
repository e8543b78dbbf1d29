"""The job manager: the elected coordinator, a job's master at work, slots, checkpoints, clean-up."""
