"""The schema: numbered migrations, functions and triggers as they are now, and the guards."""
