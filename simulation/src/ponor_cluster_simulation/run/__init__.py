"""One run: its plan, its parts, its course, and the judgement at its end."""
