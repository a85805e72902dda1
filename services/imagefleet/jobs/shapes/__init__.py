"""What is shown, declared once from SQL to JSON: of a row comes a shape, which is the answer.

One module a room of the store (`rules`: what people have written down; `sweeping`: what is done to
S3; `pictures`: what an image is published as), and `shape`, which all of them are. The store
returns these, the API sends them, the client reads them and verbs print them; names, docstrings and
the order of fields are those of the API's document. Pure: no I/O, nothing of the caller's. What is
decided upon or written (a claim, a submission, a setting) is no shape: it has its own class where
it is decided. A shape promises only what a row knows; whoever knows more, as the address that
images are published at, completes it.
"""
