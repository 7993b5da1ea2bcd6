"""What is known of the values that the recorder looked at."""
