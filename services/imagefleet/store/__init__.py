"""Every SQL statement of the product, by stage of a job's life; the only importer of asyncpg.

Functions take a `Connection` first and own their atomicity: two statements that belong together
open their transaction themselves. What the driver raises becomes one of `errors` at this border.
"""
