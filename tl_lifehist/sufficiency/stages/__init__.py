"""The stages of a sufficiency study, one file each: functions of what they need, which know no study."""
