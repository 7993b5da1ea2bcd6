"""From what rules find to what is said: what is in force is dropped, the rest worded, priced, ranked, put together."""
