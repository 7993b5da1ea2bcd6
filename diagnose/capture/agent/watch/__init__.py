"""A log of the whole run, written while it trains: what each step goes to, in windows that get longer as the run does."""
