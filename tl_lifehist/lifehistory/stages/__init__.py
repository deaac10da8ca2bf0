"""The stages of the life-history study, one file each: `fn(inputs, **params)` returns outputs by name."""
