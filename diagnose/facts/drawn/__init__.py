"""What a page draws of a rank, bounded in size."""
