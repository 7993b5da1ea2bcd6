"""What can be measured on a rank's trace. One module per question; facts are lazy, cached, never advise."""
