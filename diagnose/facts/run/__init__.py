"""The run as a whole: what recording costs, how steps differ, pauses, and ranges that the script marks."""
