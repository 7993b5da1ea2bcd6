"""Tests that hold a training to a budget: recorded as it runs, analysed at its end, judged in three states."""
