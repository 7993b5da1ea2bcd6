"""Two recordings: what differs, where the difference comes from, and whether it is more than noise."""
