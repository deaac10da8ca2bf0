"""Colours by meaning, for whatever draws. All read on white and on near-black, and any two of those that mean something
are told apart by readers who lack one kind of cone: by lightness and by blue against yellow, since red against green is
lost on most of them.
"""

CARRIER = "#c8602f"  # carriers
FOLLOWER = "#d9ad45"  # what carriers reach
MEASURED = "#4389d0"  # what was measured
TINT = "rgba(67, 137, 208, 0.22)"  # the same, as an area
SECOND = "#0f7268"  # a second measured series
SECOND_TINT = "rgba(15, 114, 104, 0.22)"
THIRD = "#6a3fd0"
FOURTH = "#c9196c"
CONTROL = "#9a9c95"  # controls and nulls
MEANINGS = (CARRIER, FOLLOWER, MEASURED, SECOND, THIRD, FOURTH, CONTROL)
FAINT = "rgba(138, 145, 156, 0.35)"  # what could not be tested, and crowds of faint things
GRID = "rgba(128, 136, 148, 0.25)"
INK = "#6d7480"  # text; a series in it has a dash or a place of its own
