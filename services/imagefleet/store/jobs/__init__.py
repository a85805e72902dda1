"""A job from its submission to its end, and whoever must hear of it meanwhile.

In the order of a job's life: admissions (before the body), submissions, rings (the rows that say
who has no message), dispatching (whose turn it is), claims (by the rule in verdicts), leases,
endings (and whoever waits behind), unheard (ends whose answer was lost), cancelling, rescue,
pruning; reports and targets for tenants, overseeing (lists) and inspection for operators. What is
about images lives next door and is not imported here; the transaction that ends both is
`store/settling.py`. Kept here: a claim is fenced by (job, claim_no, state), locks are taken target
first, then jobs, then rings, and only `verdicts` says who may run.
"""
