"""One file per noun: rows, schemas, apply rules and invariants, declared in the file's `NOUN`.

`ponor_metadata.image.registry` collects every `NOUN` of this package, so a new file need not be registered.
"""
