"""Slots as processes of this machine."""
