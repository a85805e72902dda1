"""What the world and its caches ask for without a key: `stable` addresses, and pages for people.

A stable address is one read, of what is published and no more, with a deadline: no answer leaves so
late that an invalidation could have passed it by. `documentation` and `explaining` show files of
the package, the documents of the API and what its codes mean, and ask nobody. The promise: what is
not published is not told, and who asks in a hurry waits.
"""
