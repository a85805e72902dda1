"""The whole stack in one terminal: Postgres, an AWS emulator and every process, no Docker."""
