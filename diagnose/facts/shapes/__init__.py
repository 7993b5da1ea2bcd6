"""Ops and groups of ops that their shapes tell, for which there is a cheaper way."""
