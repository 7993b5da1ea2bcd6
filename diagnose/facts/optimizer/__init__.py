"""Optimizer steps, and the resetting of gradients."""
