"""Every command of the runbooks, run in the trouble that it is for.

pages       the pages as they are written: their parts, and the blocks of commands in them
shell       runs a line as a shell does, with the three programs that pages name
kubectl     what of kubectl the pages use, read with its own options; `cluster` plays it
aws         the same of the AWS CLI, by the models that it is made from
cluster     the processes of an embedded stack as a cluster has them: pods, deployments, ends
fleet       a stack, its metrics, and how time goes by in its rows
conditions  what each alert asks for, asked of metrics that were scraped
troubles    how each trouble is brought about, and what is to be seen of it
"""
