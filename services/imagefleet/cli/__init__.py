"""The command line: what producers and operators type.

Verbs that act speak HTTP, so that the key says who acts; only `migrate`, `keys`, `doctor` and `up`
touch the database. Results go to the standard output, everything else to the standard error, and
the exit code says what came of it (`ExitCode`).
"""
