"""Every SQL statement of the product; the only importer of asyncpg.

Functions take a `Connection` first and own their atomicity: two statements that belong together
open their transaction themselves. What the driver raises becomes one of `errors` in `database`,
where the connection lives, and nowhere else. `jobs`, `images`, `edge`, `letters`, `fleet` and
`schema` are rooms; `settling` is above jobs and images, as it ends both in one transaction.
"""
