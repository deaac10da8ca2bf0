"""Colours by meaning, for whatever draws. All read on white and on near-black."""

CARRIER = "#d9622b"  # carriers
FOLLOWER = "#d9a13b"  # what carriers reach
MEASURED = "#3f87c9"  # what was measured
TINT = "rgba(63, 135, 201, 0.22)"  # the same, as an area
SECOND = "#2b9c7e"  # a second measured series
SECOND_TINT = "rgba(43, 156, 126, 0.22)"
THIRD = "#a06cc8"
FOURTH = "#c75b86"
CONTROL = "#8a919c"  # controls and nulls
FAINT = "rgba(138, 145, 156, 0.35)"  # what could not be tested, and crowds of faint things
GRID = "rgba(128, 136, 148, 0.25)"
INK = "#6d7480"
