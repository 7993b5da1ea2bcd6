"""From the logs of a run to what is said of it: parts of its time, findings, and its ranks side by side."""
