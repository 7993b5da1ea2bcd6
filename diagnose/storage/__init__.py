"""Files that lie elsewhere, by URL: listed, read and written through fsspec, which is imported only when a URL is."""
