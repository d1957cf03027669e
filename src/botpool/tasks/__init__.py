"""Ways to run asyncio tasks: in a loop, in batches, in the background, shared, to their end."""
