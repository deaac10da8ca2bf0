"""Study 1, the life history of features. Read the files in the order of the data: profiles, matching, lineages,
containment, controls, load, parts, forecast, direction, contexts, content, noise, study."""
