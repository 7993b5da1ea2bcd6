"""Batches: how they are fetched and loaded, and what they hold."""
