"""The command line: what producers and operators type, one file a noun.

Verbs that act speak HTTP (`verbs`), so that the key says who acts; only `migrate`, `keys`,
`doctor` and `up` touch the database. A verb says what it asks for and how people look at the
answer, and `results` what came of many; `output` and `progress` alone print: with `--json` the
answer itself, whatever newer fields it has. Results go to the standard output, everything else to
the standard error, and the exit code says what came of it (`ExitCode`).
"""
