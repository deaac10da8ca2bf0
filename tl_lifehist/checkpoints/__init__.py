"""Training checkpoints: from a name to hooked models, one a step.

    revisions   what the names of checkpoints say
    weights     the files of a checkpoint, and whether they are whole
    boot        a folder becomes a hooked model
    hub         branches and sub-folders of a hub repository become folders
    sources     where a series' models come from
    series      CheckpointSeries, the mapping step -> model that the rest of the package works on
    integrity   fingerprints, and duplicates between steps
    snapshot    writing checkpoints while a model trains
    pocket      the small suite that ships with the package

Nothing is imported here: each module is imported by whoever needs it.
"""
