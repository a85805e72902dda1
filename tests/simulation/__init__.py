"""The doorbell against a queue that loses, doubles, delays and refuses: `make simulation`."""
