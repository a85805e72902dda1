"""One parser a format: header facts from untrusted bytes, in bounded time, without Pillow.

Each reads through `facts.take`, which raises HeadEnded instead of reading past the end; what
is wrong in any other way is refused. A parser only moves forward and has a budget of the pieces it
looks at, so that none can loop.
"""
