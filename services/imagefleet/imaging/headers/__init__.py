"""One parser a format: header facts from untrusted bytes, in bounded time, without Pillow.

Each reads through `facts.take`, which raises HeadEnded instead of reading past the end; what
is wrong in any other way is refused. A parser only moves forward and has a budget of the pieces it
looks at: more than any encoder writes, and so few that the worst head costs a millisecond or two.
What only a whole file can tell (scans, checksums of pixels) is not read by these.
"""
