"""The log of a whole run, written while it trains: what its steps go to, in windows that get longer as it does."""
