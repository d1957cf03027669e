"""Slots as applications on Coolify v4."""
