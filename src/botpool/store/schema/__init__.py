"""The schema: tables by numbered migrations, functions and triggers as they are now, and guards.

A migration that was released never changes, so a table is the sum of several: `bots` and
`bot_pool_slots` begin in 0001_core.sql and grow in 0002 to 0007. Comments in the older ones name
files as they were then: guards.py is beside this file now, and the virtual clock is in
store/installation.sql. The catalogue of a migrated database shows a table as it is.
"""
