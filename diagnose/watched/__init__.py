"""From the logs of a run to what is said of it: parts of its time, and trends that only a long window shows."""
