"""Backward passes: the graph, what takes what, and what is recorded or computed in vain."""
