"""The product over HTTP, as its callers use it: for the command line and for `up --demo`.

All of it is in `api`. It knows routes and shapes, and nothing of Postgres or AWS. Its promise is
that whatever is sent again does nothing twice, and that a document is handed on as it was answered.
"""
