"""Collectives: time, overlap, bandwidth, balance between ranks, and what wrappers add."""
