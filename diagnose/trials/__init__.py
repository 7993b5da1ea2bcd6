"""Trials: fixes are injected into the unmodified script and measured against the script as it is."""
