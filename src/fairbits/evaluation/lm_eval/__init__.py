"""What lm-eval wrote about every item of a run (`--log_samples`), read and paired with another run of its tasks."""
