"""Failures that somebody must see: one letter each, until it is acknowledged or replayed.

A letter is written by the database with the failure itself (migrations/0004_dead_letters.sql).
letters reads, groups and acknowledges, and forgets strays; faults are what they have in common;
replays submits a letter's job again, once, and walks do that of many; the dead-letter queue of SQS
is a copy for people and for SQS's own redrive, and dead_letter_queue keeps the two in agreement.
Kept here: the rows are the truth, whatever the queue has lost or doubled.
"""
