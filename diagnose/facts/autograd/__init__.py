"""Backward passes: autograd's graph, which op takes what of another, and what no backward pass needs."""
