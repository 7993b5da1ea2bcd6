"""What would the step time be if? A dependency graph of the recording, edits of it, and the time they would save."""
