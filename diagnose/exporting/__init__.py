"""A run's tables as files of Parquet, for DuckDB, Polars, pandas and the like."""
