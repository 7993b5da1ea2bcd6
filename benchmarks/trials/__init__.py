"""Whether `diagnose try` measures the truth: planted faults, equal arms, and fixes that do harm."""
