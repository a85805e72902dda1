"""What is about no single job: who works, what is held back, who asks, and how it all stands.

workers, pauses, breakers, live_settings and tenants are rows that steer; keys and audit are who may
and who did; elections says which process has an office; ledger reads the book that bookkeeping
keeps; statistics reads how it stands, and lanes why nothing moves there; rollups are what ended, a
minute at a time, of which rates are read. Kept here: what an operator changes is told to the audit
in one transaction.
"""
