"""A worker: hears of jobs, claims them, does their work and settles what came of it.

Pixels are the one thing it never touches itself. A picture is decoded in a process that has nothing
to lose, made for that picture alone:

    renderer         what a handler calls: a source and a recipe in, checked files out
    child_nursery    the worker's view of the zygote: started, asked for children, replaced
    children         the worker's view of one child: killed in time, heard to its end
    child_endings    what an end means: a result, a rejection, a crash, a deadline
    child_output     what a report claims, compared with the files
    ---- processes that hold nothing ----
    zygote           started once with an empty environment: loads every codec, then only forks
    child            one job's process: gives up its rights, runs one task, reports, ends
    child_render     the task that renders a picture
    sandbox          what a process gives up, and how; child_syscalls: what it may still ask for

The zygote exists because a fork of a warm process takes two milliseconds where a new Python takes a
third of a second, and because a fork of the worker would hold the worker's secrets. It has one
thread and no event loop, as only such a process can be forked safely.

Nothing that comes out of a child is believed. Its report is bounded and parsed; its files are read
only after it is dead, and have to be what the report says. Its end is what the kernel says it was,
and the clock that limits it runs in the worker.
"""
