"""Ops that shapes and order tell to be costlier than another way to the same numbers."""
