"""Slots on Docker Engine APIs, Podman included."""
