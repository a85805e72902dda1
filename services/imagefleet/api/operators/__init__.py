"""The routes of operators, one module a noun: they see every tenant, and nothing is hidden.

They use a pool of their own, under the operator's role, and exist only where there is one; that
role neither creates tenants nor touches what only workers may. Their promise is that nobody changes
anything untold: `Tools.acting` is the one way, a transaction in which the audit learns who did what
and why. Who only looks is `operating`.
"""
