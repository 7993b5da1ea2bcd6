"""The values that other programs read: the Diagnosis and what it holds, comparisons, trials, baselines, exports."""
