"""What bench/tables.py is made of: result files and where they are of, the tables of the pages,
what is faster, and which figures are of an older version."""
