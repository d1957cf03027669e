"""What is wrong with an installation of botpool, and how to mend it. Nothing is changed."""

from botpool.doctor.diagnosis import ENGINES, diagnose, unreadable_settings
from botpool.doctor.findings import Finding, Result

__all__ = ["ENGINES", "Finding", "Result", "diagnose", "unreadable_settings"]
