"""Terminals as they were: commands run in a real one, and drawn as a picture that is text.

`terminal` runs a command in a pseudo-terminal and keeps what its screen showed, and when;
`drawing` makes an SVG of it; `__main__` has the two recordings that the pages show.
"""
