"""Requests that nobody thought of, made from the documents of the API, and what must hold of each.

    make fuzz-api                        # 100,000 requests over both, on a stack of its own
    make fuzz-api ARGS="--requests 5000 --seed 7"

Schemathesis reads a document as any client's author would, and sends what it allows and what it
forbids: examples, every bound of every field, what chance makes of the schemas, and chains in which
an answer's ids are the next request's. Whatever comes back must be declared, as its schema says,
no fault of ours, no success of a request that the document forbids or that bears no valid key, and
must show nothing of another tenant: two of them ask (`hooks`).

Not asked is what our documents do not promise: that whatever fits a schema is accepted (rules
between fields are in words), and that what was deleted is gone (it shows its receipt).
"""
