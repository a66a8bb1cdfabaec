"""Load that proves something: records that carry their identity, clients of three families, and a judge of what came back."""
