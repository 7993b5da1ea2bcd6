"""What can be measured on a rank's trace. Each module answers one question; facts are lazy, cached, and never advise."""
