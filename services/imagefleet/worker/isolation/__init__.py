"""Pictures are decoded by processes that have nothing to lose, each made for one picture alone.

    client      what a handler calls: a source and a recipe in, checked files out; where files lie
    nursery     the worker's view of the zygote, started and asked for children, and of each child:
                killed in time, heard to its end
    report      what an end means, what a report is, and what it says compared with the files
    ---- the border: what lies below holds nothing, and nothing that comes from there is believed
    zygote      started once with an empty environment: loads every codec, then only forks
    child       one job's process: gives up its rights, runs one task, reports, ends
    sandbox     what a process gives up, and how; syscalls: what it may still ask for

The zygote exists because a fork of a warm process takes two milliseconds where a new Python takes a
third of a second, and because a fork of the worker would hold the worker's secrets. It has one
thread and no event loop, as only such a process can be forked safely, and imports nothing that is
heavy: every child carries what it carries.

A report is bounded and parsed; its files are read only after the child is dead, and have to be what
the report says. An end is what the kernel says it was, and the clock that limits a child runs in
the worker.
"""
