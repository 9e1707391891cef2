"""What bench/compare.py is made of: ops (what is timed), contenders, the timing loop, results,
tables, plots."""
