"""The process that repairs and sends what nobody else does: dispatcher, rescuer and their like.

Each is a class with `run_once`, which does one bounded piece of work and returns what it did, and a
ticker in `main` that calls it. Any number of these processes may run; where one is enough, an
office of `store.elections` says which.
"""
