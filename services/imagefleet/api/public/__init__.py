"""What the world and its caches ask for without a key: stable addresses.

One read, of what is published and no more, with a deadline: no answer leaves so late that an
invalidation could have passed it by.
"""
