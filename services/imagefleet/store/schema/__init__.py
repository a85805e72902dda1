"""The schema itself: files, the runner that applies them, and the roles that they grant to.

migration_files are what this code ships, migrations applies them, locks foretells what one will
hold up, roles has the logins. Only who administers comes here: `imagefleet migrate`, the embedded
stack, and each process once, at its start, to refuse a schema that it does not know.
"""
