"""What a training run looked like: tables, and pure functions on them. Knows nothing of files, rules or reports."""
