"""A training history whose truth is known, as a series of hooked models with text and SAEs. Read the files in the order
of the data: recipe, world, text, model, source, truth, suite. No study reads any of it but through the series."""
