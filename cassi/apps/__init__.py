"""The commands."""

from cassi.workers import begin_early

begin_early()  # before torch is loaded
