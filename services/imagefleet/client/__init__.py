"""The product over HTTP, as a producer uses it: for the command line and for `up --demo`."""
