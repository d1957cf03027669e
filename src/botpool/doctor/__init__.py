"""Finds what is wrong with an installation of botpool, and how to fix it. Changes nothing."""

from botpool.doctor.diagnosis import diagnose, unreadable_settings
from botpool.doctor.rounds import Rounds
from botpool.models.diagnoses import Finding, Result

__all__ = ["Finding", "Result", "Rounds", "diagnose", "unreadable_settings"]
