"""The log of a whole run, written while it trains: where step time goes, in windows that get longer as it does."""
