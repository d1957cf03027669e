"""Slots on Kubernetes clusters: a Secret and a Pod each."""
